"""Loki: tokens for each query head, by logits in the first principal directions of the keys.

    P_g    (D, r) directions of largest variance of key head g's unrotated keys
    s_h(m) = scale * (q_h P_g)(k_m P_g)^T, q rotated to the far distance; k P_g is kept
    choice   for each query head h the k best of s_h; attention to them is exact

Unlike the original, P is fitted on the first `fit_tokens` of M and not on another text, keys are
unrotated, and chunks select, too (`per_head`). As there, means are subtracted for the directions
only. Source: Singhania et al., arXiv 2406.02542.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.algebra import to_float64
from esa_cli.attention.parts import Selector, check_at_least
from esa_cli.attention.selection import Blocks
from esa_cli.attention.step import LayerState, Step, tokens_per_block
from esa_cli.methods.paper import far_away
from esa_cli.methods.per_head import BlockRows, best_by_head
from esa_cli.methods.registry import OWN_SCORE, Base, recipe, register
from esa_cli.storage.memory_store import GrowingRows


@dataclass(frozen=True)
class Directions:
    """Principal directions (G, D, r) of the keys of tokens [low, upto)."""

    low: int
    upto: int
    basis: Tensor


@dataclass
class LokiState(LayerState):
    """The directions of one layer, and the keys projected on them, for one `settings`.

    The directions depend on the first tokens alone: cropping later ones changes neither them nor
    the projected keys that stay.
    """

    settings: tuple[int, int] | None = None
    directions: Directions | None = None
    keys: BlockRows = field(default_factory=BlockRows)

    def crop(self, length: int) -> None:
        self.keys.crop(length)
        if self.directions is not None and length < self.directions.upto:
            self.directions = None


def principal_directions(keys: Tensor, rank: int) -> Tensor:
    """Returns the directions of largest variance (G, D, rank) of keys (G, n, D), best first."""
    whole = to_float64(keys)
    centred = whole - whole.mean(dim=1, keepdim=True)
    vectors: Tensor = torch.linalg.eigh(centred.transpose(1, 2) @ centred).eigenvectors
    return vectors[..., -rank:].flip(-1).float().to(keys.device)


@register("selector", "loki", about="tokens for each head, in the keys' main directions")
@dataclass(frozen=True)
class Loki(Selector):
    """The best middle tokens of each query head, on keys of `rank` numbers.

    Args:
        rank: r; None: a quarter of D. fit_tokens: middle tokens that the directions are fitted on;
            fewer, if the first selection comes before.
        rotate: score the logit of attention at the far distance.
    """

    rank: int | None = None
    fit_tokens: int = 2048
    rotate: bool = True

    def __post_init__(self) -> None:
        check_at_least(1, rank=self.rank, fit_tokens=self.fit_tokens)

    def new_layer_state(self) -> LokiState:
        return LokiState()

    def select(self, step: Step, budget: int) -> Tensor | list[Tensor]:
        """H tensors (K,) of offsets into M."""
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        basis = self._fitted_basis(step)

        def project(start: int, count: int) -> Tensor:
            keys = step.store.span(start, start + count)[0].float()
            return (keys @ basis).transpose(0, 1).flatten(1)

        state: LokiState = step.layer_state(self)
        reduced = state.keys.extend(step, 1, step.store.heads * basis.shape[2], project)
        return best_by_head(
            lambda: self._logits(step, basis, reduced), step.queries, step.middle, budget
        )

    def _fitted_basis(self, step: Step) -> Tensor:
        """Returns P (G, D, r); fitting it drops the keys projected before."""
        state: LokiState = step.layer_state(self)
        dim = step.store.dim
        rank = max(1, dim // 4) if self.rank is None else min(self.rank, dim)
        settings, directions = (rank, self.fit_tokens), state.directions
        if directions is None or state.settings != settings or directions.low != step.low:
            upto = min(step.low + self.fit_tokens, step.high)
            keys = step.store.span(step.low, upto)[0]
            directions = Directions(step.low, upto, principal_directions(keys, rank))
            state.settings, state.directions, state.keys = settings, directions, BlockRows()
        return directions.basis

    def _logits(self, step: Step, basis: Tensor, reduced: GrowingRows) -> Blocks:
        """Yields (offset into M, s_h (H, C, n))."""
        heads, chunk, dim = step.queries.shape
        groups = step.store.heads
        q = step.rotated(self.rotate).float() * step.scale
        q = q.reshape(groups, heads // groups * chunk, dim) @ basis
        for at, rows in reduced.blocks(0, step.middle, tokens_per_block(heads * chunk)):
            keys = rows.float().view(rows.shape[0], groups, -1).permute(1, 2, 0)
            yield at, (q @ keys).view(heads, chunk, -1)


@recipe(
    "loki",
    about="tokens for each head, by logits in the first principal directions of its keys",
    source="Singhania et al., Loki: Low-Rank Keys for Efficient Sparse Attention, arXiv 2406.02542",
    cost="F M / 4 + 2 F (I + L) + 2 H D K as published; here F M / 4 + 2 F L + 2 H F (I + K), "
    "as rows of all key heads are read for each query head",
)
def loki(base: Base) -> dict[str, Any]:
    return {
        "selector": {"name": "loki", "rank": None, "fit_tokens": 2048, "rotate": True},
        **OWN_SCORE,
        "position": {"name": "esa", "distance": far_away(base)},
        "reading": "select",
    }
