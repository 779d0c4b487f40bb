"""The cost of a method on a model: bytes of the cache, working memory, and operations of a prefill.

    keys and values   tokens * (layers * 2 G D + R) numbers; R only when the score reads them, and
                      G D where the keys are the values (MLA: one head of rotary part and latent)
    operations        tokens * (2 P + layers * attention + scoring)

R is summed over the layers, which need not be alike. P counts the weights outside the embeddings.
Only sizes are looked at, never weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from esa_cli.attention.method import Method
from esa_cli.attention.moments import Moments
from esa_cli.attention.scoring import KEEP_ELEMENTS
from esa_cli.attention.step import BLOCK_ELEMENTS
from esa_cli.errors import ModelError, PresetError
from esa_cli.models.supported_families import family_of, key_shape
from esa_cli.storage.growing_rows import FIRST_SEGMENT, LAST_SEGMENT

FEED = 1024
"""Tokens handed to the model at once in prefill; the method cuts them into its chunks. Measured on
2 cores: 512 to 1,024 is best, larger activations leave the processor's cache."""
LIBRARIES = 400 << 20
"""Bytes of torch, transformers and Python themselves."""
TOKEN_BYTES = 64
"""Bytes of a token beside its rows: text, id and offsets, and their copies when they are stored."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, from its config.json; in the symbols of docs/design.md."""

    layers: int
    hidden: int
    heads: int
    groups: int
    dim: int
    inner: int
    """Of the MLP, or of the experts that a token passes."""
    vocabulary: int
    tied: bool
    idle: int = 0
    """Of the experts that it does not pass."""
    shared: bool = False
    """Whether the keys are the values, too."""
    low_rank: int = 0
    """Weights of a layer's projections where they go through latents."""
    packed: float = 1.0
    """Bytes of a weight of the layers, of those of a number; experts are not packed."""

    @property
    def row(self) -> int:
        """Numbers that a layer keeps of a token."""
        return (1 if self.shared else 2) * self.groups * self.dim

    @property
    def body(self) -> int:
        """Weights of the layers that a token passes: projections and the three maps of the gated
        MLP."""
        whole = self.hidden * self.dim * (2 * self.heads + 2 * self.groups)
        attention = self.low_rank or whole
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def weights(self) -> int:
        """All weights, embeddings and experts included."""
        experts = self.layers * 3 * self.hidden * self.idle
        body = self.body if self.idle else int(self.body * self.packed)
        return body + experts + self.vocabulary * self.hidden * (1 if self.tied else 2)


def shape_of(config: dict[str, Any]) -> Shape:
    """Raises ModelError when config.json lacks a size."""
    try:
        config = _common_names(config)
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        (inner, idle), settings = _inner(config), SimpleNamespace(**config)
        groups, dim = key_shape(settings)
        latent = family_of(settings).latent
        return Shape(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            groups=groups,
            dim=dim,
            inner=inner,
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            idle=idle,
            shared=latent,
            low_rank=_low_rank(config) if latent else 0,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the model's config.json must have all sizes, got {error}") from error


def _common_names(config: dict[str, Any]) -> dict[str, Any]:
    """LongCat-Flash's settings as other models have them; else as they are. Its layers are two with
    an MLP each, and one of them has experts besides."""
    if config.get("model_type") != "longcat_flash":
        return config
    names = ("num_layers", "ffn_hidden_size", "expert_ffn_hidden_size", "moe_topk")
    layers, inner, width, used = (int(config[name]) for name in names)
    return {
        **config,
        "num_hidden_layers": 2 * layers,
        "moe_intermediate_size": width // 2,
        "num_experts_per_tok": used,
        "shared_intermediate_size": inner,
        "intermediate_size": inner,
    }


def _low_rank(config: dict[str, Any]) -> int:
    """Weights of a layer's projections with latents of queries, if there are any, and of keys."""
    names = ("num_attention_heads", "hidden_size", "kv_lora_rank", "qk_rope_head_dim")
    heads, hidden, latent, rotary = (int(config[name]) for name in names)
    rest, values = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
    rank, wide = _first(config, "q_lora_rank"), heads * (rest + rotary)
    queries = rank * (hidden + wide) if rank else hidden * wide
    keys = hidden * (latent + rotary) + latent * heads * (rest + values)
    return queries + keys + heads * values * hidden


def _inner(config: dict[str, Any]) -> tuple[int, int]:
    """Inner sizes of what a token passes in a layer and of its other experts, all layers alike:
    models whose first layers have an MLP in place of experts are thought larger than they are."""
    inner = int(config["intermediate_size"])
    experts = _first(
        config, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"
    )
    if not experts:
        return inner, 0
    width = _first(config, "moe_intermediate_size") or inner
    used = min(experts, _first(config, "num_experts_per_tok", "moe_k") or 1)
    shared = _first(config, "shared_expert_intermediate_size", "shared_intermediate_size")
    several = _first(config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return used * width + (shared or several * width), (experts - used) * width


def _first(config: dict[str, Any], *names: str) -> int:
    """The first of these settings that is a number; 0: there is none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def segments(tokens: int) -> list[int]:
    """Rows of each segment that is allocated for so many."""
    found, capacity = list[int](), 0
    while capacity < tokens:
        found.append(min(LAST_SEGMENT, max(FIRST_SEGMENT, capacity)))
        capacity += found[-1]
    return found


@dataclass(frozen=True)
class Costs:
    """The cost of one method on one model, per token and in all; `rank` is of `rank_of`."""

    shape: Shape
    method: Method
    rank: int
    on_gpu: bool

    def stored(self, tokens: int) -> int:
        """Rows allocated for `tokens`; RAM that was never written to is not taken."""
        return sum(segments(tokens)) if self.on_gpu else tokens

    def keys_values(self, tokens: int, size: int) -> int:
        shape = self.shape
        return self.stored(tokens) * shape.layers * shape.row * size

    def reduced_keys(self, tokens: int, size: int) -> int:
        return self.stored(tokens) * self.rank * size

    def working(self, tokens: int, size: int) -> int:
        """Activations, gathered keys, scores, the compressor's moments, the tokens themselves, and
        the libraries."""
        shape, window = self.shape, self.method.window
        folded = shape.groups * shape.dim
        projections = (shape.heads + 2 * shape.groups) * shape.dim
        activations = FEED * (6 * shape.hidden + 3 * shape.inner + 3 * projections)
        attended = min(tokens, window.budget) + window.chunk
        gathered = 6 * attended * folded + 2 * window.chunk * shape.heads * shape.dim
        rows = window.chunk * (1 if self.method.score.features else shape.heads)
        scores = 4 * (min(KEEP_ELEMENTS, rows * tokens) + 2 * min(BLOCK_ELEMENTS, rows * tokens))
        fitting = 0
        if self.method.score.features and self.method.compressor.fit_tokens:
            fitting = 8 * folded * folded * (2 * shape.layers + 8)
        return (activations + gathered) * size + scores + fitting + tokens * TOKEN_BYTES + LIBRARIES

    def operations(self, tokens: int) -> float:
        """Floating-point operations of reading; a multiplication and an addition are two."""
        shape, window = self.shape, self.method.window
        selects = self.method.reading == "select"
        seen = window.initial + window.local + window.chunk / 2
        seen += window.selected if selects else 0
        attention = 4 * shape.heads * shape.dim * min(seen, tokens / 2)
        scoring = 2.0 * shape.groups * shape.dim * self.rank
        if selects:
            width = self.rank or shape.layers * shape.groups * shape.dim
            whole = shape.layers * shape.heads * shape.dim
            width = width if self.method.score.features else whole
            scoring += 2 * width * max(0.0, tokens / 2 - window.local - window.initial)
        return tokens * (2 * shape.body + shape.layers * attention + scoring)


def rank_of(method: Method, shape: Shape) -> int:
    """R, the reduced keys' width that the compressor stores, summed over the layers; 0 for none.

    Raises:
        PresetError: the compressor is not for a model of this shape.
    """
    if not method.score.features:
        return 0
    folded = shape.groups * shape.dim
    if method.compressor.fit_tokens == 0:
        return sum(_fitted_rank(method, layer, folded) for layer in range(shape.layers))
    return shape.layers * method.compressor.stored_rank(folded)


def _fitted_rank(method: Method, layer: int, folded: int) -> int:
    projection = method.compressor.fit(layer, Moments())
    if projection is None:
        return 0
    try:
        return projection.keys(torch.zeros(1, folded)).shape[1]
    except RuntimeError as error:
        raise PresetError(
            f"the compressor does not fit this model: folded keys have {folded} dimensions",
            "it was made for another model",
        ) from error
