"""The web page of `esa serve`, made of the files in `page_files`, and its HTTP headers."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from esa_cli.qa.evidence import DARK, LIGHT, format_css_variables
from esa_cli.version import __version__

PRIVATE = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""Headers of responses with names or texts of documents, which foreign pages may not load."""
SCRIPTS = (
    "requests.js", "reading.js", "documents.js", "sending.js", "storing.js", "conversation.js",
)  # fmt: skip
"""The page's scripts in order; while it loads, a script uses only functions of earlier ones."""


@cache
def make_browser_page() -> tuple[str, dict[str, str]]:
    """Returns the web page of `esa serve` and its HTTP headers. The content security policy allows
    only the page's own scripts and style, and requests to this server."""
    light, dark = format_css_variables(LIGHT), format_css_variables(DARK)
    colours = f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    style = colours + _read_page_file("question.css")
    script = '"use strict";\n' + "".join(map(_read_page_file, SCRIPTS))
    html = _read_page_file("question.html").replace("@version@", __version__)
    html = html.replace("@style@", style).replace("@script@", script)
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        f"trusted-types 'none'; script-src '{_make_script_or_style_hash(script)}'; "
        f"style-src '{_make_script_or_style_hash(style)}'"
    )
    headers = PRIVATE | {
        "content-security-policy": policy, "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer", "cache-control": "no-cache",
    }  # fmt: skip
    return html, headers


def _read_page_file(file_name: str) -> str:
    path = files(__package__).joinpath("page_files", file_name)
    return path.read_text("utf-8").replace("\r\n", "\n")


def _make_script_or_style_hash(script_or_style: str) -> str:
    """Returns the hash by which a content security policy allows exactly this script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script_or_style.encode()).digest()).decode()}"
