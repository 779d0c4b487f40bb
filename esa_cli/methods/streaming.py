"""The method StreamingLLM, which selects no middle tokens, and two variants of LM-Infinite.

The method `streaming-llm` (Xiao et al., arXiv 2309.17453) attends to the initial and the last K + L
tokens, numbered as one text. The method `lm-infinite` (Han et al., arXiv 2308.16137) attends to the
initial and the last K + L tokens, too, with the initial tokens at distance L. The method
`lm-infinite-topk` also selects, for each query head in layers from `first_layer` on, the k middle
tokens with the highest logits for the chunk's last query, at most half the trained window away.

The preset sets the numbers of tokens I, L and k, so that methods are compared at one budget. Unlike
as published, local tokens move by whole chunks, and those that are no longer local stay cached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.parts import Selector, require_at_least
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.step import Positions, Step
from esa_cli.methods.per_head import select_for_each_head
from esa_cli.methods.registry import OWN_SCORE, PresetSizes, recipe, register

LM_INFINITE = (
    "Han et al., LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models, "
    "arXiv 2308.16137"
)
FAR_DISTANCE = 2048
"""The distance w of middle tokens in the original LM-Infinite."""


def _make_settings_without_middle_tokens(preset: PresetSizes, position_name: str) -> dict[str, Any]:
    parts = {"selector": {"name": "none"}, **OWN_SCORE, "position": {"name": position_name}}
    return {"window": preset.local_only(), **parts, "reading": "local"}


@recipe(
    "streaming-llm",
    about="first and most recent tokens only, numbered as one short text",
    source="Xiao et al., Efficient Streaming Language Models with Attention Sinks, "
    "arXiv 2309.17453",
    cost="2 F (I + L), L taking the whole budget",
)
def build_streaming_llm_settings(preset: PresetSizes) -> dict[str, Any]:
    return _make_settings_without_middle_tokens(preset, "contiguous")


@recipe(
    "lm-infinite",
    about="first and most recent tokens only, the first at the window's length",
    source=LM_INFINITE,
    cost="2 F (I + L), L taking the whole budget",
)
def build_lm_infinite_settings(preset: PresetSizes) -> dict[str, Any]:
    return _make_settings_without_middle_tokens(preset, "lm-infinite")


@recipe(
    "lm-infinite-topk",
    about="lm-infinite with middle tokens for each head, by the chunk's last query",
    source=LM_INFINITE,
    cost="F M + 2 F (I + L) + 2 H D K as published; here F M + 2 F L + 2 H F (I + K), "
    "as keys of all heads are loaded for each query head",
)
def build_lm_infinite_topk_settings(preset: PresetSizes) -> dict[str, Any]:
    selector = {"name": "lm-infinite-topk", "first_layer": 4, "count": None}
    distance, initial = min(FAR_DISTANCE, preset.context // 2), preset.window.initial
    position = {"name": "lm-infinite-topk", "distance": distance, "initial": initial}
    return {"selector": selector, **OWN_SCORE, "position": position, "reading": "select"}


@register("selector", "lm-infinite-topk", about="tokens for each head, by the chunk's last query")
@dataclass(frozen=True)
class LastQuerySelector(Selector):
    """Selects the best middle tokens of each head by the chunk's last query alone, in layers from
    `first_layer` on; at most `count` for each head, which is 5 in the original."""

    first_layer: int = 4
    count: int | None = None

    def __post_init__(self) -> None:
        require_at_least(0, first_layer=self.first_layer, count=self.count)

    def select(self, step: Step, budget: int) -> Tensor | list[Tensor]:
        """Returns offsets (K,) of middle tokens for each head, or none below `first_layer`."""
        count = budget if self.count is None else min(budget, self.count)
        if step.layer < self.first_layer:
            count = 0
        if count == 0 or count >= step.middle:
            return torch.arange(min(count, step.middle), device=step.queries.device)
        last = replace(step, queries=step.queries[:, -1:])
        return select_for_each_head(
            lambda: last.head_logits(rotate=True), last.queries, step.middle, count
        )


@register("position", "lm-infinite-topk", about="sinks at distance L, other far tokens at another")
@dataclass(frozen=True)
class TwoDistancePositions(FixedDistancePositions):
    """Places the `initial` tokens right beyond local tokens, other far tokens at `distance`."""

    distance: int = FAR_DISTANCE
    initial: int = 64

    def __post_init__(self) -> None:
        require_at_least(0, distance=self.distance, initial=self.initial)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        query = max(local, self.distance)
        first = torch.full_like(at, query - local)
        keys = torch.where(at < self.initial, first, query - self.distance)
        return Positions(torch.full((chunk,), query), keys)


@register("position", "lm-infinite", about="far tokens at one distance, the first beyond L")
@dataclass(frozen=True)
class LMInfinitePositions(FixedDistancePositions):
    """Places all far tokens at one distance, right beyond the local tokens."""

    distance: int = 2048

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return FixedDistancePositions(local).far(at, local, chunk, start)
