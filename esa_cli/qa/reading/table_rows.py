"""The rows of a table in a passage, and the one row that a question names, which has more words of
the question than all others. Readers read this row alone, or they may quote from the next row."""

from __future__ import annotations

from collections import Counter

from esa_cli.documents.document import CELL, is_table_row
from esa_cli.qa.finding.words import find_sentence_spans, find_shared_words


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


def skip_column_name(row: str, start: int, end: int) -> int:
    """Returns the start of an answer, `row[start:end]`, without the end of its column's name."""
    cell_end = row.find(";", start, end)
    name = CELL.match(row, start, cell_end if cell_end >= 0 else end)
    return name.end() if name and is_table_row(row) else start
