"""Checks of a preset against its model's sizes, and the memory that it needs, without the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from esa_cli.errors import ModelError, PresetError
from esa_cli.models.attachment.families import check_type
from esa_cli.qa.finding.load_encoder import index_sizes
from esa_cli.qa.planning.plan import Plan, Planner
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import ResolvedPreset
from esa_cli.system.machine import size_text

LENGTHS = {"100k": 100_000, "1M": 1_000_000}
"""Tokens of the documents that memory is stated for."""


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


@dataclass(frozen=True)
class PresetMemory:
    """The plans of a preset for `LENGTHS`, in bfloat16 on a processor.

    Args:
        reads: `rows`, `index`, or `nothing` where passages are found by their words alone.
    """

    reads: str
    plans: dict[str, Plan]

    @property
    def weights(self) -> int:
        return next(iter(self.plans.values())).weights

    def stored(self, length: str) -> int:
        """Bytes of what is read of documents of this length."""
        return self.plans[length].keys_values + self.plans[length].reduced_keys

    def needed(self, length: str) -> int:
        """Bytes of everything: weights, what is read, and working memory."""
        return self.plans[length].needed

    @property
    def text(self) -> str:
        """The memory in a line, as presets have it in a comment."""
        if self.reads == "nothing":
            return (
                f"bfloat16: {size_text(self.weights)} of weights, {size_text(self.needed('1M'))} "
                "in all; nothing of a document is read"
            )
        totals = ", ".join(f"{size_text(self.needed(length))} with {length}" for length in LENGTHS)
        return f"bfloat16: {size_text(self.weights)} of weights; {totals} tokens ({self.reads})"


def without_method(preset: Preset, config: dict[str, Any]) -> str:
    """Why the preset's answers come from passages found by their words, as it leaves open what they
    come from and ESA's methods cannot run in its model; "": they can, or it says itself."""
    try:
        check_type(config.get("model_type"))
    except ModelError as error:
        return "" if preset.answer.says_source else error.message
    return ""


def check_sizes(resolved: ResolvedPreset, config: dict[str, Any], model: str) -> PresetMemory:
    """Checks a preset against the sizes of its model, and plans its memory.

    Args:
        config: entries of the model's config.json. model: its name, for messages.

    Raises:
        PresetError: `model` is of another family, `context` beyond its window, `score.heads` or
            `answer.finder` of another model, or the compressor. ModelError: config lacks a size.
    """
    preset = resolved.preset
    try:
        check_type(config.get("model_type"))
    except ModelError as error:
        if not preset.answer.by_words:
            raise PresetError(
                f"preset {preset.name}: model must be of a supported family, got {model}: "
                f"{error.message}",
                error.hint,
            ) from error
    else:
        check_context(preset, config, model)
        check_heads(preset, config, model)
    index = index_sizes(preset)
    layers = config["num_hidden_layers"]
    if index is not None and index.layers > layers:
        raise PresetError(
            f"preset {preset.name}: answer.finder must run at most the model's {layers} layers, "
            f"got {index.layers}",
            "it is another model's; use --set answer.finder=null",
        )
    planner = Planner(
        resolved, config, dtype=torch.bfloat16, device="cpu", memory=0,
        index=index, by_words=preset.answer.by_words,
    )  # fmt: skip
    reads = "rows" if preset.answer.needs_rows else "nothing" if index is None else "index"
    return PresetMemory(reads, {length: planner.plan(count) for length, count in LENGTHS.items()})
