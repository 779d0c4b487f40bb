"""From a preset to a method: every named part is looked up and made."""

from __future__ import annotations

from typing import Any

from esa_cli.attention.kernels import KERNELS
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Compressor, PositionEncoding, Score, Selector
from esa_cli.attention.plugin_errors import blame_plugin
from esa_cli.errors import PluginError, PresetError
from esa_cli.methods import part_registry as registry
from esa_cli.methods.plugin_loading import load_installed
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.registry import nearest

PROTOCOLS = {
    "selector": Selector,
    "score": Score,
    "compressor": Compressor,
    "position": PositionEncoding,
}

CONSTANTS = {
    "selector": ("sums_layers", "surveys", "observes", "window_size"),
    "score": ("features", "rotates", "last_layer"),
    "compressor": ("fit_tokens", "files"),
    "position": ("distance", "max_distance"),
}
"""Members of each kind of part that are read in many places: one that fails is found here."""


def _part(kind: str, options: dict[str, Any]) -> Any:
    part = registry.build(kind, options)
    protocol = PROTOCOLS[kind]
    if not isinstance(part, protocol):
        raise PluginError(
            f"{kind} {options['name']!r} must be derived from {protocol.__name__}, got class "
            f"{type(part).__name__}",
            f"write `class {type(part).__name__}({protocol.__name__}):`, see docs/plugins.md",
        )
    with blame_plugin(kind, part):
        for name in CONSTANTS[kind]:
            getattr(part, name)
    return part


def method(preset: Preset) -> Method:
    """The preset's method.

    Raises:
        PresetError: a part, one of its settings, or the kernel does not hold.
    """
    load_installed()
    if preset.kernel != "auto" and preset.kernel not in KERNELS:
        raise PresetError(
            f"unknown kernel {preset.kernel!r}", nearest(preset.kernel, ["auto", *KERNELS])
        )
    parts = {kind: _part(kind, getattr(preset, kind)) for kind in PROTOCOLS}
    if not parts["selector"].sums_layers:
        with blame_plugin("score", parts["score"]):
            parts["score"] = parts["score"].for_single_layers()
    position = parts["position"]
    if not isinstance(position.distance, int) or position.distance < 0:
        raise PresetError(
            f"position.distance must be a whole number from 0, got {position.distance!r}",
            "see `esa presets show`",
        )
    if preset.position["name"] == "esa" and position.distance >= preset.context:
        raise PresetError(
            f"position.distance must be below the model's window of {preset.context}, "
            f"got {position.distance}",
            "about three quarters of the window works best; see benchmarks/NOTES.md",
        )
    return Method(
        window=preset.window,
        selector=parts["selector"],
        score=parts["score"],
        compressor=parts["compressor"],
        position=position,
        reading=preset.reading,
        kernel=preset.kernel,
    )
