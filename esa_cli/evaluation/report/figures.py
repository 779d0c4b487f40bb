"""The charts of reports: scores by length and by depth, recall by layer."""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from esa_cli.errors import EsaError, UsageError
from esa_cli.evaluation.report.statistics import BINS, Summary
from esa_cli.system.pages import page_style as look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(summary: Summary) -> Chart:
    """The first heat map of a run, else the first test's score chart. Raises EsaError: no question
    was asked, or matplotlib is not installed."""
    tests = [test for test in summary.tests if summary.lengths(test)]
    if not tests:
        raise EsaError("no questions were asked: there is nothing to draw")
    mapped = [test for test in tests if summary.has_depths(test)]
    return heat_map(summary, mapped[0]) if mapped else score_chart(summary, tests[0])


def score_chart(summary: Summary, test: str) -> Chart:
    """Score against length, one line a method, with 95 % intervals and the dense ceiling."""
    figure = new_figure(7.2, 4.4)
    title = f"{test}: score by length"
    axes = new_axes(figure, title, "length of the document, tokens", "score, %")
    lengths, methods = summary.lengths(test), summary.methods(test)
    series: dict[str, list[float | None]] = {}
    for place, method in enumerate(methods):
        slot = summary.every_method.index(method)
        aside = (place - (len(methods) - 1) / 2) * min(0.06, 0.4 / len(methods))
        cells = [summary.cell(test, method, length) for length in lengths]
        series[method] = [cell.mean if cell else None for cell in cells]
        draw_line(axes, slot, method, series[method], aside)
        for i, cell in enumerate(cells):
            if cell:
                ends = [100 * cell.low, 100 * cell.high]
                axes.plot([i + aside] * 2, ends, color=line_colour(slot), lw=1, alpha=0.6)
    ceiling = summary.ceiling(test)
    if ceiling:
        name = f"dense, {look.percent(ceiling.mean)} %"
        looks = {"ls": (0, (6, 4)), "color": look.LIGHT["text"], "lw": 1.4}
        axes.axhline(100 * ceiling.mean, label=name, **looks)
    axes.set_xticks(range(len(lengths)), look.length_labels(lengths))
    draw_legend(figure, axes)
    return Chart(figure, f"{title}. {_ranges(series)}")


def recall_chart(
    series: Mapping[str, Sequence[float | None]],
    title: str = "Recall by layer",
    slots: Sequence[int] | None = None,
) -> Chart:
    """Recall per layer of named series, shares from 0 to 1; `slots` choose their colours."""
    figure = new_figure(7.2, 4.4)
    axes = new_axes(figure, title, "layer", "recall, %")
    for slot, (name, shares) in zip(slots or range(len(series)), series.items(), strict=True):
        draw_line(axes, slot, name, shares)
    axes.xaxis.get_major_locator().set_params(integer=True)
    draw_legend(figure, axes)
    return Chart(figure, f"{title}. {_ranges(series)}")


def heat_map(summary: Summary, test: str) -> Chart:
    """Depth (down) x length (across), one map a method, with the scores in the cells. Raises
    EsaError: matplotlib is not installed."""
    methods, lengths = summary.methods(test), summary.lengths(test)
    across = min(len(methods), 4, max(1, 16 // max(len(lengths), 4)))
    down = -(-len(methods) // across)
    figure = new_figure(across * max(2.2, 0.55 * len(lengths)) + 1.2, down * 3.5 + 0.8)
    figure.suptitle(plain_name(f"{test}: score in %"), fontsize=12)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(methods) :]:
        axes.set_axis_off()
    for axes, method in zip(grid.flat, methods, strict=False):
        columns = [summary.depths(test, method, length) for length in lengths]
        colours = [
            [look.channels(look.colour(c.mean) if c else look.LIGHT["none"]) for c in tenth]
            for tenth in zip(*columns, strict=True)
        ]
        axes.imshow(colours, aspect="auto", interpolation="nearest")
        for x, column in enumerate(columns):
            for y, cell in enumerate(column):
                back = look.colour(cell.mean) if cell else look.LIGHT["none"]
                number = look.percent(cell.mean if cell else None)
                where = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(x, y, number, color=look.ink(back), **where)
        axes.set_title(plain_name(method), fontsize=10)
        axes.set_xticks(range(len(lengths)), look.length_labels(lengths))
        axes.set_yticks(range(BINS), [look.depth_label(tenth, BINS) for tenth in range(BINS)])
        axes.tick_params(length=0, labelsize=8)
        axes.label_outer()
    figure.supxlabel("length", fontsize=9)
    figure.supylabel("depth of the fact, %", fontsize=9)
    return Chart(figure, f"{test}: score by depth and length")


def _ranges(series: Mapping[str, Sequence[float | None]]) -> str:
    """Every line's least and greatest value."""
    texts = []
    for name, shares in series.items():
        known = [share for share in shares if share is not None]
        ends = [look.percent(end) for end in (min(known), max(known))] if known else []
        texts.append(
            f"{name}: " + (f"{' to '.join(dict.fromkeys(ends))} %" if ends else "no values")
        )
    return "; ".join(texts)


MARKERS = "osD^xP"
INSTALL = "pip install 'esa-cli[plot]'"
VARIABLES = {look.LIGHT[name]: name for name in ("text", "soft", "line", "grid")} | {
    colour: f"l{slot}" for slot, colour in enumerate(look.LIGHT_LINES)
}
"""Colours of a chart that the page's style sheet replaces in dark mode -> their CSS variables."""
SVG_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "esa",
    "font.sans-serif": ["DejaVu Sans"],
}
"""matplotlib's: texts stay texts, equal charts are equal files, a short list of fonts."""
_STYLE = re.compile(r'style="[^"]*"')
_COLOUR = re.compile(r"#[0-9a-f]{6}")


@dataclass(frozen=True)
class Chart:
    """A drawn figure, and its content in words for readers who do not see it."""

    figure: Figure
    description: str

    def write_png(self, path: str | Path) -> None:
        self.figure.savefig(path, format="png", facecolor="white")

    def svg(self) -> Markup:
        """An SVG element for an HTML page that defines `VARIABLES`. Texts stay texts."""
        from matplotlib import rc_context

        file = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with rc_context(SVG_SETTINGS):
            self.figure.savefig(file, format="svg", transparent=True, metadata=metadata)
        drawing = file.getvalue()
        box = re.findall(r'viewBox="[^"]*"', drawing)[0]
        inside = drawing.partition("</defs>")[2]  # behind matplotlib's own style sheet
        inside = _STYLE.sub(lambda style: _COLOUR.sub(_variable, style[0]), inside)
        inside = re.sub(r'<g id="[^"]*"', "<g", inside)  # equal in all charts, and unused
        return Markup(f'<svg role="img" aria-label="{escape(self.description)}" {box}>{inside}')


def _variable(colour: re.Match[str]) -> str:
    name = VARIABLES.get(colour[0])
    return f"var(--{name})" if name else colour[0]


def require_matplotlib(option: str) -> None:
    """Checks, before a long run, that an option's file can be drawn at its end. Raises UsageError:
    matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"{option} needs matplotlib", INSTALL)


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EsaError("charts need matplotlib, which is not installed", INSTALL) from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def new_axes(figure: Figure, title: str, across: str, up: str) -> Any:
    axes = figure.add_subplot()
    axes.set_title(plain_name(title), fontsize=12, color=look.LIGHT["text"])
    axes.set_xlabel(across, fontsize=10, color=look.LIGHT["soft"])
    axes.set_ylabel(up, fontsize=10, color=look.LIGHT["soft"])
    axes.set_ylim(-2, 102)
    axes.grid(axis="y", color=look.LIGHT["grid"])
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=look.LIGHT["soft"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(look.LIGHT["line"])
    return axes


def line_colour(slot: int) -> str:
    return look.LIGHT_LINES[slot % len(look.LIGHT_LINES)]


def draw_line(
    axes: Any, slot: int, name: str, shares: Sequence[float | None], aside: float = 0
) -> None:
    """A line over 0, 1, ..., with a gap where a share is None."""
    heights = [math.nan if share is None else 100 * share for share in shares]
    looks = {"color": line_colour(slot), "marker": MARKERS[slot % len(MARKERS)], "lw": 1.8}
    places = [i + aside for i in range(len(heights))]
    axes.plot(places, heights, label=plain_name(name), ms=5 if len(heights) <= 16 else 3, **looks)


def plain_name(name: str, longest: int = 60) -> str:
    """A name as it is: a dollar begins no formula, an underscore does not hide it."""
    shown = look.printable(name)
    shown = shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
    return (" " if shown.startswith("_") else "") + shown.replace("$", r"\$")


def draw_legend(figure: Figure, axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    if names:
        beside = max(1, 100 // (max(map(len, names)) + 6))
        looks = {"ncols": beside, "frameon": False, "fontsize": 9}
        colour = look.LIGHT["text"]
        figure.legend(handles, names, loc="outside lower center", labelcolor=colour, **looks)
