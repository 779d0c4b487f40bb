"""Renders a model's chat template as transformers documents it, without importing transformers.

Templates are a model's own code: they run in jinja2's sandbox, where nothing they are given can be
changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


def render_chat(template: str, values: Mapping[str, Any]) -> str:
    """The text of a conversation by a template of jinja2 and its variables, such as `messages`.
    Raises TemplateError: the template is damaged, needs what only transformers has, or refuses
    it."""
    return _compiled(template).render(values)


@lru_cache(8)
def _compiled(template: str) -> Template:
    """With the filter and the functions that transformers documents."""

    def as_json(
        value: Any, ensure_ascii: bool = False, indent: int | None = None,
        separators: tuple[str, str] | None = None, sort_keys: bool = False,
    ) -> str:  # fmt: skip
        options: Any = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators}
        return json.dumps(value, sort_keys=sort_keys, **options)

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def as_dict(*args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = as_json
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": as_dict,
    }
    return environment.from_string(template)
