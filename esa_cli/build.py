"""From a preset to a method: every named part is looked up and made."""

from __future__ import annotations

from . import registry
from .errors import PresetError
from .kernels import KERNELS
from .method import Method, Window
from .preset import Preset
from .registry import nearest


def method(preset: Preset) -> Method:
    """The preset's method.

    Raises:
        PresetError: a part, one of its settings, or the kernel does not hold.
    """
    registry.load_entry_points()
    if preset.kernel != "auto" and preset.kernel not in KERNELS:
        raise PresetError(
            f"unknown kernel {preset.kernel!r}", nearest(preset.kernel, ["auto", *KERNELS])
        )
    position = registry.build("position", preset.position)
    if position.distance >= preset.context:
        raise PresetError(
            f"position.distance = {position.distance} lies outside the model's window of "
            f"{preset.context}",
            "about three quarters of the window works best; see docs/results.md",
        )
    return Method(
        window=Window(**preset.window.model_dump()),
        selector=registry.build("selector", preset.selector),
        score=registry.build("score", preset.score),
        compressor=registry.build("compressor", preset.compressor),
        position=position,
        reading=preset.reading,
        kernel=preset.kernel,
    )
