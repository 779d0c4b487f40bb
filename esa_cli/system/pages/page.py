"""A self-contained HTML page from a template: with the shared style sheet, colours and script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from esa_cli.system.pages import page_style


def render_page(template: Traversable, *styles: Traversable, **content: object) -> str:
    """The page; write it as UTF-8.

    Args:
        styles: style sheets that follow `page.css`.
        content: the template's variables besides style, light, dark, script and digest.
    """
    folder = files(__package__)
    script = folder.joinpath("page.js").read_text("utf-8")
    sheets = [one.read_text("utf-8") for one in (folder.joinpath("page.css"), *styles)]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(template.read_text("utf-8")).render(
        style=Markup("".join(sheets)),
        light=_variables(page_style.LIGHT, page_style.LIGHT_LINES),
        dark=_variables(page_style.DARK, page_style.DARK_LINES),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **content,
    )
    return page.encode("utf-8", "replace").decode("utf-8")


def _variables(surfaces: Mapping[str, str], lines: tuple[str, ...]) -> Markup:
    """CSS variables: the surfaces by name, and `l0`, `l1`, ... for the lines of charts."""
    named = {**surfaces, **{f"l{slot}": line for slot, line in enumerate(lines)}}
    return Markup("".join(f"--{name}:{value};" for name, value in named.items()))
