"""Finds the chapters and sections of a document, and its contents pages and indexes.

Headings are the chapters that the document's reader has marked, and lines such as `CHAPTER III.`,
`Erstes Kapitel`, `第三回` or `4.15 Ambient Declarations`. Lines that only begin with a number are
headings if their numbers ascend and enough text is between them, which lists do not have.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from esa_cli.documents.document import Document
from esa_cli.documents.readers.text_builder import Mark

_KINDS = """
1 volume band tome tomo том|1 book buch livre libro книга|1 part teil partie parte deel часть 部 卷
2 chapter kapitel chapitre capitulo capitolo hoofdstuk глава 章 回|2 letter brief lettre carta
2 adventure|2 canto gesang chant|2 act akt acte acto|2 appendix anhang annexe apendice anexo
3 scene szene escena|3 section abschnitt seccion sezione раздел 节 節|3 paragraph §
3 article art artikel articulo articolo статья 条 條
"""
KINDS = {
    word: (words[0], int(level))
    for level, *words in map(str.split, re.split(r"[|\n]", _KINDS.strip()))
    for word in words
}
"""Word before a number in headings, without accents -> its English name, and its level."""
_NUMBER_WORDS = """
one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth
erst zweit dritt viert funft sechst siebt acht neunt zehnt elft zwolft dreizehnt vierzehnt
premier deuxieme troisieme quatrieme cinquieme sixieme septieme huitieme neuvieme dixieme onzieme
primer segund tercer cuart quint sext septim octav noven decim
"""
_NUMBERS = {
    word: number
    for words in [*_NUMBER_WORDS.strip().split("\n"), "premiere seconde"]
    for number, word in enumerate(words.split(), 1)
}
_ROMAN = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_CHINESE_DIGITS = {letter: number for number, letter in enumerate("零一二三四五六七八九")}
_CHINESE_DIGITS |= {"〇": 0, "两": 2, "兩": 2}
_CHINESE_UNITS = {"十": 10, "百": 100, "千": 1000}
_CHINESE_NUMBER = "[\\d〇零一二三四五六七八九十百千两兩]{1,7}"
CHINESE = re.compile(rf"(?:正文 ?)?第({_CHINESE_NUMBER})([章回节節条條卷部])")
WORD = re.compile(r"§|[^\W_]+(?:[.-]\d+)*")
_ORDINAL = re.compile(r"t(?:es|er|e)$")
_SEPARATORS = " \t\u3000.:)—–-、："
_LINE = re.compile(r"[^\n]+")
_BLANK_NEXT = re.compile(r"[ \t\r]*(?:\n[ \t\r]*(?:\n|$)|$)")
_MAX_HEADING = 120
"""The maximum length of a line that is a heading, in characters."""
_MIN_GAP = 400
"""The minimum median of characters between headings that only begin with a number."""
_DENSE = 20
"""A text with fewer empty lines than one in so many has none around its headings."""
_ZONE = 40_000
"""The number of characters at both ends of a text, and below headings such as "Contents", where
contents pages are looked for."""
_MAX_TEXT = 20_000_000
"""The number of characters of a text from which on it is not searched for headings."""
_CONTENTS = frozenset(
    [
        "contents",
        "table of contents",
        "index",
        "inhalt",
        "inhaltsverzeichnis",
        "sachregister",
        "sommaire",
        "table des matieres",
        "indice",
        "indice general",
        "tabla de contenidos",
        "indice analitico",
        "inhoud",
        "sumario",
        "indice alfabetico",
        "目录",
        "目錄",
        "目次",
        "索引",
        "содержание",
        "оглавление",
    ]
)
"""The headings, without accents, of contents pages and indexes."""
_PAGE_AT_END = re.compile(
    r"(?:[ \t]|\.\.|\. |…|,)[ .…,–-]*(?:\d{1,4}(?:[-–]\d{1,4})?|[ivxlc]{1,6})[,.]?$"
)
_LINK = re.compile(r"\]\([^()]*\)")
_NOT_WORD = re.compile(r"[\W_]+")


class Section(NamedTuple):
    """A chapter or section of a document.

    Args:
        heading: its heading, as in the document. title: the heading without kind and number.
        kind: what the heading calls it, in English, such as `chapter`, or "".
        number: such as `3` or `4.15`, or "". level: sections contain those of higher levels.
        start, end: characters [start, end) of the document, with its heading.
        is_contents: whether it is a contents page or an index."""

    heading: str
    title: str
    kind: str
    number: str
    level: int
    start: int
    end: int = 0
    is_contents: bool = False


def find_sections(document: Document) -> list[Section]:
    """Returns the chapters and sections of a document in the order of the text."""
    return _find_sections(document.text, document.marks)


def find_contents(document: Document) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of a document's contents pages and indexes: lines that
    end in page numbers, or that come again in this order, far from each other, as headings."""
    return _find_contents(document.text, document.marks)


def fold(text: str) -> str:
    """Returns a text in lower case, without accents, and with one space for other characters than
    letters and digits."""
    if not text.isascii():
        letters = unicodedata.normalize("NFKD", text)
        text = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return _NOT_WORD.sub(" ", text.casefold()).strip()


def parse_number(word: str) -> str:
    """Returns the number that a word means, such as `3` for `III`, `third` or `三`, or ""."""
    if word[:1].isdecimal():
        return re.sub(r"\d+", lambda digits: str(int(digits[0])), word)
    if word and _ROMAN.fullmatch(word):
        values = [_ROMAN_DIGITS[letter] for letter in word]
        pairs = zip(values, [*values[1:], 0], strict=True)
        return str(sum(-value if value < following else value for value, following in pairs))
    if word and all(letter in _CHINESE_DIGITS or letter in _CHINESE_UNITS for letter in word):
        total, digit = 0, 0
        for letter in word:
            if unit := _CHINESE_UNITS.get(letter):
                total, digit = total + (digit or 1) * unit, 0
            else:
                digit = _CHINESE_DIGITS[letter]
        return str(total + digit)
    folded = fold(word)
    ends = (folded, folded[:-1], folded[:-2])
    return next((str(_NUMBERS[end]) for end in ends if end in _NUMBERS), "")


def parse_heading(line: str) -> tuple[str, str, str] | None:
    """Returns the kind, number and title of a line that begins as headings with a number do; the
    number is `?` if it is a German ordinal that is not known."""
    if chinese := CHINESE.match(line):
        kind, number, end = KINDS[chinese[2]][0], parse_number(chinese[1]), chinese.end()
        return kind, number, line[end:].lstrip(_SEPARATORS)
    words = list(_iterate_words(line, 3))
    if len(words) > 1 and words[1][0] == "the":  # `Book the First`
        del words[1]
    if not words or words[0][1] > 0:
        return None
    (first, _, end), kind = words[0], KINDS.get(fold(words[0][0]) or words[0][0])
    number = parse_number(first)
    if len(words) > 1:
        second, _, second_end = words[1]
        other = KINDS.get(fold(second))
        if kind and (number := parse_number(second)):
            end = second_end
        elif other and (number or _ORDINAL.search(first)) and not first[0].isdecimal():
            kind, number, end = other, number or "?", second_end
    if not number or (not kind and fold(first) in _NUMBERS):
        return None
    title = line[end:].lstrip(_SEPARATORS)
    apart = line[end : len(line) - len(title)].strip(" \t") or line[end : end + 2].isspace()
    if title and not apart and (title[0].islower() or not line[end].isspace()):
        return None
    return kind[0] if kind else "", number, title


def _iterate_words(line: str, most: int) -> Iterator[tuple[str, int, int]]:
    """Yields the first words of a line with the offsets of their beginnings and ends."""
    for _, found in zip(range(most), WORD.finditer(line[:_MAX_HEADING]), strict=False):
        yield found[0], *found.span()


@lru_cache(maxsize=16)
def _find_sections(text: str, marks: tuple[Mark, ...]) -> list[Section]:
    contents = _find_contents(text, marks)
    starts = [start for start, _ in contents]

    def is_in_contents(offset: int) -> bool:
        at = bisect_right(starts, offset) - 1
        return at >= 0 and offset < contents[at][1]

    marked = list(_iterate_marked_headings(text, marks))
    whole = text.find("*** END OF TH")  # of a book of Project Gutenberg
    whole = whole if whole > 0 else len(text)
    lines = _iterate_heading_lines(text, marks)
    found = [one for one in lines if one.start < whole and not is_in_contents(one.start)]
    named = [one for one in found if one.kind] if len(marked) < 2 else []
    numbered = [one for one in found if not one.kind]
    if len(marked) > 1 or sum(one.level > 1 for one in named) > 2:
        numbered = [one for one in numbered if "." in one.number]
    by_start = {one.start: one for one in (*_choose_chains(numbered), *named, *marked)}
    headings, last = list[Section](), dict[str, int]()
    for _, one in sorted(by_start.items()):
        if one.number == "?":
            one = one._replace(number=str(last.get(one.kind, 0) + 1))
        repeats = headings and headings[-1][2:4] == one[2:4] and one.number and one.kind
        if not repeats:  # else it is the head of another page
            headings.append(one)
        if one.number.isdecimal():
            last[one.kind] = int(one.number)
    out, later = list[Section](), list[Section]()
    for one in reversed(headings):
        while later and later[-1].level > one.level:
            later.pop()
        end = later[-1].start if later else max(whole, one.start)
        own = is_in_contents(one.start) or fold(one.title) in _CONTENTS
        out.append(one._replace(end=end, is_contents=own))
        later.append(one)
    return out[::-1]


def _iterate_marked_headings(text: str, marks: Iterable[Mark]) -> Iterator[Section]:
    """Yields the headings that the reader of a format has marked."""
    last = None
    for mark in marks:
        if mark.chapter and mark.chapter != last:
            hashes = re.match("#{1,6}", text[mark.start : mark.start + 6])
            kind, number, title = parse_heading(mark.chapter) or ("", "", mark.chapter)
            level = len(hashes[0]) if hashes else _choose_level(kind, number)
            yield Section(mark.chapter, title or mark.chapter, kind, number, level, mark.start)
        last = mark.chapter


def _choose_level(kind: str, number: str) -> int:
    depth = 1 + len(re.split("[.-]", number)) if number else 2
    return KINDS[kind][1] if kind else depth


def _iterate_heading_lines(text: str, marks: Sequence[Mark]) -> Iterator[Section]:
    """Yields the lines of a text that may be headings, because of how they begin."""
    if len(text) > _MAX_TEXT:
        return
    is_dense, is_blank, last = _has_few_blank_lines(text, marks), True, 0
    for found in _LINE.finditer(text):
        line, is_blank = found[0].strip(" \t#"), is_blank or found.start() > last + 1
        before, is_blank, last = is_blank, not line, found.end()
        if not line or not (line[0].isupper() or line[0].isdecimal() or line[0] in "§第正"):
            continue
        if not (before or is_dense or line[0] in "第正"):
            continue
        if (heading := parse_heading(line)) is None:
            continue
        kind, number, title = heading
        follows_blank = bool(_BLANK_NEXT.match(text, last))
        if kind == "article" and title:
            line, title = line[: len(line) - len(title)].rstrip(), ""
        elif (
            len(line) > _MAX_HEADING
            or (line[-1] in "。，；,;" and not (kind and before))
            or (not kind and not (follows_blank or (is_dense and title)))
            or (not kind and title and not _is_title(title))
        ):
            continue
        if not title and follows_blank and kind != "article":
            below = re.compile(r"\s*([^\n]{1,80})\n[ \t\r]*\n").match(text, last)
            if below and not parse_heading(below[1].strip()):
                title = below[1].strip()
                line = f"{line} {title}"
        start = found.start() + len(found[0]) - len(found[0].lstrip(" \t#"))
        yield Section(line, title, kind, number, _choose_level(kind, number), start)


def _is_title(words: str) -> bool:
    """Whether the words after a number may be the title of a section, and not an item of a list."""
    return not words[0].islower() and any(map(str.isalpha, words)) and len(words) <= 90


def _choose_chains(candidates: Sequence[Section]) -> Iterator[Section]:
    """Yields the candidates whose numbers continue each other as those of sections do."""
    chains = list[tuple[str, list[Section]]]()
    for one in candidates:
        end = len(WORD.match(one.heading)[0])
        style = one.heading[end : end + 1].strip() + str(one.heading[0].isdecimal())
        for chain in reversed(chains):
            if chain[0] == style and _continues(one.number, chain[1][-1].number):
                chain[1].append(one)
                break
        else:
            if one.number in ("1", "1.1", "0"):
                chains.append((style, [one]))
    for _, chain in chains:
        gaps = sorted(after.start - one.start for one, after in pairwise(chain))
        if len(gaps) > 1 and gaps[len(gaps) // 2] >= _MIN_GAP:
            yield from chain


def _continues(number: str, earlier: str) -> bool:
    """Whether the number of a section may follow an earlier one: 4.2 or 5 after 4.1.3; one number
    may be missing."""
    new, old = number.split("."), earlier.split(".")
    if len(new) > len(old):
        return new[: len(old)] == old and all(part == "1" for part in new[len(old) :])
    at = len(new) - 1
    if new[:at] != old[:at] or not (new[at].isdecimal() and old[at].isdecimal()):
        return False
    return 0 < int(new[at]) - int(old[at]) <= 2


def _make_key(line: str) -> tuple[str, bool]:
    """Returns the words by which a line of a contents page and its heading are equal, and whether
    the line ends in a page number after dots, spaces or a comma. Kind and number are left out if a title follows them."""
    line = _LINK.sub("]", line.strip().lstrip("#-*+•[ \t"))
    heading = parse_heading(line)
    if heading and not heading[2]:
        return fold(line), False
    page = _PAGE_AT_END.search(line[-_MAX_HEADING:])
    bare = line[: len(line) - len(page[0])] if page and page.start() > 1 else line
    heading = parse_heading(bare)
    title = fold(heading[2]) if heading and heading[2] else ""
    is_apart = page is not None and re.search(r"\.\.|\. |…|,|[ \t]{3}", page[0]) is not None
    return title or fold(bare if heading is None else line), is_apart


class _Line(NamedTuple):
    start: int
    end: int
    key: str
    has_page: bool
    watched: bool
    is_alone: bool


@lru_cache(maxsize=16)
def _find_contents(text: str, marks: tuple[Mark, ...]) -> list[tuple[int, int]]:
    if len(text) > _MAX_TEXT:
        return []
    lines, places = list[_Line](), dict[str, list[int]]()
    zone, is_dense = min(_ZONE, 1000 + len(text) // 8), _has_few_blank_lines(text, marks)
    last, watched = -2, zone  # characters up to `watched` may be a contents page
    for found in _LINE.finditer(text):
        start, end = found.span()
        if found[0].isspace():
            continue
        watched = max(watched, len(text) if start > len(text) - zone else 0)
        key, has_page = "", False
        if end - start <= _MAX_HEADING and (is_dense or start < watched or start > last + 1):
            key, has_page = _make_key(found[0])
            watched = max(watched, start + zone if key in _CONTENTS else 0)
        if len(key) > 2 or not key.isascii():
            places.setdefault(key, []).append(len(lines))
        is_alone = found[0].startswith("#") or (start > last + 1 and not is_dense)
        lines.append(_Line(start, end, key, has_page, start < watched, is_alone))
        last = end
    out, at = list[tuple[int, int]](), 0
    while at < len(lines):
        titled = lines[at].key in _CONTENTS
        end = _find_end_of_contents(lines, places, at + titled, titled) if lines[at].watched else 0
        if end:
            out.append((lines[at].start, lines[end - 1].end))
        at = max(end, at + 1)
    # Otherwise the document is a list.
    return out if 2 * sum(end - start for start, end in out) < len(text) else []


def _find_end_of_contents(
    lines: Sequence[_Line], places: dict[str, list[int]], first: int, is_titled: bool
) -> int:
    """Returns the number of the line after a contents page that begins at line `first`, or 0.

    Args:
        places: the numbers of the lines with each key.
        is_titled: whether a heading such as "Contents" is above; fewer lines suffice then."""
    entries, keys, at, paged = list[int](), set[str](), first, 0
    is_behind = 2 * first > len(lines)  # a contents page at the end of a book
    while at < min(len(lines), (entries or [first])[-1] + (7 if is_titled else 4)):
        line, same = lines[at], places.get(lines[at].key, [at])
        if line.key in keys and len(same) <= 3:
            break  # the text has begun
        comes_again = same[-1] > at or (is_titled and is_behind and same[0] < first)
        if line.has_page or (comes_again and len(same) <= 4):
            entries.append(at)
            keys.add(line.key)
            paged += line.has_page
        elif not is_titled and at == first:
            return 0  # a page begins with an entry
        at += 1
    if len(entries) < (3 if is_titled else 5):
        return 0
    end = last = entries[-1] + 1
    if is_behind:
        last = 0
    again = list[int]()  # where the entries are headings
    for number in entries:
        same = places.get(lines[number].key, [])
        at = bisect_right(same, last - 1)
        if len(same) <= 4 and at < len(same) and not first <= same[at] < end:
            last = same[at] + 1
            if is_titled or lines[same[at]].is_alone:
                again.append(lines[same[at]].start)
    size, count = lines[end - 1].end - lines[first].start, end - first
    if len(again) * 3 >= max(count, 7) and again[-1] - again[0] >= 5 * size:
        return end
    return end if is_titled and 2 * paged >= count else 0


def _has_few_blank_lines(text: str, marks: Sequence[Mark]) -> bool:
    """Whether empty lines are rare, but for those between the pages of a PDF."""
    pages = len({mark.page for mark in marks})
    return (text.count("\n\n") - pages) * _DENSE < text.count("\n")
