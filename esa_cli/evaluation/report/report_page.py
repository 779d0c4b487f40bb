"""A run as one HTML page without network, fonts or other files.

The template escapes everything that came from a file, since answers are what a model wrote; only
the SVG of `figures` is inserted as it is. The page's content security policy lets no other script
run and loads nothing. No figure is computed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from esa_cli.evaluation.report.figures import reasons_chart, recall_chart, score_chart
from esa_cli.evaluation.report.result_rows import Row
from esa_cli.evaluation.report.statistics import BINS, Cell, Summary, summarise
from esa_cli.qa import page_style as look
from esa_cli.qa.html_page import render_page

LONGEST = 4000
"""The most characters of a prompt or an answer that the page shows."""

EMPTY: Mapping[str, Any] = {
    "settings": (), "asked": None, "tests": (), "scale": (), "charts": (),
    "questions": (), "methods": (), "lengths": (), "reasons": (),
}  # fmt: skip
"""A page without rows."""

FACTS = ("model", "preset", "context", "command", "machine", "date", "esa")
"""Fields of the header in the page's heading, in this order."""


def page(header: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The page of a run; write it as UTF-8."""
    summary = summarise(rows)
    return _render(
        title="esa selftest",
        facts=_facts(header),
        settings=sorted((key, json.dumps(value)) for key, value in _settings(header).items()),
        asked=len(rows),
        tests=[_test(summary, name) for name in summary.tests],
        scale=[_shade(tenth / 10) for tenth in range(11)],
        questions=[_question(row) for row in sorted(rows, key=_order)],
        methods=sorted({row["method"] for row in rows}),
        lengths=sorted({row["length"] for row in rows}),
        reasons=sorted({row["why"] for row in rows if row.get("why")}),
    )


def write_html(path: str | Path, header: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Writes the page of these rows to a file."""
    Path(path).write_text(page(header, rows), "utf-8")


def recall_page(
    series: Mapping[str, Sequence[float | None]],
    title: str = "Recall by layer",
    header: Mapping[str, Any] | None = None,
) -> str:
    """A page with one chart of recall per layer, for a command that asks no questions."""
    return _render(
        title=title, facts=_facts(header or {}), charts=[recall_chart(series, title).svg()]
    )


def _render(**content: Any) -> str:
    template = files(__package__).joinpath("report.html.jinja")
    return render_page(template, **{**EMPTY, **content})


def _facts(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, str(header[key])) for key in FACTS if header.get(key) is not None]


def _settings(header: Mapping[str, Any]) -> Mapping[str, Any]:
    found = header.get("settings")
    return found if isinstance(found, dict) else {}


def _test(summary: Summary, name: str) -> dict[str, Any]:
    """One test: its tables, heat maps and charts; what cannot be drawn is empty."""
    methods, lengths = summary.methods(name), summary.lengths(name)
    labels = look.length_labels(lengths)
    ceiling = summary.ceiling(name)
    table = [(method, [summary.cell(name, method, n) for n in lengths]) for method in methods]
    why_chart = reasons_chart(summary, name)
    return {
        "name": name,
        "lengths": lengths,
        "labels": labels,
        "table": [(method, [_score(cell) for cell in cells]) for method, cells in table],
        "ceiling": _score(ceiling),
        "ceiling_at": [cell.length for cell in summary.dense if cell.test == name],
        "score_chart": score_chart(summary, name).svg() if lengths else "",
        "maps": [_map(summary, name, m) for m in methods] if summary.has_depths(name) else [],
        "why_chart": why_chart.svg() if why_chart else "",
        "recall_chart": _recall_chart(summary, name),
        "figures": [_figures(c) for c in (*summary.cells, *summary.dense) if c.test == name],
    }


def _score(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    return {
        **_shade(cell.mean),
        "retained": look.percent_sign(cell.retained) if cell.retained is not None else None,
        "low": look.percent(cell.low),
        "high": look.percent(cell.high),
        "n": cell.n,
    }


def _shade(share: float) -> dict[str, str]:
    back = look.colour(share)
    return {"text": look.percent(share), "back": back, "front": look.ink(back)}


def _map(summary: Summary, test: str, method: str) -> dict[str, Any]:
    """A heat map: one row a tenth of the document, one cell a length."""
    columns = [summary.depths(test, method, length) for length in summary.lengths(test)]
    return {
        "method": method,
        "rows": [
            (
                look.depth_label(tenth, BINS),
                [
                    {**_shade(each.mean), "n": each.n} if each else None
                    for each in (column[tenth] for column in columns)
                ],
            )
            for tenth in range(BINS)
        ],
    }


def _recall_chart(summary: Summary, test: str) -> Markup | None:
    cells = [cell for cell in summary.pooled if cell.test == test]
    if not any(share is not None for cell in cells for share in cell.layers):
        return None
    series = {cell.method: cell.layers for cell in cells}
    slots = [summary.every_method.index(method) for method in series]
    return recall_chart(series, f"{test}: recall by layer, all lengths", slots).svg()


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


def _order(row: Row) -> tuple[Any, ...]:
    return row["test"], row["length"], str(row.get("sample")), row["question"], row["method"]


def _question(row: Row) -> dict[str, Any]:
    expected = row.get("expected") or []
    recall = (row.get("recall") or {}).get("mean")
    return {
        "test": row["test"],
        "method": row["method"],
        "length": row["length"],
        "question": row["question"],
        "depth": look.percent(row.get("depth")),
        "score": row["score"],
        "shade": _shade(row["score"]),
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
