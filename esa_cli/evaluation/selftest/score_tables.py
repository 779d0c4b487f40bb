"""Makes the tables of `esa selftest` with methods' scores and with reasons for missed answers.

The brackets after a method's score contain the score divided by the score of full attention."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import Any, NamedTuple

Row = Mapping[str, Any]
"""A row of a self-test: `test`, `method`, `length`, `question`, `score` and further fields."""
REASONS = ("answered", "not selected", "selected, not used", "not known")


def describe_invalid_row(row: Row) -> str:
    """Says what is wrong with a self-test's result row from a file, or returns an empty text."""
    try:
        tables = make_score_tables([row]) if 0 <= row["score"] <= 1 else []
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    cells = [cell for table in tables for line in table.rows for cell in line]
    is_valid = bool(tables) and all(isinstance(cell, str) for cell in cells)
    return "" if is_valid else "the value of test, method or score is wrong"


class ScoreTable(NamedTuple):
    """A table for the terminal, with a title above the table and a note below."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    note: str = ""


def make_score_tables(rows: Sequence[Row]) -> list[ScoreTable]:
    """Makes a table of scores for each test, and a table of the reasons for missed answers."""
    asked = _group_rows((row for row in rows if not row.get("dense")), "test")
    ceilings = _group_rows((row for row in rows if row.get("dense")), "test")
    tables = []
    for test in sorted({*ceilings, *asked}):
        tables.append(_make_score_table(test, asked.get(test, []), ceilings.get(test, [])))
    return [*tables, _make_missed_answer_table(asked)] if tables else []


def _group_rows(rows: Iterable[Row], field_name: str) -> dict[Any, list[Row]]:
    """Groups result rows by the value of a field, with the values in ascending order."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[field_name]].append(row)
    return dict(sorted(groups.items()))


def _average_known_values(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _average_scores(rows: Iterable[Row]) -> float | None:
    return _average_known_values(row["score"] for row in rows)


def _format_percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.0f}"


def _abbreviate_number(n: int) -> str:
    """Abbreviates a large number, for example 32000 as "32k"."""
    size, unit = (1_000_000, "M") if n >= 1_000_000 else (1000, "k") if n >= 1000 else (1, "")
    return f"{n / size:g}{unit}"


def _make_score_table(test: str, rows: Sequence[Row], dense_rows: Sequence[Row]) -> ScoreTable:
    ceiling, lengths, lines = _average_scores(dense_rows), [*_group_rows(rows, "length")], []
    for method, of_method in _group_rows(rows, "method").items():
        by_length, cells = _group_rows(of_method, "length"), []
        for mean in (_average_scores(by_length.get(length, ())) for length in lengths):
            share = f" ({_format_percent(mean / ceiling)})" if ceiling and mean is not None else ""
            cells.append(_format_percent(mean) + share)
        counts = [len(cell) for cell in by_length.values()]
        numbers = "–".join(map(str, sorted({min(counts), max(counts)})))
        lines.append([method, *cells, numbers])
    note = "full attention was not measured, so shares of the dense score are missing"
    if ceiling is not None:
        labels = ", ".join(map(_abbreviate_number, _group_rows(dense_rows, "length")))
        note = f"dense ceiling {_format_percent(ceiling)} at {labels}, n {len(dense_rows)}"
    title = f"{test}: score in % (in brackets share of the dense score); n: questions per length"
    return ScoreTable(title, ["method", *map(_abbreviate_number, lengths), "n"], lines, note)


def _make_missed_answer_table(rows_by_test: Mapping[str, Sequence[Row]]) -> ScoreTable:
    lines = []
    for test, rows in rows_by_test.items():
        for method, same in _group_rows(rows, "method").items():
            counts = Counter(row.get("why") or REASONS[-1] for row in same)
            recalls = [row["recall"] for row in same if row.get("recall")]
            by_layer = zip_longest(*(recall.get("layers") or [] for recall in recalls))
            means = map(_average_known_values, by_layer)
            least = min((share for share in means if share is not None), default=None)
            mean = _average_known_values(recall.get("mean") for recall in recalls)
            reasons = (str(counts[name]) for name in REASONS)
            lines.append([test, method, *reasons, _format_percent(mean), _format_percent(least)])
    note = (
        "recall: share of the facts in view, in %, mean over layers (from text: in the first "
        "three passages); least: recall of the layer with the smallest recall"
    )
    headers = ["test", "method", *REASONS, "recall", "least"]
    return ScoreTable("Why answers were missed (questions, all lengths)", headers, lines, note)
