"""Offsets of a text's sentences and lines, the units that can be quoted whole.

A newline ends a line of verse, code or a table, but not a line of prose wrapped to a width.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

LONGEST = 600
"""Characters of a piece at most; a longer sentence is cut at its lines, then at spaces."""
PROSE = range(40, 121)
"""Characters of a line that may have been broken to a width."""

_STOPS = "。！？।॥؟۔։።፧။។៕"
"""Ends of sentences in scripts that need no space after them."""
END = re.compile(
    r"[.!?…](?<![.!?…].)[.!?…]*+[\"'”’“‘»«›‹)\]]*+(?=\s|$)"
    rf"|[{_STOPS}][.!?…{_STOPS}]*[\"'”’»」』)\]]*|\n"
)
_SHORT = """
Mr Mrs Ms Dr Prof St Jr Sr Capt Col Gen Fig vs Messrs Lt Sgt Rev Hon Gov Mt Ste Mme Mmes Mlle Mlles
MM Mgr Sra Srta Dra Hr Sig Dott Avv Chr Mio Mrd bzw ggf inkl vgl sog evtl ca approx viz cf ул им
"""
SHORT = frozenset(_SHORT.split())
"""Abbreviations before a name or a noun: their full stop ends no sentence."""
_NUMBERED = """
no nos nr nrs p pp vol vols fig figs art arts ch chap cap sec sect par abs kap abb bd ed tab eq para
núm pág págs pag pagg стр рис гл табл
"""
NUMBERED = frozenset(_NUMBERED.split())
"""Abbreviations, in lower case, that end no sentence before a number."""
LETTERS = re.compile(r"(?<!\w)(\w+)\.$")
OF_SEVERAL = re.compile(r"(?<!\w)(?!(?:a|p)\.\s?m\.)[a-z]\.\s?[a-z]\.$")
"""The end of an abbreviation of several letters (`i.e.`, `z. B.`); the hours a.m. and p.m. may end
a sentence."""
MORE_LETTERS = re.compile(r"\s?[^\W\d_]\.(?!\w\w)")
_MONTHS = (
    "Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember"
)
DATED = re.compile(rf"\s(?:(?:{_MONTHS}|Jahrhundert|Jh)\b|\d{{1,2}}\.\s?\d{{2,4}}\b)")
"""What follows the day in a German date, or the number of a century."""
ORDINAL = re.compile(r"\b(?:der|das|dem|den|des|im|vom|zum|zur|beim)\s\d{1,2}\.$")
MONTH_NUMBER = re.compile(r"\b\d{1,2}\.\s?\d{1,2}\.$")
LOOK_BACK = 24
"""Characters before and after a full stop that tell whether it ends a sentence."""
WORDS = 5


class Sentences:
    """The sentences of a text; a paragraph is split when one of its characters is first asked
    for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._cut: dict[int, list[int]] = {}

    def sentence_around(self, at: int) -> tuple[int, int]:
        """Returns [start, end) of the sentence or line around character `at`, without white space
        at its ends. The span is empty if the text has only white space."""
        place = bisect_right(self._paragraphs, at) - 1
        first = self._paragraphs[place] if place >= 0 else 0
        if first not in self._cut:
            last = self.text.find("\n\n", first)
            last = len(self.text) if last < 0 else last
            self._cut[first] = [first, *cut_sentences(self.text, first, last)]
        edges = self._cut[first]
        place = min(max(bisect_right(edges, at), 1), len(edges) - 1)
        return strip_span(self.text, edges[place - 1], edges[place])

    @cached_property
    def _paragraphs(self) -> array[int]:
        """Starts of all paragraphs but the first: after each two consecutive newlines."""
        starts, at = array("q"), self.text.find("\n\n")
        while at >= 0:
            starts.append(at + 2)
            at = self.text.find("\n\n", at + 1)
        return starts


def cut_sentences(text: str, first: int, last: int) -> list[int]:
    """Returns the ascending ends of the sentences and lines of the paragraph [first, last), each of
    at most LONGEST characters; the last end is `last`."""
    ends: list[int] = []
    start = first
    for end in (*_sentence_ends(text, first, last), last):
        while end - start > LONGEST:
            cut = text.rfind("\n", start + 1, start + LONGEST)
            cut = cut if cut > start else text.rfind(" ", start + 1, start + LONGEST)
            start = cut + 1 if cut > start else start + LONGEST
            ends.append(start)
        ends.append(end)
        start = end
    return ends


def _sentence_ends(text: str, first: int, last: int) -> Iterator[int]:
    line = first
    for found in END.finditer(text, first, last):
        end = found.end()
        if found[0] != "\n":
            if not (
                text[end : end + 40].lstrip()[:1].islower() or _is_abbreviation(text, first, end)
            ):
                yield end
            continue
        broken, line = text[line : end - 1], end
        if not _continues_on_next_line(broken, text[end : end + 1]):
            yield end


def _is_abbreviation(text: str, first: int, end: int) -> bool:
    """Returns True if the full stop before `end` belongs to an abbreviation or an ordinal number,
    so that the sentence continues."""
    before = text[max(first, end - LOOK_BACK) : end]
    found = LETTERS.search(before)
    if found is None:
        return False
    word, following_text = found[1], text[end : end + LOOK_BACK]
    if word in SHORT or (len(word) == 1 and word.isupper()):
        return True
    number = following_text.lstrip()[:1].isdigit()
    if len(word) == 1 and word.isalpha():
        return bool(number or OF_SEVERAL.search(before) or MORE_LETTERS.match(following_text))
    if word.isdigit() and len(word) <= 2:
        month = number and MONTH_NUMBER.search(before)
        return bool(month or DATED.match(following_text) or ORDINAL.search(before))
    return number and word.lower() in NUMBERED


def _continues_on_next_line(line: str, following_text: str) -> bool:
    """Returns True if a line of prose was wrapped to a width, so that its sentence may continue."""
    if not (following_text.isalpha() or following_text in "\"'“‘("):
        return False
    return len(line) in PROSE and len(line.split()) >= WORDS and line[:1] not in "#|>-*"


def strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns the span [start, end) of a text without white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
