"""Renders a model's chat template as transformers documents it, without importing transformers.

Templates are a model's own code: they run in jinja2's sandbox, where nothing they are given can be
changed, and for as many steps as a conversation needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from esa_cli.errors import ModelError

MOST_STEPS = 2_000_000
"""Lines of a template that are run, and calls. Compiling one of 7 kB takes 84,000."""
_HINT = "use another model, or one whose files have no chat template"


@contextmanager
def limited_rendering() -> Iterator[None]:
    """A block in which a chat template is rendered, by whatever renderer. Raises ModelError: the
    template takes too many steps."""
    steps = 0

    def step(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        steps += 1
        if steps > MOST_STEPS:
            raise ModelError(
                f"the model's chat template must end within {MOST_STEPS:,} steps", _HINT
            )
        return step if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    sys.settrace(step)
    try:
        yield
    finally:
        sys.settrace(before)


def check_template(template: object) -> None:
    """Raises ModelError where a template has powers: one such as 9**9**9 is computed, before any
    step is run, without end. One that is damaged passes; whoever renders it says so."""
    for one in template.values() if isinstance(template, dict) else [template]:
        try:
            tree = Environment(extensions=_EXTENSIONS).parse(one) if isinstance(one, str) else None
        except TemplateError:
            continue
        if tree is not None and tree.find(nodes.Pow) is not None:
            raise ModelError("the model's chat template must not have powers (**)", _HINT)


_EXTENSIONS = ["jinja2.ext.loopcontrols"]


def render_chat(template: str, values: Mapping[str, Any]) -> str:
    """The text of a conversation by a template of jinja2 and its variables, such as `messages`.
    Raises TemplateError: the template is damaged, needs what only transformers has, or refuses
    it."""
    return _compiled(template).render(values)


class _Namespace(Namespace):
    """A template's own variables, none of which may be named as Python's inner ones are."""

    def __init__(*args: Any, **named: Any) -> None:
        # All by place: a template may name a variable `self`.
        namespace, values = args[0], dict(*args[1:], **named)
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
        trim_blocks=True, lstrip_blocks=True, extensions=_EXTENSIONS
    )
    environment.filters["tojson"] = as_json
    environment.globals |= {
        "raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": _Namespace, "dict": as_dict,
    }  # fmt: skip
    return environment.from_string(template)
