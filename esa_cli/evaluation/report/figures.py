"""The heat maps and line charts as PNG pictures, with matplotlib (the extra `plot`).

No pyplot: a figure is made, saved and forgotten, and neither the backend nor any setting of the
calling program is touched. Names are written as they are, never read as formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.errors import EsaError
from esa_cli.evaluation.report.statistics import BINS, Summary
from esa_cli.qa import page_style as look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^xP"
DPI = 150


def picture(summary: Summary, path: str | Path) -> Path:
    """One picture of a run: the first heat map there is, else the first test's line chart.

    Raises:
        EsaError: nothing was asked, or matplotlib is missing.
    """
    tests = [test for test in summary.tests if summary.lengths(test)]
    if not tests:
        raise EsaError("no questions were asked: there is nothing to draw")
    mapped = [test for test in tests if summary.has_depths(test)]
    return heat_map(summary, mapped[0], path) if mapped else line_chart(summary, tests[0], path)


def line_chart(summary: Summary, test: str, path: str | Path) -> Path:
    """Score against length, one line a method; whiskers are 95 % intervals, dashes the ceiling."""
    figure = _figure(7.2, 4.4)
    axes = _axes(figure, test, "length of the document, tokens", "score, %")
    lengths, methods = summary.lengths(test), summary.methods(test)
    for place, method in enumerate(methods):
        slot = summary.every_method.index(method)
        aside = (place - (len(methods) - 1) / 2) * min(0.06, 0.4 / len(methods))
        cells = [summary.cell(test, method, length) for length in lengths]
        axes.plot(
            [i + aside for i in range(len(lengths))],
            [100 * cell.mean if cell else math.nan for cell in cells],
            label=_plain(method),
            **_looks(slot),
        )
        colour = look.LIGHT_LINES[slot % len(look.LIGHT_LINES)]
        for i, cell in enumerate(cells):
            if cell:
                ends = [100 * cell.low, 100 * cell.high]
                axes.plot([i + aside] * 2, ends, color=colour, lw=1, alpha=0.6)
    ceiling = summary.ceiling(test)
    if ceiling:
        name = f"dense, {look.percent(ceiling.mean)} %"
        axes.axhline(100 * ceiling.mean, ls=(0, (6, 4)), color="#1b1d22", lw=1.4, label=name)
    axes.set_xticks(range(len(lengths)), look.length_labels(lengths))
    return _save(figure, axes, path)


def recall_chart(
    series: Mapping[str, Sequence[float | None]], path: str | Path, title: str = "Recall by layer"
) -> Path:
    """Recall per layer of several named series, shares from 0 to 1."""
    figure = _figure(7.2, 4.4)
    axes = _axes(figure, title, "layer", "recall, %")
    for slot, (name, shares) in enumerate(series.items()):
        heights = [math.nan if share is None else 100 * share for share in shares]
        axes.plot(range(len(heights)), heights, label=_plain(name), **_looks(slot))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return _save(figure, axes, path)


def heat_map(summary: Summary, test: str, path: str | Path) -> Path:
    """Depth (down) x length (across), one map a method; the numbers are in the cells.

    Raises:
        EsaError: the test's facts have no depth, or matplotlib is missing.
    """
    if not summary.has_depths(test):
        raise EsaError(f"{test} has no depths to map", "a line chart shows its scores")
    methods, lengths = summary.methods(test), summary.lengths(test)
    across = min(len(methods), 4, max(1, 16 // max(len(lengths), 4)))
    down = -(-len(methods) // across)
    wide = max(2.2, 0.55 * len(lengths))
    figure = _figure(across * wide + 1.2, down * 3.5 + 0.8)
    figure.suptitle(_plain(f"{test}: score in %"), fontsize=12)
    grid = figure.subplots(down, across, squeeze=False)
    for i, axes in enumerate(grid.flat):
        if i < len(methods):
            _map(axes, summary, test, methods[i], first=i % across == 0)
        else:
            axes.set_axis_off()
    return _write(figure, path)


def _map(axes: Any, summary: Summary, test: str, method: str, first: bool) -> None:
    lengths = summary.lengths(test)
    for x, length in enumerate(lengths):
        for y, each in enumerate(summary.depths(test, method, length)):
            back = look.colour(each.mean) if each else look.LIGHT["none"]
            axes.add_patch(_rectangle(x, y, back))
            number = look.percent(each.mean if each else None)
            front = look.ink(back)
            axes.text(x + 0.5, y + 0.5, number, color=front, ha="center", va="center", fontsize=8)
    axes.set_xlim(0, len(lengths))
    axes.set_ylim(BINS, 0)
    axes.set_title(_plain(method), fontsize=10)
    axes.set_xticks([x + 0.5 for x in range(len(lengths))], look.length_labels(lengths))
    depths = [look.depth_label(y, BINS) for y in range(BINS)]
    axes.set_yticks([y + 0.5 for y in range(BINS)], depths if first else [""] * BINS)
    axes.tick_params(length=0, labelsize=8)
    axes.set_xlabel("length", fontsize=9)
    if first:
        axes.set_ylabel("depth of the fact, %", fontsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _rectangle(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=1)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EsaError(
            "pictures need matplotlib, which is not installed", "pip install 'esa-cli[plot]'"
        ) from error
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def _axes(figure: Figure, title: str, across: str, up: str) -> Any:
    axes = figure.add_subplot()
    axes.set_title(_plain(title), fontsize=12)
    axes.set_xlabel(across, fontsize=10)
    axes.set_ylabel(up, fontsize=10)
    axes.set_ylim(-2, 102)
    axes.grid(axis="y", color=look.LIGHT["grid"])
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def _looks(slot: int) -> dict[str, Any]:
    colour = look.LIGHT_LINES[slot % len(look.LIGHT_LINES)]
    return {"color": colour, "marker": MARKERS[slot % len(MARKERS)], "lw": 1.8, "ms": 5}


def _plain(name: str) -> str:
    """A name as it is: a dollar begins no formula."""
    return look.printable(name).replace("$", r"\$")


def _save(figure: Figure, axes: Any, path: str | Path) -> Path:
    handles, names = axes.get_legend_handles_labels()
    if names:
        beside = max(1, 100 // (max(map(len, names)) + 6))
        looks = {"ncols": beside, "frameon": False, "fontsize": 9}
        figure.legend(handles, names, loc="outside lower center", **looks)
    return _write(figure, path)


def _write(figure: Figure, path: str | Path) -> Path:
    figure.savefig(path, format="png")
    return Path(path)
