"""Pieces of inline SVG: elements, texts, rules, markers, the legend, the frame of a chart.

Colours come twice: as an attribute, for an SVG that stands alone, and as a class that the page's
style sheet may give another colour in the dark. All text is escaped. Coordinates are in the units
of the view box, which is `WIDTH` wide; the page scales it. What is drawn is `charts`' affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from esa_cli.qa import page_style as look

WIDTH = 640
CHARACTER = 6.7
"""About the width of a character of the legend."""

MARKERS = {
    "circle": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0",
    "square": "M-.95-.95h1.9v1.9h-1.9z",
    "triangle": "M0-1.2l1.2 2.1h-2.4z",
    "diamond": "M0-1.35l1.35 1.35l-1.35 1.35l-1.35-1.35z",
    "cross": "M-1-1l2 2m0-2l-2 2",
    "ring": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0",
}
HOLLOW = ("cross", "ring")


def tag(name: str, *inside: str, **attributes: object) -> Markup:
    """An element; texts and attributes are escaped, what is Markup already goes in as it is.

    `class_` is class, and other underscores are hyphens: stroke_width is stroke-width.
    """
    made = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{made}>{Markup('').join(inside)}</{name}>")


def frame(title: str, said: str, height: float, parts: Iterable[Markup]) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        tag("desc", said),
        *parts,
        role="img",
        aria_label=f"{title}. {said}",
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        font_family="system-ui, sans-serif",
        font_size=12,
    )


def legend(entries: Sequence[tuple[Markup, str]]) -> tuple[float, Markup]:
    """Keys and names in as many rows as they need; also where the chart below may begin."""
    x, y, parts = 10.0, 12.0, []
    for key, name in entries:
        name = name if len(name) <= 60 else name[:59] + "…"
        wide = 34 + CHARACTER * len(name)
        if x > 10 and x + wide > WIDTH:
            x, y = 10.0, y + 20
        parts += [
            tag("g", key, transform=f"translate({x:.0f} {y:.0f})"),
            text(name, x + 11, y + 4),
        ]
        x += wide
    return y + 20, tag("g", *parts)


def marker(slot: int, x: float, y: float, r: float) -> Markup:
    """The mark of a line's colour and shape, about 2 r wide."""
    at = slot % len(look.LIGHT_LINES)
    name, shape = list(MARKERS.items())[slot % len(MARKERS)]
    hollow = name in HOLLOW
    return tag(
        "path",
        d=shape,
        transform=f"translate({x:.1f} {y:.1f}) scale({r})",
        class_=f"{'line' if hollow else 'full'} l{at}",
        fill="none" if hollow else look.LIGHT_LINES[at],
        stroke=look.LIGHT_LINES[at] if hollow else "none",
        stroke_width=0.45,
    )


def text(text: str, x: float, y: float, anchor: str = "start", soft: bool = False) -> Markup:
    looks = {"class_": "soft" if soft else "ink", "fill": look.LIGHT["soft" if soft else "text"]}
    return tag("text", text, x=x, y=y, text_anchor=anchor, **looks)


def rule(x: float, y: float, to_x: float, to_y: float, name: str, colour: str) -> Markup:
    return tag("path", d=f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}", class_=name, stroke=colour)


def _short(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
