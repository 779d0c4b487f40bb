"""Colours and number formats of all reports: the colour scale, line colours, short numbers.

The scale runs from dark violet over blue and green to yellow. Its brightness only rises, so it is
readable in grey and for people who cannot tell red from green. The line colours have contrast with
the page in light and dark mode, and every line has a marker of its own.
`tests/evaluation/test_report.py` checks both. Colours are "#rrggbb".
"""

from __future__ import annotations

from collections.abc import Sequence

SCALE = ("#2a1551", "#333b86", "#226a94", "#1f9788", "#6cc25a", "#f6e53c")
"""Colours of 0, 0.2, ... 1; between them each channel is a straight line."""

LIGHT = {
    "page": "#ffffff", "raised": "#f4f5f7", "text": "#1b1d22", "soft": "#555b66",
    "line": "#cfd3da", "grid": "#e6e8ec", "link": "#0059a8", "none": "#eceef1",
}  # fmt: skip
DARK = {
    "page": "#14161a", "raised": "#1e2127", "text": "#e8eaee", "soft": "#a7aebb",
    "line": "#3d434e", "grid": "#2a2e36", "link": "#7cc0ff", "none": "#23272e",
}  # fmt: skip
"""Surfaces and texts of the page; `none` fills a cell without questions."""

LIGHT_LINES = (
    "#0062a8", "#b8500b", "#00795a", "#a03d7c", "#5f50b8", "#756000", "#a11d2a", "#4d5563",
)  # fmt: skip
DARK_LINES = (
    "#5eb0f5", "#ff9d52", "#35c79a", "#f08cc8", "#b5a5ff", "#e3c84a", "#ff8b8b", "#b4bcc9",
)  # fmt: skip


def colour(share: float) -> str:
    """The scale's colour of a number from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    below = min(int(place), len(SCALE) - 2)
    low, high = channels(SCALE[below]), channels(SCALE[below + 1])
    mixed = (round(a + (b - a) * (place - below)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def ink(background: str) -> str:
    """Black or white, whichever has more contrast there: at least 4.5."""
    return "#000000" if luminance(background) > 0.179 else "#ffffff"


def channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def luminance(colour: str) -> float:
    """WCAG's relative luminance, 0 to 1."""
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in channels(colour))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def percent(share: float | None) -> str:
    """0.826 -> "83"; "–" for None. The sign is in a heading."""
    return "–" if share is None else f"{share * 100:.0f}"


def percent_sign(share: float | None) -> str:
    """0.826 -> "83 %"."""
    return "–" if share is None else f"{percent(share)} %"


def seconds(value: float | None) -> str:
    """Seconds with about two significant digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def length_labels(lengths: Sequence[int]) -> list[str]:
    """Short texts for lengths in tokens: 32000 -> "32k"; in full where two would be equal."""
    short = [_short(length) for length in lengths]
    return short if len(set(short)) == len(short) else [f"{length:,}" for length in lengths]


def _short(length: int) -> str:
    if length < 1000:
        return str(length)
    unit, size = ("M", 1_000_000) if length >= 1_000_000 else ("k", 1000)
    return f"{length / size:.1f}".removesuffix(".0") + unit


def depth_label(bin: int, bins: int) -> str:
    """A tenth of the document in percent: "0–10"."""
    return f"{bin * 100 // bins}–{(bin + 1) * 100 // bins}"


def printable(text: str) -> str:
    """The text on one line, without control characters that would act on a terminal."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())
