"""Overrides of a preset's settings, as `--set` takes them."""

from __future__ import annotations

import reprlib
from typing import Any

import yaml

from esa_cli.errors import PresetError
from esa_cli.system.strict_yaml import MOST_DEEP, load_yaml


def parse_override(text: str) -> dict[str, Any]:
    """`window.selected=2048` -> {"window": {"selected": 2048}}; the value is read as YAML.

    Raises:
        PresetError: no '=' or an unreadable value.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise PresetError(
            f"--set must be KEY=VALUE, got {reprlib.repr(text)}",
            "for example --set window.selected=2048",
        )
    try:
        parsed = load_yaml(value)
    except yaml.YAMLError as error:
        shown, problem = reprlib.repr(text), getattr(error, "problem", None)
        hint = f"quote it; {problem}" if problem else "quote it"
        raise PresetError(f"the value of --set must be YAML, got {shown}", hint) from error
    parts = key.strip().split(".")
    if len(parts) > MOST_DEEP:
        raise PresetError(
            f"a key of --set must have at most {MOST_DEEP} parts, got {len(parts)}",
            "see `esa presets show`",
        )
    for part in reversed(parts):
        parsed = {part: parsed}
    assert isinstance(parsed, dict)
    return parsed
