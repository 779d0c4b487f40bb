"""The tables of evidence.py, made from its rows; it has no command of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]


def tables(rows: Rows, threshold: float) -> str:
    return "\n".join([*places(rows), "", *doubts(rows, threshold), "", *costs(rows)])


def places(rows: Rows) -> Iterator[str]:
    """Rank of the passages that contain the whole fact, by weighting."""
    asked = [row for row in rows if "place" in row]
    right = [row for row in asked if row["ok"]]
    yield (
        f"| weighting | answered right ({len(right)}): first | in three "
        f"| all ({len(asked)}): first | in three |"
    )
    yield "|---|---|---|---|---|"
    for name in asked[0]["place"] if asked else []:
        cells = [
            sum((row["place"][name] or 99) <= most for row in group)
            for group in (right, asked)
            for most in (1, 3)
        ]
        yield f"| {name} | " + " | ".join(map(str, cells)) + " |"
    lengths = sorted(length for row in asked for length in row["characters"][:1])
    if lengths:
        yield ""
        yield (
            f"First passages: {lengths[len(lengths) // 2]} characters in the middle, "
            f"{lengths[-1]} the longest."
        )


def auc(high: Sequence[float], low: Sequence[float]) -> float:
    """The chance that one of the first is above one of the second."""
    return sum((a > b) + 0.5 * (a == b) for a in high for b in low) / (len(high) * len(low))


def doubts(rows: Rows, threshold: float) -> Iterator[str]:
    """How well `strength` tells whether the answer is there, by text and kind of question."""
    yield "| text | answer | questions | least | middle | most | said to be missing | AUC |"
    yield "|---|---|---|---|---|---|---|---|"
    names = dict.fromkeys(row["set"].split(" ")[0] for row in rows)
    for name in [*names, ""]:
        group = [row for row in rows if row["set"].startswith(name)]
        there = [row["strength"] for row in group if row["kind"] == "answerable"]
        for kind in ("answerable", "absent", "near"):
            each = sorted(row["strength"] for row in group if row["kind"] == kind)
            if not each:
                continue
            missing = sum(value < threshold for value in each)
            area = "" if kind == "answerable" or not there else f"{auc(there, each):.3f}"
            yield (
                f"| {name or 'all'} | {kind} | {len(each)} | {each[0]:.2f} | "
                f"{each[len(each) // 2]:.2f} | {each[-1]:.2f} | {missing} | {area} |"
            )
    yield ""
    yield from thresholds(rows)


def thresholds(rows: Rows) -> Iterator[str]:
    by = {
        kind: [row["strength"] for row in rows if row["kind"] == kind]
        for kind in ("answerable", "absent", "near")
    }
    yield "| threshold | false alarms | absent noticed | near noticed |"
    yield "|---|---|---|---|"
    for tenth in range(9, 22):
        level = tenth / 10
        below = [f"{sum(value < level for value in v)} of {len(v)}" for v in by.values()]
        yield f"| {level:.1f} | " + " | ".join(below) + " |"


def costs(rows: Rows) -> Iterator[str]:
    """The share of a question's time that recording attention weights takes."""
    yield "| text | seconds a question | of them watching |"
    yield "|---|---|---|"
    for name in dict.fromkeys(row["set"].split(" ")[0] for row in rows):
        group = [row for row in rows if row["set"].startswith(name)]
        whole, watching = (sum(row[key] for row in group) for key in ("seconds", "witness_s"))
        yield f"| {name} | {whole / len(group):.1f} | {watching / whole:.1%} |"
