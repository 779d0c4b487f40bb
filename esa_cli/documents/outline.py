"""Finds the chapters and sections of a document, and its contents pages and indexes.

Headings are the chapters that the document's reader has marked, and lines such as `CHAPTER III.`,
`Erstes Kapitel`, `第三回` or `4.15 Ambient Declarations`. Lines that only begin with a number are
headings if their numbers ascend and enough text is between them, which lists do not have."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from esa_cli.documents.document import Document, TextLocation
from esa_cli.documents.readers.text_builder import Mark

_KINDS = """
1 volume band tome tomo том|1 book buch livre libro книга книги книге книгу
1 part teil partie parte deel часть части 部 卷
1 period periode periodo|1 epoch epoche epoque epoca|1 narrative
2 chapter kapitel chapitre capitulo capitolo hoofdstuk глава главы главе главу 章 回
2 letter brief lettre carta
2 adventure|2 canto gesang chant|2 act akt acte acto
2 lecture vorlesung лекция лекции лекцию
2 lesson lektion lecon leccion lezione урок урока уроке
2 appendix anhang annexe apendice anexo приложение
3 scene szene escena|3 section abschnitt seccion sezione раздел раздела разделе 节 節
3 paragraph paragraphe parrafo §|3 clause klausel clausula ziffer 款
3 article art artikel articulo articolo статья 条 條
"""
KINDS = {
    word: (words[0], int(level))
    for level, *words in map(str.split, re.split(r"[|\n]", _KINDS.strip()))
    for word in words
}
"""Word before a number in headings, without accents -> its English name, and its level."""
_NUMBER_WORDS = """
one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen \
seventeen eighteen nineteen
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth
erst zweit dritt viert funft sechst siebt acht neunt zehnt elft zwolft dreizehnt vierzehnt
premier deuxieme troisieme quatrieme cinquieme sixieme septieme huitieme neuvieme dixieme onzieme
primer segund tercer cuart quint sext septim octav noven decim
premiere seconde
перв втор треть четверт пят шест седьм восьм девят десят
"""
_LISTS = map(str.split, _NUMBER_WORDS.strip().split("\n"))
_NUMBERS = {word: str(number) for words in _LISTS for number, word in enumerate(words, 1)}
_TENS = enumerate(["twent", "thirt", "fort", "fift", "sixt", "sevent", "eight", "ninet"], 2)
_NUMBERS |= {f"{stem}{end}": f"{tens}0" for tens, stem in _TENS for end in ("y", "ieth")}
_ROMAN = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_VALUES = dict(zip("IVXLCDM十百千", (1, 5, 10, 50, 100, 500, 1000, 10, 100, 1000), strict=True))
_VALUES |= {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"〇": 0}
CHINESE = re.compile(r"(?:正文 ?)?第([\d〇零一二三四五六七八九十百千]{1,7})([章回节節条條款卷部])")
WORD = re.compile(
    r"§|(?i:(?:twen|thir|for|fif|six|seven|eigh|nine)ty[ -]"
    r"(?:one|two|three|four|five|six|seven|eight|nine"
    r"|first|second|third|(?:four|fif|six|seven|eigh|nin)th)\b)"
    r"|[^\W_]+(?:[.-]\d+)*"
)
"""Matches a word, a number such as `4.15`, or one in two words such as `twenty-three`."""
_SEPARATORS = " \t\u3000.:)—–-、："
_LINE = re.compile(r"[^\n]+")
_BLANK_NEXT = re.compile(r"[ \t\r]*(?:\n[ \t\r]*(?:\n|$)|$)")
_TITLE_BELOW = re.compile(r"\s*([^\n]{1,80})\n[ \t\r]*\n")
_MAX_HEADING = 120
"""The maximum length of a line that is a heading, in characters."""
MIN_GAP = 400
"""The minimum median of characters between headings that only begin with a number."""
_DENSE = 20
"""A text with fewer empty lines than one in so many has none around its headings."""
_ZONE = 40_000
"""The characters at both ends of a text, and below "Contents", that may be contents pages."""
_MAX_TEXT = 20_000_000
"""The maximum length of a text in which headings are looked for, in characters."""
_MAX_REPEATS = 4
"""A line that comes so often is no entry of a contents page, unless it has a page number."""
_CONTENTS_NAMES = """
contents|table of contents|index|inhalt|inhaltsverzeichnis|sachregister|sommaire|inhoud|sumario
table des matieres|indice|indice general|tabla de contenidos|indice analitico|indice alfabetico
目录|目錄|目次|索引|содержание|оглавление
"""
_CONTENTS = frozenset(re.split(r"[|\n]", _CONTENTS_NAMES.strip()))
"""The headings, without accents, of contents pages and indexes."""
_UNNUMBERED_NAMES = """
prologue|prolog|prologo|epilogue|epilog|epilogo|foreword|preface|introduction|afterword|conclusion
vorwort|vorrede|einleitung|nachwort|schluss|avant propos|postface|prefacio|introduccion
предисловие|введение|заключение|послесловие|пролог|эпилог
appendix|anhang|annexe|apendice|anexo|приложение|glossary|glossar|glossaire|glosario|глоссарии
bibliography|references|bibliographie|literatur|literaturverzeichnis|bibliografia|литература
"""
_UNNUMBERED = frozenset(re.split(r"[|\n]", _UNNUMBERED_NAMES.strip()))
"""The headings, without accents, of parts that books do not number."""
_NAMES = _UNNUMBERED | _CONTENTS
_END_OF_BOOK = re.compile(r"\*\*\* ?END OF TH")
"""Matches what follows a book of Project Gutenberg."""
_PAGE = re.compile(
    r"(?<![ \t.…,])(?![.,]\w)[ \t.…,]+(?:\d{1,4}(?:[-–]\d{1,4})?|[ivxlc]{1,6})[,.]?$"
)
_LEADER = re.compile(r"\.\.|\. |…|,|[ \t]{3}")
_SPEECH = '"“„«»‘—'
"""The first characters of lines of a dialogue, which may come again, too."""
_LINK = re.compile(r"\]\([^()]*\)")
_NOT_WORD = re.compile(r"[\W_]+")


class Section(NamedTuple):
    """A chapter or section of a document: the characters [start, end), with the heading."""

    heading: str  # as in the document
    title: str  # the heading without kind and number
    kind: str  # what the heading calls it, in English, such as `chapter`, or ""
    number: str  # such as `3` or `4.15`, or ""
    level: int  # sections contain those of higher levels
    start: int
    end: int = 0
    is_contents: bool = False  # whether it is a contents page or an index


class _Line(NamedTuple):
    start: int
    end: int
    key: str
    has_page: bool
    may_begin_contents: bool
    is_alone: bool


def fold(text: str) -> str:
    """Returns the words of a text in lower case, without accents, with one space between them."""
    if not text.isascii():
        letters = unicodedata.normalize("NFKD", text)
        text = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return _NOT_WORD.sub(" ", text.casefold()).strip()


def parse_numeral(word: str) -> str:
    """Returns the number that digits, Roman or Chinese numerals mean, or ""."""
    if word[:1].isdecimal():
        return re.sub(r"\d{1,9}", lambda digits: str(int(digits[0])), word)
    if word and _ROMAN.fullmatch(word):
        pairs = pairwise([*map(_VALUES.__getitem__, word), 0])
        return str(sum(-value if value < following else value for value, following in pairs))
    if word and all(letter in _VALUES and letter > "z" for letter in word):
        total = digit = 0
        for letter in word:
            if letter in "十百千":
                total, digit = total + (digit or 1) * _VALUES[letter], 0
            else:
                digit = _VALUES[letter]
        return str(total + digit)
    return ""


def parse_number(word: str) -> str:
    """Returns the number that a word means, such as `3` for `III`, `third` or `三`, or ""."""
    if numeral := parse_numeral(word):
        return numeral
    tens, _, folded = fold(word).rpartition(" ")  # `twenty-third`
    if tens in _NUMBERS and folded in _NUMBERS:
        return str(int(_NUMBERS[tens]) + int(_NUMBERS[folded]))
    stems = folded, folded[:-1], folded[:-2]  # of ordinals without their endings
    return next((_NUMBERS[one] for one in stems if one in _NUMBERS), "")


def parse_number_of(kind: str, word: str) -> str:
    """Returns the number that a word means after the name of a kind; those of appendices, parts and
    sections may be letters, as in `Appendix C`."""
    has_letters = kind in ("appendix", "part", "section")
    is_letter = has_letters and len(word) == 1 and word.isupper() and word not in "IVX"
    return word if is_letter else parse_number(word)


def parse_heading(line: str) -> tuple[str, str, str] | None:
    """Returns the kind, number and title of a line that begins as headings with a number do; the
    number is `?` if it is a German ordinal that is not known."""
    if chinese := CHINESE.match(line):
        number, title = parse_number(chinese[1]), line[chinese.end() :].lstrip(_SEPARATORS)
        return KINDS[chinese[2]][0], number, title
    first = WORD.match(line)
    second = WORD.search(line, first.end()) if first else None
    if first is None:
        return None
    kind, number, end = KINDS.get(fold(first[0]) or first[0]), parse_number(first[0]), first.end()
    if kind and second and second[0].lower() == "the":  # `Book the First`, not `I. The Period`
        second = WORD.search(line, second.end())
    if second and kind and (number := parse_number_of(kind[0], second[0])):
        end = second.end()
    elif second and (other := KINDS.get(fold(second[0]))) and not first[0][0].isdecimal():
        is_ordinal = number or first[0].endswith(("tes", "ter", "te"))
        kind, number, end = (other, number or "?", second.end()) if is_ordinal else (kind, "", end)
    if not number or not (kind or parse_numeral(first[0])):
        return None
    title = line[end:].lstrip(_SEPARATORS)
    gap = line[end : len(line) - len(title)]
    if title and len(gap) < 2 and gap in ("", " ") and (title[0].islower() or not gap):
        return None  # `Part of`, `4th`
    return kind[0] if kind else "", number, title


@lru_cache(maxsize=16)
def find_sections(document: Document, min_gap: int = MIN_GAP) -> list[Section]:
    """Returns a document's chapters and sections in order; a `min_gap` of 0 adds items of lists."""
    text, contents = document.text, find_contents(document)
    whole = found_end.start() if (found_end := _END_OF_BOOK.search(text)) else len(text)

    def is_in_contents(start: int) -> bool:
        return any(first <= start < end for first, end in contents)

    marked = list(_iterate_marked_headings(document.marks))
    found = [one for one in _iterate_heading_lines(document) if one.start < whole]
    indexes = [one for one in found if fold(one.title) in _CONTENTS]
    found = [one for one in found if not is_in_contents(one.start) and one not in indexes]
    named = [one for one in found if one.kind] if len(marked) < 2 else []
    named = _nest(named[_count_contents_lines(named) :])
    numbered = [one for one in found if one.number and not one.kind]
    chapters = [one for one in named if one.level > 1 and one.kind != "appendix"]
    if len(marked) > 1 or len(chapters) > 2:
        numbered = [one for one in numbered if "." in one.number]
    chosen = [*_drop_sentences(text, [*_choose_chains(numbered, min_gap), *named])]
    if chosen:  # otherwise words such as "Preface" may be anything
        words = Counter(fold(one.title) for one in found if not one.number)
        single = [one for one in found if not one.number and words[fold(one.title)] == 1]
        top = min(one.level for one in chosen)
        first = min(one.start for one in chosen)  # not the contents page before it
        single += [one for one in indexes if one.start > first]
        chosen += [one._replace(level=top) for one in single]
    chosen += marked
    by_start = {one.start: one for one in chosen}
    headings, last = list[Section](), dict[str, int]()
    for _, one in sorted(by_start.items()):
        if one.number == "?":
            one = one._replace(number=str(last.get(one.kind, 0) + 1))
        around = (before for before in reversed(headings) if before.level <= one.level)
        before = next(around, None) if one.number else None
        if before is None or before[2:4] != one[2:4] or not (one.kind or before.title == one.title):
            headings.append(one)  # else it is the head of another page, or a line of a marked one
        if one.number.isdecimal():
            last[one.kind] = int(one.number)
    out, later = list[Section](), list[Section]()
    for one in reversed(headings):
        while later and later[-1].level > one.level:
            later.pop()
        end = later[-1].start if later else max(whole, one.start)
        is_contents = is_in_contents(one.start) or fold(one.title) in _CONTENTS
        out.append(one._replace(end=end, is_contents=is_contents))
        later.append(one)
    return out[::-1]


def find_place(document: Document, offset: int) -> TextLocation:
    """Returns where the character at `offset` is, with the heading of the innermost section as its
    chapter if the document's reader has marked none."""
    place = document.place(offset)
    if place.chapter is not None:
        return place
    around = (one for one in find_sections(document) if one.start <= offset < one.end)
    headings = [one.heading for one in around if not one.is_contents]
    return place._replace(chapter=headings[-1] if headings else None)


def _count_contents_lines(named: Sequence[Section]) -> int:
    """Returns how many headings of chapters at the beginning are lines of a contents page that was
    not recognised: they are next to each other, and their numbers come again."""
    seen, last = set[Sequence[object]](), {one[2:4]: at for at, one in enumerate(named)}
    for at, one in enumerate(named):
        is_near = at == 0 or one.start - named[at - 1].start < MIN_GAP
        if one[2:4] in seen or one.level > 2 or not is_near or last[one[2:4]] == at:
            break
        seen.add(one[2:4])
    return len(seen) if len(seen) > 2 else 0


def _nest(named: Sequence[Section]) -> list[Section]:
    """Returns the headings with volumes, books and parts inside each other in the order in which
    the book has them, if one of them stands right below another, as `Book I` below `Part I`."""
    kinds = list(dict.fromkeys(one.kind for one in named if one.level == 1))
    below = {(one.kind, after.kind) for one, after in pairwise(named)}
    level, levels = 1, {kinds[-1]: 1} if kinds else dict[str, int]()
    for outer, inner in reversed(list(pairwise(kinds))):
        level -= (outer, inner) in below
        levels[outer] = level
    return [one._replace(level=levels.get(one.kind, one.level)) for one in named]


def _drop_sentences(text: str, headings: Sequence[Section]) -> Iterator[Section]:
    """Yields the headings without the sentences that are the first lines of chapters, not titles:
    most of the other headings have no line like them."""
    below = [bool(one.title) and not text.startswith(one.heading, one.start) for one in headings]
    kinds = Counter(one.kind for one in headings)
    titled = Counter(one.kind for one, is_below in zip(headings, below, strict=True) if is_below)
    for one, is_below in zip(headings, below, strict=True):
        words = one.title.split()
        is_sentence = 3 * sum(map(str.islower, words)) > len(words) and not one.title[-1].isalnum()
        if is_below and is_sentence and 2 * titled[one.kind] < kinds[one.kind]:
            one = one._replace(heading=one.heading[: -len(one.title) - 1], title="")
        yield one


def _choose_level(kind: str, number: str) -> int:
    return KINDS[kind][1] if kind else 1 + len(re.split("[.-]", number))


def _iterate_marked_headings(marks: Sequence[Mark]) -> Iterator[Section]:
    """Yields the headings that a reader has marked; if all have one level, their numbers count."""
    last, has_levels = None, len({mark.level for mark in marks if mark.level}) > 1
    for mark in marks:
        if mark.chapter and mark.chapter != last:
            kind, number, title = parse_heading(mark.chapter) or ("", "", mark.chapter)
            level = (mark.level if has_levels else None) or _choose_level(kind, number)
            yield Section(mark.chapter, title or mark.chapter, kind, number, level, mark.start)
        last = mark.chapter


def _iterate_heading_lines(document: Document) -> Iterator[Section]:
    """Yields the lines of a text that may be headings, because of how they begin."""
    text, is_dense, is_blank, last, title_end = document.text, _is_dense(document), True, 0, 0
    for found in _LINE.finditer(text[:_MAX_TEXT]):
        line, is_blank = found[0].strip(" \t#"), is_blank or found.start() > last + 1
        before, is_blank, last = is_blank, not line, found.end()
        begins = bool(line) and (line[0].isupper() or line[0].isdecimal() or line[0] in "§第正")
        if not begins or not (before or is_dense or line[0] in "第正"):
            continue
        heading = parse_heading(line)
        if heading is None and found.start() >= title_end and fold(line) in _NAMES:
            heading = "", "", line
        if heading is None:
            continue
        kind, number, title = heading
        after = _BLANK_NEXT.match(text, last) is not None
        is_prose = len(line) > _MAX_HEADING or (line[-1] in "。，；,;" and not (kind and before))
        is_item = title and (title[0].islower() or not any(map(str.isalpha, title)))
        is_item = is_item or not (after or (is_dense and title))
        if kind == "article" and title:
            line, title = line[: len(line) - len(title)].rstrip(), ""
        elif is_prose or (is_item and not kind):
            continue
        elif (
            not title
            and (below := _TITLE_BELOW.match(text, last))
            and (after or (kind and below[1].rstrip()[-1:].isalnum()))  # no sentence
        ):
            words = below[1].strip(" \t\r#")
            other = parse_heading(words)  # `I Go to Bristol` is a title
            if words and (other is None or (other[2] and not other[0])):
                line, title, title_end = f"{line} {words}", words, below.end(1)
        start = found.end() - len(found[0].lstrip(" \t#"))
        yield Section(line, title, kind, number, _choose_level(kind, number), start)


def _choose_chains(candidates: Sequence[Section], min_gap: int) -> Iterator[Section]:
    """Yields the candidates whose numbers continue each other as those of sections do."""
    chains = list[tuple[str, list[Section]]]()
    for one in candidates:
        after = WORD.sub("", one.heading, count=1)[:1].strip()
        style = f"{one.heading[0].isdecimal()}{after}"
        for other_style, chain in reversed(chains):
            if other_style == style and _continues(one.number, chain[-1].number):
                chain.append(one)
                break
        else:
            if one.number in ("1", "1.1", "0"):
                chains.append((style, [one]))
    for _, chain in chains:
        gaps = sorted(after.start - one.start for one, after in pairwise(chain))
        in_capitals = all(one.title.isupper() for one in chain)  # items of lists are not
        if len(gaps) > 1 and gaps[len(gaps) // 2] >= (min_gap // 8 if in_capitals else min_gap):
            yield from chain


def _continues(number: str, earlier: str) -> bool:
    """Whether a number may follow an earlier one: 4.2, 5 or 5.1 after 4.1.3 (`Chapter 5` has the
    number 5 then); one may be missing."""
    new, old = number.split("."), earlier.split(".")
    shared = min(len(new), len(old))
    at = next((at for at in range(shared) if new[at] != old[at]), shared)
    if at < shared:
        both = new[at].isdecimal() and old[at].isdecimal()
        return both and 0 < int(new[at]) - int(old[at]) <= 2 and {*new[at + 1 :]} <= {"1"}
    return len(new) > len(old) and {*new[at:]} == {"1"}


def _is_dense(document: Document) -> bool:
    """Whether empty lines are rare, but for those between the pages of a PDF."""
    text, pages = document.text, len({mark.page for mark in document.marks})
    return (text.count("\n\n") - pages) * _DENSE < text.count("\n")


def _make_key(line: str) -> tuple[str, bool]:
    """Returns the words, of the title if there is one, by which a line of a contents page equals
    its heading, and whether the line ends in a page number after dots, spaces or a comma."""
    line = _LINK.sub("]", line.strip().lstrip("#-*+•[ \t"))
    heading = parse_heading(line)
    if heading and not heading[2]:
        return fold(line), False
    if (page := _PAGE.search(line[-_MAX_HEADING:])) and page.start() > 1:
        line = line[: len(line) - len(page[0])]
    while (heading := parse_heading(line)) and heading[2]:
        line = heading[2]  # of `1. I. The Period`, an item of a numbered list
    has_page = page is not None and _LEADER.search(page[0]) is not None
    return fold(line), has_page


@lru_cache(maxsize=16)
def find_contents(document: Document) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of a document's contents pages and indexes: lines that
    end in page numbers, or that come again in this order, far from each other, as headings."""
    text = document.text
    if len(text) > _MAX_TEXT:
        return []
    lines, places = list[_Line](), dict[str, list[int]]()
    zone, is_dense, last = min(_ZONE, 1000 + len(text) // 8), _is_dense(document), -2
    near = zone  # up to this character, contents pages are looked for
    for found in _LINE.finditer(text):
        start, end = found.span()
        if found[0].isspace():
            continue
        near = len(text) if start > len(text) - zone else near
        is_alone = (start > last + 1 and not is_dense) or found[0].startswith("#")
        key, has_page = "", False
        is_short = end - start <= _MAX_HEADING and found[0].strip()[0] not in _SPEECH
        if is_short and (is_dense or start < near or is_alone):
            key, has_page = _make_key(found[0])
            near = max(near, start + zone) if key in _CONTENTS else near
        if len(key) > 2 or not key.isascii():
            places.setdefault(key, []).append(len(lines))
        lines.append(_Line(start, end, key, has_page, start < near, is_alone))
        last = end
    out, at = list[tuple[int, int]](), 0
    while at < len(lines):
        end = _find_end_of_contents(lines, places, at) if lines[at].may_begin_contents else 0
        if end:
            out.append((lines[at].start, lines[end - 1].end))
        at = max(end, at + 1)
    # Otherwise the document is a list.
    return out if 2 * sum(end - start for start, end in out) < len(text) else []


def _find_end_of_contents(lines: Sequence[_Line], places: dict[str, list[int]], first: int) -> int:
    """Returns the number of the line after a contents page that begins at line `first`, or 0;
    `places` has the numbers of the lines with each key."""
    is_titled = lines[first].key in _CONTENTS  # fewer entries suffice then
    is_behind = is_titled and 2 * first > len(lines)  # a contents page at the end of a book
    first += is_titled
    entries, keys, at = list[int](), set[str](), first
    while at < min(len(lines), (entries or [first])[-1] + (7 if is_titled else 4)):
        line, same = lines[at], places.get(lines[at].key, [at])
        if line.key in keys and len(same) < _MAX_REPEATS:
            break  # the text has begun
        comes_again = same[-1] > at or (is_behind and same[0] < first)
        if line.has_page or (comes_again and len(same) <= _MAX_REPEATS):
            entries.append(at)
            keys.add(line.key)
        elif not is_titled and at == first:
            return 0
        at += 1
    if len(entries) < (3 if is_titled else 5):
        return 0
    end = entries[-1] + 1
    last, again = 0 if is_behind else end, list[int]()  # where the entries are headings
    for same in (places.get(lines[number].key, []) for number in entries):
        at = bisect_right(same, last - 1)
        if at < len(same) <= _MAX_REPEATS and not first <= same[at] < end:
            last = same[at] + 1
            again += [lines[same[at]].start] if is_titled or lines[same[at]].is_alone else []
    size, count = lines[end - 1].end - lines[first].start, end - first
    if len(again) * 3 >= max(count, 7) and again[-1] - again[0] >= 5 * size:
        return end
    paged = sum(lines[number].has_page for number in entries)
    return end if is_titled and 2 * paged >= count else 0
