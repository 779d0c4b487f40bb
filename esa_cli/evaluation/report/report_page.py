"""A run as one HTML page that needs nothing else: no network, no fonts, no files.

Everything that came from a file is escaped by the template, since answers are what a model wrote.
Should that ever fail, the page's own policy still lets no script run but ours, and loads nothing.
What it says of a test is in `view`, and no figure is worked out here.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from esa_cli.evaluation.report import view
from esa_cli.evaluation.report.charts import layer_chart
from esa_cli.evaluation.report.result_rows import Row, Run
from esa_cli.evaluation.report.statistics import summarise
from esa_cli.qa import page_style as look

EMPTY: Mapping[str, Any] = {
    "settings": (), "cut": False, "asked": None, "tests": (), "scale": (), "charts": (),
    "questions": (), "methods": (), "lengths": (), "reasons": (),
}  # fmt: skip
"""What a page without rows has in place of them."""

FACTS = ("model", "preset", "context", "command", "machine", "date", "esa")
"""What the heading takes from a header, in this order."""


def page(run: Run) -> str:
    """The page of a run; write it as UTF-8."""
    summary = summarise(run.rows)
    return _render(
        title="esa selftest",
        facts=_facts(run.header),
        settings=sorted((key, json.dumps(value)) for key, value in _settings(run.header).items()),
        cut=run.cut,
        asked=len(run.rows),
        tests=[view.test(summary, name) for name in summary.tests],
        scale=[view.shade(tenth / 10) for tenth in range(11)],
        questions=[view.question(row) for row in sorted(run.rows, key=view.order)],
        methods=sorted({row["method"] for row in run.rows}),
        lengths=sorted({row["length"] for row in run.rows}),
        reasons=sorted({row["why"] for row in run.rows if row.get("why")}),
    )


def write_html(path: str | Path, header: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """The page of these rows as a file."""
    Path(path).write_text(page(Run(header, tuple(rows))), "utf-8")


def recall_page(
    series: Mapping[str, Sequence[float | None]],
    title: str = "Recall by layer",
    header: Mapping[str, Any] | None = None,
) -> str:
    """A page with one recall chart, for what is not a run."""
    chart = recall_chart(series, title)
    return _render(title=title, facts=_facts(header or {}), charts=[chart])


def recall_chart(
    series: Mapping[str, Sequence[float | None]], title: str = "Recall by layer"
) -> Markup:
    """Recall per layer of several named series, shares from 0 to 1, as inline SVG."""
    return layer_chart(title, list(series.items()), range(len(series)))


def _render(**content: Any) -> str:
    folder = files(__package__)
    shared = files("esa_cli.qa")  # the page of an answer looks the same
    script = shared.joinpath("page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath("report.html.jinja").read_text("utf-8"))
    made = template.render(
        style=Markup(shared.joinpath("page.css").read_text("utf-8")),
        light=_variables(look.LIGHT, look.LIGHT_LINES),
        dark=_variables(look.DARK, look.DARK_LINES),
        line_slots=range(len(look.LIGHT_LINES)),
        script=Markup(script),
        digest=digest,
        **{**EMPTY, **content},
    )
    return made.encode("utf-8", "replace").decode("utf-8")


def _variables(surfaces: Mapping[str, str], lines: Sequence[str]) -> Markup:
    named = {**surfaces, **{f"l{slot}": line for slot, line in enumerate(lines)}}
    return Markup("".join(f"--{name}:{value};" for name, value in named.items()))


def _facts(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, str(header[key])) for key in FACTS if header.get(key) is not None]


def _settings(header: Mapping[str, Any]) -> Mapping[str, Any]:
    found = header.get("settings")
    return found if isinstance(found, dict) else {}
