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
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

BINS = 10
Z95 = 1.959963984540054
REASONS = ("answered", "not selected", "selected, not used")
UNKNOWN = "not known"
"""In place of a `why` of null."""
Row = Mapping[str, Any]
"""One question: `test`, `method`, `length`, `question`, `score` and what else the run wrote."""


@dataclass(frozen=True)
class Cell:
    """The figures of some rows.

    `low` and `high` bound the 95 % interval of `mean`. `layers` has a mean recall for every layer.
    `why` counts the reasons that came up.
    """

    n: int
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

    Args:
        cells: of (test, method) over all lengths, of (test, method, length), and of those with the
            tenth of the document, from 0, in which a question's fact lies.
        dense: the ceiling's, of (test,) over all lengths and of (test, length).
    """

    tests: tuple[str, ...]
    cells: dict[tuple[Any, ...], Cell]
    dense: dict[tuple[Any, ...], Cell]

    @property
    def every_method(self) -> list[str]:
        """The methods of all tests; a method's place chooses its colour."""
        return sorted({key[1] for key in self.cells})

    def methods(self, test: str) -> list[str]:
        return [key[1] for key in self.cells if key[0] == test and len(key) == 2]

    def lengths(self, test: str) -> list[int]:
        """The lengths at which anything but the dense model was asked."""
        return sorted({key[2] for key in self.cells if key[0] == test and len(key) > 2})

    def dense_lengths(self, test: str) -> list[int]:
        return [key[1] for key in self.dense if key[0] == test and len(key) == 2]

    def cell(self, test: str, method: str, length: int | None = None) -> Cell | None:
        """The figures there; over all lengths when `length` is None; None when none were asked."""
        return self.cells.get((test, method) if length is None else (test, method, length))

    def ceiling(self, test: str) -> Cell | None:
        return self.dense.get((test,))

    def has_depths(self, test: str) -> bool:
        return any(key[0] == test and len(key) == 4 for key in self.cells)

    def depths(self, test: str, method: str, length: int) -> list[Cell | None]:
        """One entry a tenth of the document; None where nothing was asked."""
        return [self.cells.get((test, method, length, tenth)) for tenth in range(BINS)]


def summarise(rows: Iterable[Row]) -> Summary:
    """The figures of `rows`, which may be in any order."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    dense_groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    tests = set()
    for row in rows:
        test, method, length, depth = (row.get(k) for k in ("test", "method", "length", "depth"))
        tests.add(str(test))
        if row.get("dense"):
            dense_groups[(test,)].append(row)
            dense_groups[(test, length)].append(row)
            continue
        groups[(test, method)].append(row)
        groups[(test, method, length)].append(row)
        if depth is not None:
            groups[(test, method, length, depth_bin(depth))].append(row)
    dense = {key: _cell(some) for key, some in sorted(dense_groups.items())}
    cells = {
        key: _cell(some, dense.get(key[:1]) if len(key) < 4 else None)
        for key, some in sorted(groups.items())
    }
    return Summary(tuple(sorted(tests)), cells, dense)


def wilson(mean: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share `mean` of `n` trials."""
    spread = Z95 * Z95 / n
    centre = (mean + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(mean * (1 - mean) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def depth_bin(depth: float) -> int:
    """The tenth with `depth` in it; a depth meant to be on an edge counts in the one after."""
    return min(int(depth * BINS + 1e-9), BINS - 1)


def _cell(rows: Sequence[Row], ceiling: Cell | None = None) -> Cell:
    n = len(rows)
    mean = math.fsum(row["score"] for row in rows) / n
    low, high = wilson(mean, n)
    recalls = [row["recall"] for row in rows if row.get("recall")]
    times = [row.get("time") or {} for row in rows]
    layers = [recall.get("layers") or [] for recall in recalls]
    deepest = max(map(len, layers), default=0)
    return Cell(
        n=n,
        mean=mean,
        low=low,
        high=high,
        retained=mean / ceiling.mean if ceiling and ceiling.mean else None,
        recall=_mean(recall.get("mean") for recall in recalls),
        layers=tuple(_mean(row[i] for row in layers if i < len(row)) for i in range(deepest)),
        why=dict(sorted(Counter(row.get("why") or UNKNOWN for row in rows).items())),
        read_s=_mean(time.get("read_s") for time in times),
        ask_s=_mean(time.get("ask_s") for time in times),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


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
    return reason(_CheckedRow, row)


def reason(kind: type[BaseModel], row: Row) -> str:
    """Says why a row is not of this kind; empty if it is."""
    try:
        kind.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        place, message = ".".join(map(str, first["loc"])), first["msg"]
        return f"{place!r}: {message[:1].lower()}{message[1:]}, got {reprlib.repr(first['input'])}"
    return ""
