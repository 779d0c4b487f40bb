"""A run as one HTML page without network, fonts or other files.

The template escapes everything that came from a file, since answers are what a model wrote; only
the SVG of `figures` is inserted as it is. The page's content security policy lets no other script
run and loads nothing. No figure is computed here or in the template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from esa_cli.evaluation.report.figures import Chart, recall_chart, score_chart
from esa_cli.evaluation.report.statistics import BINS, Row, Summary, summarise
from esa_cli.system.pages import page_style as look
from esa_cli.system.pages.page import render_page

LONGEST = 4000
"""The most characters of a prompt or an answer that the page shows."""

FACTS = ("model", "preset", "context", "command", "machine", "date", "esa")
"""Fields of the header in the page's heading, in this order."""


def page(header: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The page of a run; write it as UTF-8."""
    settings = header.get("settings")
    return _render(
        "esa selftest",
        header,
        summarise(rows),
        sorted(rows, key=_order),
        settings=sorted(settings.items()) if isinstance(settings, dict) else (),
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
    chart = recall_chart(series, title)
    return _render(title, header or {}, summarise(()), None, charts=[chart.svg()])


def _render(
    title: str,
    header: Mapping[str, Any],
    summary: Summary,
    rows: Sequence[Row] | None,
    settings: Sequence[tuple[str, Any]] = (),
    charts: Sequence[Markup] = (),
) -> str:
    return render_page(
        files(__package__).joinpath("report.html.jinja"),
        title=title,
        facts=[(key, str(header[key])) for key in FACTS if header.get(key) is not None],
        settings=[(key, json.dumps(value)) for key, value in settings],
        summary=summary,
        rows=rows,
        charts=charts,
        drawn={test: _charts(summary, test) for test in summary.tests},
        look=look,
        tenths=range(BINS),
        scale=[tenth / BINS for tenth in range(BINS + 1)],
        cut=_cut,
    )


def _charts(summary: Summary, test: str) -> dict[str, Markup]:
    """One test's charts by caption; those that cannot be drawn are left out."""
    scores = score_chart(summary, test) if summary.lengths(test) else None
    charts = {
        "Score by length; the dashed line is the dense ceiling": scores,
        "Recall by layer: the share of the fact in view, all lengths": _recall(summary, test),
    }
    return {caption: chart.svg() for caption, chart in charts.items() if chart}


def _recall(summary: Summary, test: str) -> Chart | None:
    cells = {method: summary.cell(test, method) for method in summary.methods(test)}
    series = {method: cell.layers for method, cell in cells.items() if cell and cell.layers}
    if not any(share is not None for shares in series.values() for share in shares):
        return None
    slots = [summary.every_method.index(method) for method in series]
    return recall_chart(series, f"{test}: recall by layer, all lengths", slots)


def _order(row: Row) -> tuple[Any, ...]:
    return row["test"], row["length"], str(row.get("sample")), row["question"], row["method"]


def _cut(text: Any) -> str:
    whole = "" if text is None else str(text)
    left = len(whole) - LONGEST
    return whole if left <= 0 else f"{whole[:LONGEST]}\n[{left:,} more characters in the rows]"
