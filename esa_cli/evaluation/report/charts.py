"""Line charts and stacked bars as inline SVG: shares against lengths or layers.

Built of the pieces in `svg`. It does not know what a method is, nor where the figures come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from esa_cli.evaluation.report.svg import CHARACTER, WIDTH, frame, legend, marker, rule, tag, text
from esa_cli.qa import page_style as look

HEIGHT = 230
LEFT, RIGHT = 46, 14
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One line: shares from 0 to 1, None where there is none.

    `slot` chooses its colour and marker. `notes` says something of every value; `intervals`, when
    given, has the ends of a whisker for it.
    """

    name: str
    slot: int
    values: Sequence[float | None]
    notes: Sequence[str]
    intervals: Sequence[tuple[float, float] | None] = ()


def line_chart(
    title: str,
    lines: Sequence[Line],
    labels: Sequence[str],
    across: str,
    ceiling: tuple[float, str] | None = None,
) -> Markup:
    """Lines over evenly spaced `labels`; `ceiling` is a dashed line and what it is called."""
    names = [(line.name, line.slot) for line in lines]
    top, keys = legend([(marker(slot, 0, 0, 4.5), name) for name, slot in names])
    step = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    parts = [keys, _axes(top, labels, step, across)]
    if ceiling:
        parts.append(_dashed(top, *ceiling))
    for i, line in enumerate(lines):
        aside = (i - (len(lines) - 1) / 2) * min(step / 12, 8) if line.intervals else 0
        parts.append(
            _line(line, [LEFT + step * (j + 0.5) + aside for j in range(len(labels))], top)
        )
    ranges = "; ".join(f"{line.name}: {_range(line.values)}" for line in lines)
    return frame(title, ranges, top + HEIGHT + 42, parts)


def layer_chart(
    title: str, series: Sequence[tuple[str, Sequence[float | None]]], slots: Sequence[int]
) -> Markup:
    """Recall per layer: a line for each name and its shares."""
    lines = [
        Line(name, slot, shares, _by_layer(name, shares))
        for slot, (name, shares) in zip(slots, series, strict=True)
    ]
    deepest = max((len(shares) for _, shares in series), default=0)
    return line_chart(title, lines, [str(layer) for layer in range(deepest)], "layer")


def stacked_bars(
    title: str, bars: Sequence[tuple[str, Mapping[str, int]]], reasons: Sequence[str]
) -> Markup:
    """One bar a label, divided as its counts are; the counts stand in the parts."""
    colours = [
        look.REASON_COLOURS[min(i, len(look.REASON_COLOURS) - 1)] for i in range(len(reasons))
    ]
    patches = [tag("rect", x=-6, y=-6, width=12, height=12, fill=colour) for colour in colours]
    top, keys = legend(list(zip(patches, reasons, strict=True)))
    side = 12 + CHARACTER * min(max((len(label) for label, _ in bars), default=0), 34)
    parts = [keys]
    for i, (label, counts) in enumerate(bars):
        y, x, total = top + 24 * i, side, sum(counts.values())
        name = label if len(label) <= 34 else label[:33] + "…"
        parts.append(text(name, side - 8, y + 14, anchor="end"))
        for reason, colour in zip(reasons, colours, strict=True):
            wide = (WIDTH - RIGHT - side) * counts.get(reason, 0) / total
            if wide:
                parts.append(_part(x, y, wide, colour, f"{label}, {reason}", counts[reason]))
            x += wide
    said = "; ".join(
        f"{label}: " + ", ".join(f"{counts.get(reason, 0)} {reason}" for reason in reasons)
        for label, counts in bars
    )
    return frame(title, said, top + 24 * len(bars) + 4, parts)


def _axes(top: float, labels: Sequence[str], step: float, across: str) -> Markup:
    parts = []
    for quarter in range(5):
        y = _y(quarter / 4, top)
        parts.append(rule(LEFT, y, WIDTH - RIGHT, y, "grid", look.LIGHT["grid"]))
        parts.append(text(f"{quarter * 25} %", LEFT - 8, y + 4, anchor="end", soft=True))
    widest = max((len(label) for label in labels), default=1)
    every = max(1, -(-int(CHARACTER * widest + 10) // max(int(step), 1)))
    for i in range(0, len(labels), every):
        x = LEFT + step * (i + 0.5)
        parts.append(text(labels[i], x, top + HEIGHT + 16, anchor="middle", soft=True))
    middle = (LEFT + WIDTH - RIGHT) / 2
    return tag("g", *parts, text(across, middle, top + HEIGHT + 34, anchor="middle", soft=True))


def _dashed(top: float, share: float, name: str) -> Markup:
    y = _y(share, top)
    dashes = tag(
        "path",
        d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}",
        class_="ceiling",
        stroke=look.LIGHT["text"],
        stroke_width=1.6,
        stroke_dasharray="7 5",
    )
    beside = y + 15 if share > 0.9 else y - 6
    at = {"x": WIDTH - RIGHT - 4, "y": beside, "text_anchor": "end"}
    halo = {"stroke": "#ffffff", "stroke_width": 4, "paint_order": "stroke"}
    return tag(
        "g", dashes, tag("text", name, class_="ink halo", fill=look.LIGHT["text"], **at, **halo)
    )


def _line(line: Line, xs: Sequence[float], top: float) -> Markup:
    points = [
        (x, _y(value, top)) if value is not None else None
        for x, value in zip(xs, line.values, strict=False)
    ]
    colour = look.LIGHT_LINES[line.slot % len(look.LIGHT_LINES)]
    looks = {"class_": f"line l{line.slot % len(look.LIGHT_LINES)}", "stroke": colour}
    parts = [tag("path", d=_path(points), fill="none", stroke_width=2, **looks)]
    for point, ends in zip(points, line.intervals, strict=False):
        if point and ends:
            d = f"M{point[0]:.1f} {_y(ends[0], top):.1f}V{_y(ends[1], top):.1f}"
            parts.append(tag("path", d=d, fill="none", stroke_width=1.2, opacity=0.6, **looks))
    size = 4.5 if len(points) <= 16 else 2.6
    for i, point in enumerate(points):
        if point:
            parts.append(tag("g", tag("title", line.notes[i]), marker(line.slot, *point, size)))
    return tag("g", *parts)


def _path(points: Sequence[Point | None]) -> str:
    """Through the points there are; a missing one is a gap."""
    d, pen = "", "M"
    for point in points:
        d += f"{pen}{point[0]:.1f} {point[1]:.1f}" if point else ""
        pen = "L" if point else "M"
    return d


def _part(x: float, y: float, wide: float, colour: str, what: str, count: int) -> Markup:
    parts = [
        tag("title", f"{what}: {count}"),
        tag("rect", x=x, y=y, width=max(wide - 1, 0.5), height=20, fill=colour),
    ]
    if wide > 9 * len(str(count)):
        middle = f"{x + wide / 2:.1f}"
        parts.append(
            tag("text", str(count), x=middle, y=y + 14, text_anchor="middle", fill=look.ink(colour))
        )
    return tag("g", *parts)


def _y(share: float, top: float) -> float:
    return top + HEIGHT * (1 - share)


def _by_layer(name: str, shares: Sequence[float | None]) -> list[str]:
    return [f"{name}, layer {i}: {look.percent_sign(s)}" for i, s in enumerate(shares)]


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "no figures"
    ends = dict.fromkeys((look.percent(min(known)), look.percent(max(known))))
    return " to ".join(ends) + " %"
