"""A preset with the method built from it: made once for a command, then handed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from esa_cli.attention.method import Method
from esa_cli.qa.presets import build_method
from esa_cli.qa.presets.method_presets import for_length
from esa_cli.qa.presets.preset import DEFAULT, Preset, load


@dataclass(frozen=True)
class ResolvedPreset:
    """A preset and its method."""

    preset: Preset
    method: Method


def resolve(
    preset: str | Preset | ResolvedPreset = DEFAULT,
    overrides: Sequence[str] = (),
    method: str | None = None,
    length: int = 0,
) -> ResolvedPreset:
    """The preset with its method; a `ResolvedPreset` is returned as it is.

    Args:
        preset: a preset, or its name or path. overrides: `key.path=value` texts for the latter.
        method: a whole method over the preset, by its name in `esa methods`.
        length: tokens of the documents, for methods that are made for one length.

    Raises:
        UsageError: no such method, or it needs a length. PresetError: a setting does not hold.
    """
    if isinstance(preset, ResolvedPreset):
        return preset
    chosen = load(preset, overrides) if isinstance(preset, str) else preset
    if method is not None:
        chosen = for_length(method, chosen, length)
    return ResolvedPreset(chosen, build_method.method(chosen))
