"""The colours of every HTML page by name, "#rrggbb" each, in light mode and in dark mode."""

LIGHT = {
    "page": "#ffffff", "raised": "#f4f5f7", "text": "#1b1d22", "soft": "#555b66",
    "line": "#cfd3da", "grid": "#e6e8ec", "link": "#0059a8", "none": "#eceef1",
}  # fmt: skip
DARK = {
    "page": "#14161a", "raised": "#1e2127", "text": "#e8eaee", "soft": "#a7aebb",
    "line": "#3d434e", "grid": "#2a2e36", "link": "#7cc0ff", "none": "#23272e",
}  # fmt: skip


def css_variables(colours: dict[str, str]) -> str:
    """Returns the colours as declarations of CSS variables."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())
