"""A chart drawn by matplotlib (the extra `plot`), saved as PNG or as SVG for an HTML page.

Figures are made without pyplot, so neither the backend nor any setting of the calling program
changes. Names are drawn as they are, never read as formulas.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from esa_cli.errors import EsaError, UsageError
from esa_cli.qa.evidence import page_style as look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
