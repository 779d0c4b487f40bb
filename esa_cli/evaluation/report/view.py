"""What the HTML page says: a summary and its rows as the plain texts that the template prints.

Long prompts and answers are cut, and the text says by how much. Nothing is escaped here: the
template escapes whatever is not an SVG of `charts`. It does not work out any figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from esa_cli.evaluation.report.charts import Line, layer_chart, line_chart, stacked_bars
from esa_cli.evaluation.report.result_rows import Row
from esa_cli.evaluation.report.statistics import BINS, REASONS, Cell, Summary
from esa_cli.qa import page_style as look

LONGEST = 4000
"""The most characters of a prompt or an answer that the page shows."""

Table = Sequence[tuple[str, Sequence[Cell | None]]]
"""Methods, and for each its cells by length."""


def test(summary: Summary, name: str) -> dict[str, Any]:
    """One test: its tables, heat maps and charts; what cannot be drawn is empty."""
    methods, lengths = summary.methods(name), summary.lengths(name)
    labels = look.length_labels(lengths)
    ceiling = summary.ceiling(name)
    table = [(method, [summary.cell(name, method, n) for n in lengths]) for method in methods]
    slots = [summary.every_method.index(method) for method in methods]
    return {
        "name": name,
        "lengths": lengths,
        "labels": labels,
        "table": [(method, [_score(cell) for cell in cells]) for method, cells in table],
        "ceiling": _score(ceiling),
        "ceiling_at": [cell.length for cell in summary.dense if cell.test == name],
        "score_chart": _score_chart(name, table, slots, labels, ceiling) if lengths else "",
        "maps": [_map(summary, name, m) for m in methods] if summary.has_depths(name) else [],
        "why_chart": _why_chart(name, table, labels),
        "recall_chart": _recall_chart(summary, name, slots),
        "figures": [_figures(c) for c in (*summary.cells, *summary.dense) if c.test == name],
    }


def _score(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    return {
        **shade(cell.mean),
        "retained": look.percent_sign(cell.retained) if cell.retained is not None else None,
        "low": look.percent(cell.low),
        "high": look.percent(cell.high),
        "n": cell.n,
    }


def shade(share: float) -> dict[str, str]:
    back = look.colour(share)
    return {"text": look.percent(share), "back": back, "front": look.ink(back)}


def _score_chart(
    test: str,
    table: Table,
    slots: Sequence[int],
    labels: Sequence[str],
    ceiling: Cell | None,
) -> Markup:
    lines = [
        Line(
            method,
            slot,
            [cell.mean if cell else None for cell in cells],
            [_note(method, cell) for cell in cells],
            [(cell.low, cell.high) if cell else None for cell in cells],
        )
        for slot, (method, cells) in zip(slots, table, strict=True)
    ]
    best = (ceiling.mean, f"dense, {look.percent_sign(ceiling.mean)}") if ceiling else None
    return line_chart(f"{test}: score by length", lines, labels, "length, tokens", best)


def _note(method: str, cell: Cell | None) -> str:
    if cell is None:
        return method
    ends = f"{look.percent(cell.low)}–{look.percent(cell.high)}"
    return f"{method}, {cell.length:,} tokens: {look.percent_sign(cell.mean)} ({ends}), n {cell.n}"


def _map(summary: Summary, test: str, method: str) -> dict[str, Any]:
    """A heat map: one row a tenth of the document, one cell a length."""
    columns = [summary.depths(test, method, length) for length in summary.lengths(test)]
    return {
        "method": method,
        "rows": [
            (
                look.depth_label(tenth, BINS),
                [
                    {**shade(each.mean), "n": each.n} if each else None
                    for each in (column[tenth] for column in columns)
                ],
            )
            for tenth in range(BINS)
        ],
    }


def _why_chart(test: str, table: Table, labels: Sequence[str]) -> Markup | None:
    bars = [
        (f"{method}, {label}", cell.why)
        for method, cells in table
        for label, cell in zip(labels, cells, strict=True)
        if cell
    ]
    there = {why for _, counts in bars for why in counts}
    if not there & {*REASONS}:
        return None
    return stacked_bars(
        f"{test}: why answers were missed", bars, [*REASONS, *sorted(there - {*REASONS})]
    )


def _recall_chart(summary: Summary, test: str, slots: Sequence[int]) -> Markup | None:
    series = [(cell.method, cell.layers) for cell in summary.pooled if cell.test == test]
    if not any(share is not None for _, shares in series for share in shares):
        return None
    return layer_chart(f"{test}: recall by layer, all lengths", series, slots)


def _figures(cell: Cell) -> dict[str, Any]:
    return {
        "method": cell.method,
        "length": cell.length,
        "n": cell.n,
        "sum": f"{cell.sum:.2f}".rstrip("0").rstrip("."),
        "mean": f"{cell.mean:.3f}",
        "interval": f"{cell.low:.3f}–{cell.high:.3f}",
        "retained": "–" if cell.retained is None else f"{cell.retained:.3f}",
        "recall": "–" if cell.recall is None else f"{cell.recall:.3f}",
        "why": ", ".join(f"{count} {why}" for why, count in cell.why.items()),
        "read_s": look.seconds(cell.read_s),
        "ask_s": look.seconds(cell.ask_s),
    }


def order(row: Row) -> tuple[Any, ...]:
    return row["test"], row["length"], str(row.get("sample")), row["question"], row["method"]


def question(row: Row) -> dict[str, Any]:
    expected = row.get("expected") or []
    recall = (row.get("recall") or {}).get("mean")
    return {
        "test": row["test"],
        "method": row["method"],
        "length": row["length"],
        "question": row["question"],
        "depth": look.percent(row.get("depth")),
        "score": row["score"],
        "shade": shade(row["score"]),
        "recall": look.percent(recall),
        "why": row.get("why"),
        "expected": [str(each) for each in expected] if isinstance(expected, list) else [expected],
        "answer": _cut(row.get("answer")),
        "prompt": _cut(row.get("prompt")),
    }


def _cut(text: Any) -> str:
    whole = "" if text is None else str(text)
    left = len(whole) - LONGEST
    return whole if left <= 0 else f"{whole[:LONGEST]}\n[{left:,} more characters in the rows]"
