"""A self-contained HTML page from a template, with its style sheet and script."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from esa_cli.system.page_colours import DARK, LIGHT, css_variables


def render_page(name: str, **content: object) -> str:
    """The page of `name`.html.jinja, .css and .js in this folder; write it as UTF-8.

    Args:
        content: the template's variables besides style, light, dark, script and digest.
    """
    template, style, script = (
        files(__package__).joinpath(f"{name}.{kind}").read_text("utf-8")
        for kind in ("html.jinja", "css", "js")
    )
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(template).render(
        style=Markup(style),
        light=Markup(css_variables(LIGHT)),
        dark=Markup(css_variables(DARK)),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **content,
    )
    return page.encode("utf-8", "replace").decode("utf-8")
