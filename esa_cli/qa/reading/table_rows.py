"""The cells of a table in a passage, of which a quotation is in one; the row that a question names
by more words than all others, which readers read alone, or they may quote from the next row; and
the cells of a column that a question names, or they may quote from the next column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Set
from itertools import pairwise

from esa_cli.documents.document import CELL, is_table_row
from esa_cli.qa.finding.words import find_sentence_spans, find_shared_words
from esa_cli.system.text import find_content_words

_HEADING = re.compile(
    r"^#{1,6} .*$"
    r"|(?:\A|(?<=\n\n))(?![-*+•a-z])[^\n]{1,60}(?<![.!?…:;,])(?=\n\n[^a-z\n][^\n]{40})",
    re.MULTILINE,
)
"""Matches a heading of Markdown, or a short line between empty ones above a longer line; a passage
may begin inside a heading, in which a sentence may end: `Chapter 2. Leave`."""
_LATER_WORD = re.compile(r"(?<=[^.?!:][\s(\"'„“«])\w+")
"""Matches a word that does not begin a sentence, where it has a capital in any case."""
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_NOW = re.compile(
    r"\b(?:now|nowadays|current(?:ly)?|at (?:the moment|present)|today|this year"
    r"|jetzt|derzeit|zurzeit|momentan|aktuell\w*|diese[sm] Jahr|heuer|heute"
    r"|maintenant|actuellement|en ce moment|aujourd['’]hui|cette année"
    r"|ahora|actualmente|hoy|este año)\b",
    re.IGNORECASE,
)
"""Matches words that ask for the present state."""
_NEXT_CELL = re.compile(rf"; (?={CELL.pattern})| \| ")


def find_named_row(passage: str, question: str) -> tuple[int, int]:
    """Returns the characters [start, end) of the row that a question names, or of the whole passage
    if the passage has fewer than two rows, or the question names no row or several."""
    whole, sentences = (0, len(passage)), find_sentence_spans(passage)
    rows = [span for span in sentences if is_table_row(passage[slice(*span)])]
    if len(rows) < 2:
        return whole
    words = Counter[tuple[int, int]]()
    for start, end in sentences:
        shared = find_shared_words(passage[start:end], question)
        words[start, end] = len({passage[start + a : start + b].lower() for a, b in shared})
    (best, most), (_, second) = words.most_common(2)
    return best if best in rows and most > second else whole


def find_cell_ends(passage: str) -> list[int]:
    """Returns the ascending offsets where a table's rows, cells and headings end."""
    rows = [span for span in find_sentence_spans(passage) if is_table_row(passage[slice(*span)])]
    cells = ([one.start() for one in _NEXT_CELL.finditer(passage, *row)] for row in rows)
    found = [end for row, ends in zip(rows, cells, strict=True) for end in (*ends, row[1])]
    return sorted({*found, *(one.end() for one in _HEADING.finditer(passage))})


def find_other_cells(passage: str, question: str) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of the cells of each row in which the answer is not: the
    question has more names and numbers of another column ("at Delft" of `Delft: 4`), or asks what
    is now, and another column's name has a later year. A cell whose value the question has is no
    answer to it, and so names no column."""
    words = [word for word in _LATER_WORD.findall(question) if find_content_words(word)]
    names = {word.lower() for word in words if word[0].isupper() or word.isdecimal()}
    asks_now = bool(_NOW.search(question)) and not _YEAR.search(question)
    others = list[tuple[int, int]]()
    for start, end in find_sentence_spans(passage) if names or asks_now else ():
        if is_table_row(passage[start:end]):
            ends = [one.start() for one in _NEXT_CELL.finditer(passage, start, end)]
            cells = list(pairwise([start, *ends, end]))
            parts = [passage[slice(*cell)].lstrip("; ").partition(": ") for cell in cells]
            counts = [_count_names_of_column(name, value, names) for name, _, value in parts]
            dates = [_YEAR.findall(name) if value else () for name, _, value in parts]
            years = [max(map(int, one), default=0) for one in dates]
            latest = max(years) if asks_now else 0
            others += [
                cell for cell, count, year in zip(cells, counts, years, strict=True)
                if count < max(counts) or 0 < year < latest
            ]  # fmt: skip
    return others


def _count_names_of_column(name: str, value: str, names: Set[str]) -> int:
    in_name, in_value = (names & {*re.findall(r"\w+", part.lower())} for part in (name, value))
    return 0 if not value or in_value else len(in_name)


def skip_column_name(passage: str, start: int, end: int) -> int:
    """Returns the start of an answer, `passage[start:end]`, without its column's name."""
    row = passage[passage.rfind("\n", 0, start) + 1 :].partition("\n")[0]
    name = CELL.match(passage, start, end) if is_table_row(row) else None
    return name.end() if name else start
