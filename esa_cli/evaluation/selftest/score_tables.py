"""The tables of `esa selftest`: scores, scores by depth, reasons of misses.

    score     mean over the questions; in brackets its share of the dense score of the same test
    recall    mean over the questions that have one; by layer likewise

Dense rows, the model's own attention inside its window, are the ceiling and not in the tables. A
cell without questions is "–", never 0.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

Row = Mapping[str, Any]
"""One question: `test`, `method`, `length`, `question`, `score` and further fields of the run."""
REASONS = ("answered", "not selected", "selected, not used", "not known")


def wrong(row: Row) -> str:
    """Names what keeps a row of an earlier run from the tables; empty for a valid row."""
    try:
        tables = report([row]) if 0 <= row["score"] <= 1 else []
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    cells = [cell for table in tables for line in table.rows for cell in line]
    is_valid = bool(tables) and all(isinstance(cell, str) for cell in cells)
    return "" if is_valid else "test, method or score is wrong"


class ScoreTable(NamedTuple):
    """A table with the text above it and the remark below it."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    note: str = ""


def report(rows: Sequence[Row]) -> list[ScoreTable]:
    """Makes all tables of a run, test by test."""
    asked = _group_rows((row for row in rows if not row.get("dense")), "test")
    ceilings = _group_rows((row for row in rows if row.get("dense")), "test")
    tables = []
    for test in sorted({*ceilings, *asked}):
        tables.append(_scores(test, asked.get(test, []), ceilings.get(test, [])))
    return [*tables, _misses(asked)] if tables else []


def _group_rows(rows: Iterable[Row], field: str) -> dict[Any, list[Row]]:
    """Groups the rows by a field's value, in order of the values."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[field]].append(row)
    return dict(sorted(groups.items()))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _score(rows: Iterable[Row]) -> float | None:
    return _mean(row["score"] for row in rows)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.0f}"


def _short(n: int) -> str:
    """32000 -> "32k"."""
    size, unit = (1_000_000, "M") if n >= 1_000_000 else (1000, "k") if n >= 1000 else (1, "")
    return f"{n / size:g}{unit}"


def _scores(test: str, rows: Sequence[Row], dense: Sequence[Row]) -> ScoreTable:
    """Methods x lengths: the score, the share of the dense score, and the number of questions."""
    ceiling, lengths, lines = _score(dense), [*_group_rows(rows, "length")], []
    for method, of_method in _group_rows(rows, "method").items():
        by_length, cells = _group_rows(of_method, "length"), []
        for mean in (_score(by_length.get(length, ())) for length in lengths):
            share = f" ({_percent(mean / ceiling)})" if ceiling and mean is not None else ""
            cells.append(_percent(mean) + share)
        counts = [len(cell) for cell in by_length.values()]
        numbers = "–".join(map(str, sorted({min(counts), max(counts)})))
        lines.append([method, *cells, numbers])
    note = "no dense rows, so no share of the dense score"
    if ceiling is not None:
        labels = ", ".join(map(_short, _group_rows(dense, "length")))
        note = f"dense ceiling {_percent(ceiling)} at {labels}, n {len(dense)}"
    title = f"{test}: score in %, in brackets the share of the dense score; n: questions a length"
    return ScoreTable(title, ["method", *map(_short, lengths), "n"], lines, note)


def _misses(by_test: Mapping[str, Sequence[Row]]) -> ScoreTable:
    """Counts of each reason, and the mean recall; all lengths together."""
    lines = []
    for test, rows in by_test.items():
        for method, same in _group_rows(rows, "method").items():
            counts = Counter(row.get("why") or REASONS[-1] for row in same)
            recalls = [row["recall"] for row in same if row.get("recall")]
            layers = map(_mean, zip_longest(*(recall.get("layers") or [] for recall in recalls)))
            least = min((share for share in layers if share is not None), default=None)
            mean = _mean(recall.get("mean") for recall in recalls)
            reasons = (str(counts[name]) for name in REASONS)
            lines.append([test, method, *reasons, _percent(mean), _percent(least)])
    note = (
        "recall: the share of the facts in view, in %, mean over layers (from text: in the first "
        "three passages); least: of the layer with the smallest"
    )
    headers = ["test", "method", *REASONS, "recall", "least"]
    return ScoreTable("Why answers were missed (questions, all lengths)", headers, lines, note)
