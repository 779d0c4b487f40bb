"""Quest and Loki, which select pages or tokens for each query head by cheap bounds or logits.

Each head makes one selection for all queries of a chunk, by equation (4) for this head alone:

    s_h(m) = max over c of ( x_h,c(m) - max over m' of x_h,c(m') )

In Quest (Tang et al., arXiv 2406.10774), x is an upper bound of a page's best logit,

    u_h(p) = scale * sum over d of max( q_d max_{m in p} k_m,d , q_d min_{m in p} k_m,d )

and the floor(budget / page) pages with the highest bounds are selected. In Loki (Singhania et al.,
arXiv 2406.02542), x is the logit in the first principal directions of the keys; attention to the k
best tokens is exact:

    P_g    (D, r) directions of largest variance of key head g's unrotated keys
    s_h(m) = scale * (q_h P_g)(k_m P_g)^T, where k P_g is cached

Unlike the originals, q is rotated to the far distance, keys are unrotated, every chunk selects
tokens, and P is fitted on the first tokens of M instead of another text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.algebra import to_float64
from esa_cli.attention.parts import Selector, check_minimum
from esa_cli.attention.selection import Blocks, make_reusable_blocks, top_k
from esa_cli.attention.step import LayerState, Step, choose_tokens_per_block
from esa_cli.methods.paper import choose_far_distance
from esa_cli.methods.registry import OWN_SCORE, Base, recipe, register
from esa_cli.storage.memory_store import GrowingRowMatrix

TOKENS_AT_ONCE = 4096
"""The number of tokens whose reduced keys or bounds are computed at once."""


def select_by_head(
    compute_blocks: Callable[[], Blocks], queries: Tensor, candidate_count: int, budget: int
) -> list[Tensor]:
    """Selects the best tokens or pages of each head, as ascending indices (budget,).

    `compute_blocks` computes the logits (H, C, n) of the queries (H, C, D), twice if the logits are
    too many to cache."""
    heads, chunk, _ = queries.shape
    if chunk == 1:
        parts = [block[:, 0] for _, block in compute_blocks()]
    else:
        passes = make_reusable_blocks(compute_blocks, heads * chunk * candidate_count)
        top = torch.full((heads, chunk), float("-inf"), device=queries.device)
        for _, block in passes():
            top = torch.maximum(top, block.float().amax(dim=2))
        parts = [(block.float() - top[..., None]).amax(dim=1) for _, block in passes()]
    return [top_k(row, budget) for row in torch.cat(parts, dim=1)]


def list_block_tokens(blocks: Tensor, block_size: int, middle_count: int) -> Tensor:
    """Returns the offsets (K,) of tokens in ascending blocks (n,); the last block may be short."""
    tokens = blocks[:, None] * block_size + torch.arange(block_size, device=blocks.device)
    return tokens[tokens < middle_count]


@dataclass
class BlockRowCache(LayerState):
    """Cached numbers (n, width) of the first n whole blocks of `size` tokens from token `low` on.

    M begins at the same token in every step and grows at its end, so the numbers of a whole block
    remain valid until the block, or one of the `lookahead` tokens after the block, is cropped."""

    low: int = 0
    size: int = 0
    rows: GrowingRowMatrix | None = None
    lookahead: int = 0

    def crop(self, length: int) -> None:
        if self.rows is not None:
            self.rows.truncate_rows((length - self.lookahead - self.low) // self.size)

    def extend_rows(
        self, step: Step, size: int, row_width: int, compute_rows: Callable[[int, int], Tensor],
        lookahead: int = 0,
    ) -> GrowingRowMatrix:  # fmt: skip
        """Returns the rows (at least M // size, row_width) of M's whole blocks, in the keys' dtype.
        `compute_rows(first token, n)` returns the rows of n blocks from the first token on."""
        rows = self.rows
        if rows is None or (self.low, self.size, rows.width) != (step.low, size, row_width):
            rows = GrowingRowMatrix(row_width, step.queries.dtype, step.queries.device)
            self.low, self.size, self.rows = step.low, size, rows
        self.lookahead = lookahead
        whole = step.middle // size
        while rows.length < whole:
            count = min(whole - rows.length, max(1, TOKENS_AT_ONCE // size))
            rows.append_rows(compute_rows(step.low + rows.length * size, count))
        return rows


@register("selector", "quest", about="pages for each head, by a bound of their logits")
@dataclass(frozen=True)
class QuestSelector(Selector):
    """Selects whole pages of tokens for each query head; a budget below one page selects nothing.

    Args:
        page: tokens in a page. dense_layers: number of first layers with full attention; the
            original has 2, and at least 3 pages."""

    page: int = 16
    dense_layers: int = 0

    def __post_init__(self) -> None:
        check_minimum(1, page=self.page)
        check_minimum(0, dense_layers=self.dense_layers)

    def new_layer_state(self) -> BlockRowCache:
        return BlockRowCache()

    def allowance(self, step: Step, budget: int) -> int:
        return step.middle if step.layer < self.dense_layers else budget

    def select(self, step: Step, budget: int) -> Tensor | list[Tensor]:
        """Returns H tensors (K,) of offsets into M."""
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        bounds, pages = self._update_page_bounds(step), -(-step.middle // self.page)
        chosen = select_by_head(
            lambda: self._compute_upper_bounds(step, bounds),
            step.queries,
            pages,
            budget // self.page,
        )
        return [list_block_tokens(row, self.page, step.middle) for row in chosen]

    def _update_page_bounds(self, step: Step) -> GrowingRowMatrix:
        """Returns the largest and smallest numbers of each page's keys: rows (pages, G * 2 D)."""

        def bound_span_keys(start: int, count: int) -> Tensor:
            return find_page_bounds(step.store.span(start, start + count * self.page)[0], self.page)

        rows: BlockRowCache = step.layer_state(self)
        return rows.extend_rows(
            step, self.page, 2 * step.store.heads * step.store.dim, bound_span_keys
        )

    def _compute_upper_bounds(self, step: Step, bounds: GrowingRowMatrix) -> Blocks:
        """Yields blocks of bounds, as pairs of the first page and the bounds u (H, C, n)."""
        heads, chunk, dim = step.queries.shape
        groups, whole = step.store.heads, step.middle // self.page
        q = step.rotated(True).float() * step.scale
        # max(q a, q b) with a >= b is q a where q > 0, and q b elsewhere.
        both = torch.cat((q.clamp(min=0), q.clamp(max=0)), dim=-1)
        both = both.view(groups, heads // groups * chunk, 2 * dim)

        def multiply_bounds(rows: Tensor) -> Tensor:
            pages = rows.float().view(-1, groups, 2 * dim).permute(1, 2, 0)
            return (both @ pages).view(heads, chunk, -1)

        for first, rows in bounds.get_blocks(0, whole, choose_tokens_per_block(heads * chunk)):
            yield first, multiply_bounds(rows)
        if whole * self.page < step.middle:
            keys = step.store.span(step.low + whole * self.page, step.high)[0]
            yield whole, multiply_bounds(find_page_bounds(keys, keys.shape[1]))


def find_page_bounds(keys: Tensor, page_size: int) -> Tensor:
    """Returns the largest and smallest numbers (n, G * 2 D) of n pages of keys (G, n * page, D)."""
    pages = keys.reshape(keys.shape[0], -1, page_size, keys.shape[2])
    both = torch.cat((pages.amax(dim=2), pages.amin(dim=2)), dim=-1)
    return both.transpose(0, 1).flatten(1)


@dataclass(frozen=True)
class PrincipalDirections:
    """Principal directions (G, D, r) of the keys of tokens [low, upto)."""

    low: int
    upto: int
    basis: Tensor


@dataclass
class LokiState(LayerState):
    """The principal directions of one layer's keys and the keys projected on them, for one choice
    of `settings`; cropping changes neither as long as the first tokens remain."""

    settings: tuple[int, int] | None = None
    directions: PrincipalDirections | None = None
    keys: BlockRowCache = field(default_factory=BlockRowCache)

    def crop(self, length: int) -> None:
        self.keys.crop(length)
        if self.directions is not None and length < self.directions.upto:
            self.directions = None


def find_principal_directions(keys: Tensor, rank: int) -> Tensor:
    """Returns the directions of largest variance (G, D, rank) of keys (G, n, D), best first."""
    whole = to_float64(keys)
    centred = whole - whole.mean(dim=1, keepdim=True)
    vectors: Tensor = torch.linalg.eigh(centred.transpose(1, 2) @ centred).eigenvectors
    return vectors[..., -rank:].flip(-1).float().to(keys.device)


@register("selector", "loki", about="tokens for each head, in the keys' main directions")
@dataclass(frozen=True)
class LokiSelector(Selector):
    """Selects the best middle tokens of each query head by keys reduced to `rank` dimensions.

    Args:
        rank: r; None stands for a quarter of D.
        fit_tokens: the largest number of middle tokens on which the directions are fitted.
        rotate: whether scores are the logits of attention at the far distance."""

    rank: int | None = None
    fit_tokens: int = 2048
    rotate: bool = True

    def __post_init__(self) -> None:
        check_minimum(1, rank=self.rank, fit_tokens=self.fit_tokens)

    def new_layer_state(self) -> LokiState:
        return LokiState()

    def select(self, step: Step, budget: int) -> Tensor | list[Tensor]:
        """Returns H tensors (K,) of offsets into M."""
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        basis = self._fit_principal_directions(step)

        def project_keys(start: int, count: int) -> Tensor:
            keys = step.store.span(start, start + count)[0].float()
            return (keys @ basis).transpose(0, 1).flatten(1)

        state: LokiState = step.layer_state(self)
        reduced = state.keys.extend_rows(step, 1, step.store.heads * basis.shape[2], project_keys)
        return select_by_head(
            lambda: self._compute_logits(step, basis, reduced), step.queries, step.middle, budget
        )

    def _fit_principal_directions(self, step: Step) -> Tensor:
        """Returns the principal directions P (G, D, r) of the keys, fitted at a change."""
        state: LokiState = step.layer_state(self)
        dim = step.store.dim
        rank = max(1, dim // 4) if self.rank is None else min(self.rank, dim)
        settings, directions = (rank, self.fit_tokens), state.directions
        if directions is None or state.settings != settings or directions.low != step.low:
            upto = min(step.low + self.fit_tokens, step.high)
            keys = step.store.span(step.low, upto)[0]
            directions = PrincipalDirections(step.low, upto, find_principal_directions(keys, rank))
            state.settings, state.directions, state.keys = settings, directions, BlockRowCache()
        return directions.basis

    def _compute_logits(self, step: Step, basis: Tensor, reduced: GrowingRowMatrix) -> Blocks:
        """Yields blocks of logits, as pairs of an offset into M and the logits s_h (H, C, n)."""
        heads, chunk, dim = step.queries.shape
        groups = step.store.heads
        q = step.rotated(self.rotate).float() * step.scale
        q = q.reshape(groups, heads // groups * chunk, dim) @ basis
        for at, rows in reduced.get_blocks(0, step.middle, choose_tokens_per_block(heads * chunk)):
            keys = rows.float().view(rows.shape[0], groups, -1).permute(1, 2, 0)
            yield at, (q @ keys).view(heads, chunk, -1)


def _register_recipe(
    name: str, about: str, source: str, cost: str, options: dict[str, Any]
) -> None:
    """Registers a recipe of a selector with options that places all far tokens at one distance."""

    def build_recipe_settings(base: Base) -> dict[str, Any]:
        return {
            "selector": {"name": name, **options},
            **OWN_SCORE,
            "position": {"name": "esa", "distance": choose_far_distance(base)},
            "reading": "select",
        }

    cost = (
        f"{cost} + 2 F (I + L) + 2 H D K as published; here {cost} + 2 F L + 2 H F (I + K), "
        "as keys of all heads are loaded for each query head"
    )
    recipe(name, about=about, source=source, cost=cost)(build_recipe_settings)


_register_recipe("quest", "pages of 16 tokens for each head, by an upper bound of their best logit",
        "Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, "
        "arXiv 2406.10774", "2 F M / 16", {"page": 16, "dense_layers": 0})  # fmt: skip
_register_recipe("loki",
        "tokens for each head, by logits in the first principal directions of its keys",
        "Singhania et al., Loki: Low-Rank Keys for Efficient Sparse Attention, arXiv 2406.02542",
        "F M / 4", {"rank": None, "fit_tokens": 2048, "rotate": True})  # fmt: skip
