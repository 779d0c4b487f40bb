"""Checks of a preset against the sizes in its model's config.json."""

from __future__ import annotations

from typing import Any

from esa_cli.errors import PresetError
from esa_cli.qa.presets.preset import Preset


def check_context(preset: Preset, config: dict[str, Any], model: str) -> None:
    """Raises PresetError where the preset's `context` is beyond the model's window."""
    longest = config.get("max_position_embeddings")
    if longest and preset.context > longest:
        raise PresetError(
            f"preset {preset.name}: context must be at most the {longest} tokens that {model} "
            f"was trained on, got {preset.context}",
            f"use --set context={longest}, and window sizes that fit in it",
        )


def check_heads(preset: Preset, config: dict[str, Any], model: str) -> None:
    """Raises PresetError where `score.heads` names a layer or a head that the model lacks."""
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not layers or not heads:
        return
    for pair in preset.score.get("heads") or ():
        match pair:  # whatever else it may be is refused where the score is built
            case [int(layer), int(head)] if layer >= layers or head >= heads:
                raise PresetError(
                    f"preset {preset.name}: score.heads must be below the {layers} layers and "
                    f"{heads} heads of {model}, got [{layer}, {head}]",
                    "they are another model's: `esa heads` finds its own, or set score.heads=[]",
                )
