"""Statistics of self-test rows: means, intervals, recall, reasons and times.

A cell is one test, one method, one length. Without questions there is no cell, and never a 0.

    mean      sum of the scores / n
    interval  Wilson's 95 % interval of mean * n successes in n trials. A score between 0 and 1
              counts as that share of a success, for which the interval is a little too wide.
              It covers the choice of questions only.
    retained  mean / mean of the same test's dense rows, all their lengths pooled
    recall    mean over the questions that have one; per layer likewise
    read_s    mean over the rows that give it: a row repeats the time of the read that served it

Dense rows, the model's own attention inside its window, are kept apart: they are the ceiling.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

BINS = 10
Z95 = 1.959963984540054
REASONS = ("answered", "not selected", "selected, not used")
UNKNOWN = "not known"
"""In place of a `why` of null."""


@dataclass(frozen=True)
class Cell:
    """The figures of one test and method at one length, or of all lengths (`length` None).

    `low` and `high` bound the 95 % interval of `mean`. `layers` has a mean recall for every layer.
    `why` counts the reasons that came up.
    """

    test: str
    method: str
    length: int | None
    n: int
    sum: float
    mean: float
    low: float
    high: float
    retained: float | None
    recall: float | None
    layers: tuple[float | None, ...]
    why: dict[str, int]
    read_s: float | None
    ask_s: float | None


@dataclass(frozen=True)
class Summary:
    """All figures of a run, sorted by test, method, length and depth.

    `cells` and `bins` hold no dense rows. `pooled` is `cells` over all lengths, `dense` the dense
    rows by length, and `ceilings` the dense rows of a test over all lengths. A bin is a cell of the
    questions whose fact lies in one tenth of the document; its key ends with the tenth, from 0.
    """

    tests: tuple[str, ...]
    cells: tuple[Cell, ...]
    pooled: tuple[Cell, ...]
    dense: tuple[Cell, ...]
    ceilings: tuple[Cell, ...]
    bins: dict[tuple[Any, ...], Cell]

    @property
    def every_method(self) -> list[str]:
        """The methods of all tests; a method's place chooses its colour."""
        return sorted({cell.method for cell in self.pooled})

    def methods(self, test: str) -> list[str]:
        return [cell.method for cell in self.pooled if cell.test == test]

    def lengths(self, test: str) -> list[int]:
        """The lengths at which anything but the dense model was asked."""
        return sorted({cell.length or 0 for cell in self.cells if cell.test == test})

    def cell(self, test: str, method: str, length: int | None = None) -> Cell | None:
        """The figures there; over all lengths when `length` is None; None when none were asked."""
        return self._cells.get((test, method, length))

    def ceiling(self, test: str) -> Cell | None:
        return next((cell for cell in self.ceilings if cell.test == test), None)

    def has_depths(self, test: str) -> bool:
        return any(key[0] == test for key in self.bins)

    def depths(self, test: str, method: str, length: int) -> list[Cell | None]:
        """One entry a tenth of the document; None where nothing was asked."""
        return [self.bins.get((test, method, length, tenth)) for tenth in range(BINS)]

    @cached_property
    def _cells(self) -> dict[tuple[Any, ...], Cell]:
        return {(c.test, c.method, c.length): c for c in (*self.cells, *self.pooled)}


def summarise(rows: Iterable[Row]) -> Summary:
    """The figures of `rows`, which may be in any order."""
    every = list(rows)
    plain = [row for row in every if not row.get("dense")]
    dense = [row for row in every if row.get("dense")]
    ceilings = [_cell((*key, "dense"), group, None) for key, group in _groups(dense, "test")]
    best = {cell.test: cell.mean for cell in ceilings}
    keys = ("test", "method", "length")
    deep = [row for row in plain if row.get("depth") is not None]
    placed = [{**row, "bin": depth_bin(row["depth"])} for row in deep]
    return Summary(
        tests=tuple(sorted({row["test"] for row in every})),
        cells=tuple(_cell(key, group, best.get(key[0])) for key, group in _groups(plain, *keys)),
        pooled=tuple(
            _cell(key, group, best.get(key[0])) for key, group in _groups(plain, *keys[:2])
        ),
        dense=tuple(_cell(key, group, None) for key, group in _groups(dense, *keys)),
        ceilings=tuple(ceilings),
        bins={key: _cell(key, group, None) for key, group in _groups(placed, *keys, "bin")},
    )


def wilson(mean: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share `mean` of `n` trials."""
    spread = Z95 * Z95 / n
    centre = (mean + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(mean * (1 - mean) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def depth_bin(depth: float) -> int:
    """The tenth with `depth` in it; a depth meant to be on an edge counts in the one after."""
    return min(int(depth * BINS + 1e-9), BINS - 1)


def _groups(rows: Iterable[Row], *keys: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    """The rows with equal values at `keys`, sorted by these values."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return sorted(groups.items())


def _cell(key: tuple[Any, ...], rows: Sequence[Row], ceiling: float | None) -> Cell:
    n, total = len(rows), math.fsum(row["score"] for row in rows)
    mean = total / n
    low, high = wilson(mean, n)
    recalls = [row["recall"] for row in rows if row.get("recall")]
    times = [row.get("time") or {} for row in rows]
    return Cell(
        test=key[0],
        method=key[1],
        length=key[2] if len(key) > 2 else None,
        n=n,
        sum=total,
        mean=mean,
        low=low,
        high=high,
        retained=mean / ceiling if ceiling else None,
        recall=_mean(recall.get("mean") for recall in recalls),
        layers=_by_layer([recall.get("layers") or [] for recall in recalls]),
        why=dict(sorted(Counter(row.get("why") or UNKNOWN for row in rows).items())),
        read_s=_mean(time.get("read_s") for time in times),
        ask_s=_mean(time.get("ask_s") for time in times),
    )


def _by_layer(recalls: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    deepest = max(map(len, recalls), default=0)
    return tuple(_mean(layers[i] for layers in recalls if i < len(layers)) for i in range(deepest))


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None


Row = Mapping[str, Any]
"""One question: `test`, `method`, `length`, `question`, `score` and what else the run wrote."""

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Recall(BaseModel):
    mean: Share | None = None
    layers: list[Share | None] | None = None


class _CheckedRow(BaseModel):
    model_config = ConfigDict(strict=True)

    test: str
    method: str
    length: int
    question: str
    score: Share
    depth: Share | None = None
    tokens: dict[str, Any] | None = None
    time: dict[str, float | None] | None = None
    recall: _Recall | None = None
    why: str | None = None


def wrong(row: Row) -> str:
    """Says what is wrong with a row of `esa selftest`; empty for a valid one."""
    try:
        _CheckedRow.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        place, message = ".".join(map(str, first["loc"])), first["msg"]
        return f"{place!r}: {message[:1].lower()}{message[1:]}, got {reprlib.repr(first['input'])}"
    return ""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_share(value: Any) -> bool:
    """True if a row's value is a number from 0 to 1, as scores are; NaN and True are none."""
    return _number(value) and 0 <= value <= 1
