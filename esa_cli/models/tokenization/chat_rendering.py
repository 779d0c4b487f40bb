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
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def render_chat(template: str, values: Mapping[str, Any]) -> str:
    """The text of a conversation.

    Args:
        template: of jinja2. values: its variables, such as `messages`.

    Raises:
        TemplateError: the template is damaged, needs what only transformers has, or refuses the
            conversation.
    """
    return _compiled(template).render(values)


class GuardedNamespace(Namespace):
    """A template's own variables, of which none may be named as Python's inner ones are."""

    def __init__(*given: Any, **named: Any) -> None:
        # All by place: a template may name a variable `self`.
        namespace, *first = given
        values = dict(*first, **named)
        for name in values:
            _check_name(name)
        Namespace.__init__(namespace, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a template's variable must not begin with '_', got {name}")


@lru_cache(8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _as_json
    environment.globals |= {
        "raise_exception": _refuse, "strftime_now": _now, "namespace": GuardedNamespace,
        "dict": _as_dict,
    }  # fmt: skip
    return environment.from_string(template)


def _as_dict(*given: Any, **named: Any) -> dict[Any, Any]:
    return dict(*given, **named)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
