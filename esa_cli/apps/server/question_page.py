"""The page of `GET /`: one HTML document with its style and scripts inside.

It has nothing of the documents, so it needs no token; its script asks the API for these. The
content security policy lets only the scripts and the style of `page_files` run, by their hashes,
and only this server be asked. Scripts cannot make elements from text (Trusted Types), so a
document's text cannot become anything else.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from esa_cli.system.page_colours import DARK, LIGHT, css_variables
from esa_cli.version import __version__

FOLDER = "page_files"
SCRIPTS = ("elements.js", "requests.js", "documents.js", "reading.js", "turns.js", "start.js")
"""In order; each may use those before it."""


@cache
def make_page() -> tuple[str, dict[str, str]]:
    """The page, and the headers it is sent with."""
    style = _colours() + _text("question.css")
    script = '"use strict";\n' + "".join(map(_text, SCRIPTS))
    html = _text("question.html").replace("@version@", __version__)
    html = html.replace("@style@", style).replace("@script@", script)
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        f"trusted-types 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    )
    headers = {
        "content-security-policy": policy,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    return html, headers


async def question_page(request: Request) -> Response:
    html, headers = make_page()
    return HTMLResponse(html, headers=headers)


def _text(name: str) -> str:
    return files(__package__).joinpath(FOLDER, name).read_text("utf-8").replace("\r\n", "\n")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _colours() -> str:
    """The colours of all pages, as variables: light, and dark where the system is."""
    light, dark = css_variables(LIGHT), css_variables(DARK)
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
