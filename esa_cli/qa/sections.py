"""Answers requests for the contents of a chapter, section or document: "Summarise chapter 3".

A reader model gets the whole section, or the summaries of its parts if it is long. Without a
reader, the beginning or the most central sentences of the section are quoted."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from esa_cli.documents.document import Document, is_table_row
from esa_cli.documents.outline import (
    CHINESE,
    KINDS,
    MIN_GAP,
    WORD,
    Section,
    find_sections,
    fold,
    parse_number,
    parse_number_of,
)
from esa_cli.qa.answering.reply import NOT_TOLD, Reply
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book, PassageSearch
from esa_cli.qa.finding.words import list_sentence_words
from esa_cli.qa.reading.reader import (
    MAX_PASSAGES,
    MAX_TOKENS,
    TOKEN_BYTES,
    Reader,
    SamplingParams,
    format_numbered_passages,
)
from esa_cli.system.jsonl import ResultsFile
from esa_cli.system.progress import Progress
from esa_cli.system.text import digest_text

_REQUEST = re.compile(
    r"(?:please |bitte "
    r"|(?:(?:can|could) you|kannst du|konnen sie|peux tu|pouvez vous|puedes) )*(?:"
    r"(?P<says>what (?:does|do) (?=.* (?:say|state|contain|cover)$)|was sagt |was steht i[nm] |"
    r"que dit |que dice |что (?:сказано|написано) в )|"
    r"(?P<explain>describe |explain |tell me about |расскажи(?:те)? об? )|"
    r"(?:summari[sz]e|outline|recap|tl dr) |which topics (?:does|do) (?=.* cover$)|"
    r"what (?:happens|happened|is said|is covered|i?s|stands) in |"
    r"(?:give|write)(?: me)? (?:an? |the )?(?:\w+ )?(?:summary|outline|overview|account) of |"
    r"(?:give me |what are )?(?:the )?(?:main|key) points of |what (?:is|are) (?=.* about$)|"
    r"fasse? |(?=.* zusammenfassen$)|was (?:passiert|geschieht) i[nm] |worum geht es i[nm] |"
    r"wovon handelt |(?:gib mir )?(?:eine )?(?:kurze )?zusammenfassung (?:von |des |der )|"
    r"was ist der inhalt (?:von |des |der )|"
    r"resume[rz]? |(?:que|qu est ce qui) se passe (?:t il )?(?:dans |a[ux]? )|"
    r"(?:fais|faites)(?: moi)? un (?:court )?resume |de quoi (?:parle|traite) |"
    r"resum[aei][nr]? |que (?:pasa|ocurre|sucede) en |de que trata |"
    r"haz(?:me)? un (?:breve )?resumen |"
    r"о чем (?:(?:говорится|рассказывается|идет речь) в )?|что (?:происходит|говорится) в |"
    r"(?:кратко )?(?:перескажи|изложи)(?:те)? (?:кратко )?|(?:краткое )?содержание )"
    r"(?:(?:the|der|die|das|den|dem|le|la|l|el|los|du|de la|del?) )?(?P<object>.*)"
)
"""Matches a folded request for the contents of something."""
_CHINESE_REQUEST = re.compile("总结|總結|概括|概述|[讲講说說写寫]了?什[么麼]|内容|內容")
_AFTER_OBJECT = re.compile(
    r" (?:say|tell us|state|contain|cover|about|zusammen(?:fassen)?|please|briefly"
    r"|in (?:\w+ ){1,3}(?:sentences?|words?|lines?|paragraphs?)"
    r"|(?:of|in) (?:the|this) (?:book|document|text|file|novel|report))$"
)
_LENGTH = re.compile(r"\bin (?:an?|one|two|three|four|five|\d+) (?:\w+ )?paragraphs?\W*$")
"""Matches the length of a summary, which names no paragraph."""
_ARTICLE = re.compile("^(?:the|an?|der|die|das|le|la|l|el) ")
_ABOUT = re.compile("(?:about|on|concerning|uber|zu[mr]?|sur|concernant|sobre|acerca del?) ")
"""Matches the word between `section` and words of its title in a folded request."""
_CALLED = re.compile("^(?:called|named|entitled|titled|intitule|titulado|llamado) ")
_WHOLE = re.compile(
    "(?:(?:this|whole|entire|dieses|ganzen?|todo) )*"
    "(?:this|book|document|text|file|novel|report|paper|article|essay|thesis|script|contract"
    "|buch|dokument|arbeit|artikel|vertrag|livre|texte|roman|nouvelle|libro|documento|texto|novela"
    "|книг[аеиу]|текст|документ)"
)
_LINES = re.compile(
    r"^ *([-*+|>]|#+ |\d+[.)]|[A-Za-z][\w-]*: (?=.*\n(\n|[\w-]+: ))) *\S", re.MULTILINE
)
"""Matches lines that stay lines: of lists, tables, quoted mails, headings, and as `To: Bob`."""
_BULLET = re.compile(r"^(?:[-*+]|\d{1,3}[.)]) +")
"""Matches what the first sentence of an item of a list begins with."""
_LAST_WORDS = """
last final letzte letztes letzten dernier derniere ultimo ultima последняя последнеи последнюю
"""
_LAST = frozenset(_LAST_WORDS.split())
_LINK_WORDS = "of in from the and der die das des du de la le el"
_LINKS = frozenset(_LINK_WORDS.split())
_LEVELS = dict(KINDS.values())
COUNT, MAX_BEGINNING, MAX_WHOLE = 4, 700, 1200
"""The number of central sentences that are quoted, and the most characters of a beginning, and of a
section that is quoted whole: from a short one, a choice leaves out what matters."""
CHOSEN, COMPARED = 24, 300
"""The number of sentences, chosen by their words, whose late interaction with others of the section
decides; and the number of these others."""
SENTENCE_WORDS = range(8, 51)
PROMPT_TOKENS, MAX_WINDOW = 500, 32_768
"""Tokens of a prompt with the names of its passages but without their texts; the largest part of a
model's window that is used."""
PART = "Summarise this text, part {number} of {count} of {section}, in some sentences."
TOGETHER = "{question}\n(The passages are summaries of the parts of {section}, in their order.)"


class AskedSection(NamedTuple):
    """The section that a question asks for, in document number `document`."""

    document: int
    section: Section
    says: bool = False  # whether its words are asked for ("What does section 3 say?")
    others: int = 0  # the number of other sections that the question may mean


def find_asked_section(question: str, documents: Sequence[Document]) -> AskedSection | None:
    """Returns the section, or whole single document, whose contents a question asks for."""
    request = _REQUEST.match(fold(question))
    if request is None and not _CHINESE_REQUEST.search(question):
        return None
    wanted = request["object"] if request else ""
    while found_end := _AFTER_OBJECT.search(wanted):
        wanted = wanted[: found_end.start()]
    names = " ".join(one.name for one in documents)
    if request and request["explain"] and not KINDS.keys() & set(wanted.split()):
        return None  # "Describe Ahab" means no title
    is_small = any(_LEVELS[kind] > 2 for kind, _ in _iterate_references(question))
    found = list[AskedSection]()
    for min_gap in (MIN_GAP, 0)[: 1 + is_small]:  # "clause 6" may be an item of a list
        found = found or [
            AskedSection(number, section, bool(request and request["says"]))
            for number, one in enumerate(documents)
            for section in find_named_sections(question, wanted, find_sections(one, min_gap), names)
        ]
    words = {*fold(question).split()} - _LINKS  # "section 4 of the lease" is in `lease.docx`
    shared = [len(words & {*fold(documents[one.document].name).split()}) for one in found]
    found = [one for one, count in zip(found, shared, strict=True) if count == max(shared)]
    stem = fold(Path(names).stem)
    if not found and len(documents) == 1 and (wanted == stem or _WHOLE.fullmatch(wanted)):
        return AskedSection(0, Section(names, names, "", "", 0, 0, len(documents[0].text)))
    # A heading without a text below is a line of a contents page that was not recognised.
    longest = max((one.section.end - one.section.start for one in found), default=0)
    found = [one for one in found if 10 * (one.section.end - one.section.start) >= longest]
    return found[0]._replace(others=len(found) - 1) if found else None


def find_named_sections(
    question: str, wanted: str, sections: Sequence[Section], names: str = ""
) -> list[Section]:
    """Returns the sections that a question names by number, as in `chapter 3 of book 2`, or by
    title: `wanted`, folded, which may have words of it, as in `section about limits`. Words in
    `names`, as of files, do not matter."""
    sections = [one for one in sections if not one.is_contents]
    references = sorted(_iterate_references(question), key=lambda one: _LEVELS[one[0]])
    if references and _asks_for_more(wanted, names):
        return []
    found, inside = list[Section](), sections
    for kind, number in references:
        # Chapters may have numbers alone, and other names where there are no chapters.
        kinds = [{kind}, {""}, {name for name, level in _LEVELS.items() if level > 1}]
        for fitting in kinds if _LEVELS[kind] > 1 else kinds[:1]:
            found = [one for one in inside if one.kind in fitting and one.number]
            if found := [one for one in found if number in (one.number, "last")]:
                break
        found = found[-1:] if number == "last" else found
        inside = [
            one for one in sections
            if any(outer.start <= one.start < outer.end and outer != one for outer in found)
        ]  # fmt: skip
    if references or not wanted:
        return found
    kind_word, _, title = wanted.partition(" ")
    named = kind_word in KINDS and bool(title)
    link = _ABOUT.match(title) if named else None
    if link and (about := {*title[link.end() :].split()} - _LINKS):
        titles = [({*fold(one.title).split()} - _LINKS, one) for one in sections]
        exact = [one for words, one in titles if words == about]
        return exact or [one for words, one in titles if words > about]
    if wanted in KINDS:  # "the appendix", where there is one
        of_kind = [one for one in sections if one.kind == KINDS[wanted][0]]
        return of_kind if len(of_kind) == 1 else []
    title = _ARTICLE.sub("", _CALLED.sub("", title) if named else wanted)
    return [
        one
        for one in sections
        if wanted in (fold(one.heading), fold(one.number))
        or title == _ARTICLE.sub("", fold(one.title))
        or (named and f"{fold(one.heading)} ".startswith(f"{wanted} "))
    ]


def describe_missing_section(question: str, documents: Sequence[Document]) -> str:
    """Returns an answer that says which number of a section in a request the documents do not have,
    or "" if none is missing, or their sections of this kind have no numbers, or the text has it."""
    request = _REQUEST.match(fold(question))
    names = " ".join(one.name for one in documents)
    if request is None or request["says"] or _asks_for_more(request["object"], names):
        return ""
    sections = [one for document in documents for one in find_sections(document)]
    for kind, number in _iterate_references(question):
        kinds = {kind, ""} if _LEVELS[kind] > 1 else {kind}
        numbers = {one.number for one in sections if one.kind in kinds and not one.is_contents}
        words = "|".join(word for word, (name, _) in KINDS.items() if name == kind)
        begins = r"|^[ \t#]*" * ("." in number)  # a heading that was not recognised
        said = re.compile(rf"(?im)(?:(?:{words})\W{{1,3}}{begins}){re.escape(number)}\b")
        is_missing = bool(numbers - {""}) and number not in {*numbers, "last"}
        if is_missing and not any(said.search(one.text) for one in documents):
            where = documents[0].name if len(documents) == 1 else "the documents"
            hint = "`esa outline` lists the headings of a document"
            return f"{NOT_TOLD[:-1]}: no {kind} {number} in {where}; {hint}."
    return ""


def _asks_for_more(wanted: str, names: str) -> bool:
    """Whether a request has more than two words that name no section, as "Explain what Jim finds in
    chapter 3" has; words in `names`, as of files, do not count."""
    known = {*KINDS, *_LINKS, *_LAST, *fold(names).split()}
    words = (word for word in wanted.split() if word not in known)
    return sum(not parse_number(word.upper()) for word in words) > 2


def _iterate_references(question: str) -> Iterator[tuple[str, str]]:
    """Yields kind and number of each section in a question: chapter 3, third chapter, 第三章."""
    for found in CHINESE.finditer(question):
        yield KINDS[found[2]][0], parse_number(found[1])
    question = _LENGTH.sub("", question)
    words = [word for word in WORD.findall(question) if word != "the"]  # `book the second`
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if kind := KINDS.get(fold(word) or word):
            number = parse_number_of(kind[0], after) or parse_number(after.upper())
            number = number or re.sub(r"(?<=\d)\D+$", "", parse_number(before))  # the 3rd chapter
            if number := number or "last" * (fold(before) in _LAST):
                yield kind[0], number


@torch.inference_mode()
def find_central_sentences(
    search: PassageSearch, book: Book, section: Section, count: int = COUNT
) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of the most central sentences of a section, in order: of
    those with many frequent words of the section, the ones with the highest mean late interaction
    with all its sentences. Without a token index the words alone decide."""
    text, table = book.document.text, book.words or list_sentence_words(book.document.text)
    spans = [(start, end) for start, end in table.spans.tolist()]
    own = [n for n, (start, _) in enumerate(spans) if section.start <= start < section.end]
    words = {n: set(table.ids[table.ends[n] : table.ends[n + 1]].tolist()) for n in own}
    frequency, everywhere = Counter(w for n in own for w in words[n]), Counter(table.ids.tolist())
    weights = {
        word: math.log(1 + times) * math.log(len(spans) / everywhere[word])
        for word, times in frequency.items()
    }
    whole = [n for n in own if table.counts[n] in SENTENCE_WORDS and text[spans[n][1] - 1] != ":"]

    def rate_words(n: int) -> float:
        return sum(weights[word] for word in words[n]) / (6 + len(words[n]))

    best, scores = sorted(whole or own, key=rate_words, reverse=True)[:CHOSEN], dict[int, float]()
    others = torch.tensor([spans[n] for n in own[:: 1 + len(own) // COMPARED]]).reshape(-1, 2)
    for n in best if len(best) > count else ():
        reduced = search.encode_question(text[slice(*spans[n])], [book])
        if reduced is not None:
            scores[n] = float(reduced.score_ranges(book, others).mean())
    return [spans[n] for n in sorted(sorted(best, key=lambda n: -scores.get(n, 0.0))[:count])]


def quote_section(search: PassageSearch, book: Book, asked: AskedSection) -> Reply:
    """Quotes, without a reader, where a section begins, and its first or most central sentences."""
    document, section = book.document, asked.section
    text, begin, what = document.text, section.start, ""
    heading = r"\W*" + r"\W+".join(re.findall(r"\w+", section.heading)) + r"[^\w\n]*\s+"
    if (found := re.compile(heading).match(text, begin)) and found.end() < section.end:
        begin = found.end()
    if asked.says or section.end - begin <= MAX_WHOLE:
        end = section.end
        if end - begin > MAX_WHOLE:
            end = 1 + max(text.rfind(stop, begin, begin + MAX_BEGINNING) for stop in ("\n\n", ". "))
            end = end or begin + MAX_BEGINNING
        spans = [(begin, end)]
    else:
        central, what = find_central_sentences(search, book, section), "; central sentences, quoted"
        spans = [(end - len(_BULLET.sub("", text[start:end])), end) for start, end in central]
    first, *quoted = (Passage.cut_from(document, *at) for at in [(section.start, begin), *spans])
    others = f" (the first of {asked.others + 1} that fit)" * bool(asked.others)
    texts = [
        re.sub(r"\n{3,}", "\n\n", f"{one.text.rstrip()}\n")
        if _LINES.search(one.text) or any(map(is_table_row, one.text.splitlines()))
        else re.sub('^[^“”„«»"]+$', r"“\g<0>”", " ".join(one.text.split())) + " "
        for one in quoted
    ]  # fmt: skip
    lines = [
        f"{section.heading}{others} begins at {document.name}, {_format_place(first)}{what}:",
        *(f"{text}({_format_place(one)})" for text, one in zip(texts, quoted, strict=True)),
    ]
    return Reply("\n".join(lines), tuple(quoted), answered_from="section")


def _format_place(passage: Passage) -> str:
    return f"line {passage.line}" if passage.page is None else f"page {passage.page}"


def summarise_section(
    reader: Reader, question: str, document: Document, section: Section, sampling: SamplingParams,
    on_text: Callable[[str], None], *, folder: Path | None = None,
    progress: Progress | None = None,
) -> Reply:  # fmt: skip
    """Has a reader answer for a section, or for the summaries of its parts if it is too long.

    Args:
        folder: where the summaries of parts are kept until the answer is there, so that the same
            request continues after an interruption. progress: called with (parts done, all parts).

    Raises ReaderError, HistoryError, LengthError: see `Reader.answer`."""
    window = min(reader.window_tokens, MAX_WINDOW)
    answer = sampling.max_new_tokens or min(MAX_TOKENS, window // 4)
    room = max(window - answer - PROMPT_TOKENS, window // 4) * TOKEN_BYTES
    parts = passages = list(_cut_into_parts(document, section, room))
    key = digest_text("\0".join([question, reader.name, repr(sampling), *(p.text for p in parts)]))
    path = folder / f"{key[:40]}.jsonl" if folder and len(parts) > 1 else None
    header = {"command": "summary", "key": key}
    with ResultsFile(path, header, fixed_fields=["key"], key_fields=["level", "part"]) as file:
        level, groups = 0, [[one] for one in parts]
        while len(groups) > 1:
            summaries = list[Passage]()
            for number, group in enumerate(groups, 1):
                row = file.find_row_with_same_key({"level": level, "part": number})
                if row is None:
                    facts = {"number": number, "count": len(groups), "section": section.heading}
                    text = reader.answer(PART.format(**facts), group, (), sampling).text
                    file.add_row(row := {"level": level, "part": number, "text": text})
                summaries.append(replace(group[0], text=row["text"]))
                if progress:
                    progress(number, len(groups))
            level, groups = level + 1, _group_by_size(summaries, room)
            passages = groups[0]
        if level:
            question = TOGETHER.format(question=question, section=section.heading)
        reply = reader.answer(question, passages, (), sampling, on_text)
    if path is not None:
        path.unlink(missing_ok=True)
    return replace(reply, evidence=tuple(parts), answered_from="section")


def _cut_into_parts(document: Document, section: Section, room: int) -> Iterator[Passage]:
    """Cuts a section into parts of at most `room` bytes, between paragraphs or else words."""
    text, start = document.text, section.start
    while start < section.end:
        fitting = text[start : min(start + room, section.end)].encode("utf-8", "replace")[:room]
        end = start + len(fitting.decode("utf-8", "ignore"))
        if end < section.end:
            cuts = (text.rfind(gap, (start + end) // 2, end) for gap in ("\n\n", "\n", " "))
            end = next((cut + 1 for cut in cuts if cut > 0), end)
        yield Passage.cut_from(document, start, end)
        start = end


def _group_by_size(passages: Sequence[Passage], room: int) -> list[list[Passage]]:
    """Groups passages, at least two and at most `MAX_PASSAGES`, that fit into `room` bytes."""
    groups = list[list[Passage]]([[]])
    for passage in passages:
        size = len(format_numbered_passages([*groups[-1], passage]).encode())
        if len(groups[-1]) == MAX_PASSAGES or (size > room and len(groups[-1]) > 1):
            groups.append([])
        groups[-1].append(passage)
    return groups
