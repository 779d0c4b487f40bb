"""The methods Quest and Loki, which select tokens for each query head by approximate logits.

Each head makes one selection for all queries of a chunk, by the head's own scores in equation (4)
of the ESA paper. Quest (Tang et al., arXiv 2406.10774) selects the pages with the highest upper
bounds of logits. A page's bound is the sum over dimensions d of max(q_d max k_d, q_d min k_d), with
max and min over the page's keys k. Loki (Singhania et al., arXiv 2406.02542) computes logits in the
first principal directions of the keys, and attends exactly to the k best tokens.

Unlike the published methods, esa rotates queries to the far distance, leaves keys unrotated, and
selects tokens for every chunk. Loki's directions are fitted to the first middle tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.algebra import concat_key_heads, to_float64
from esa_cli.attention.parts import Selector, require_at_least
from esa_cli.attention.selection import Blocks, cache_scores_if_few, top_k
from esa_cli.attention.step import LayerState, Step, choose_tokens_per_block
from esa_cli.methods.paper import choose_far_distance
from esa_cli.methods.registry import OWN_SCORE, PresetSizes, recipe, register
from esa_cli.storage.memory_store import GrowingRowMatrix

TOKENS_AT_ONCE = 4096
"""The number of tokens whose reduced keys or bounds are computed at once."""


def select_for_each_head(
    compute_blocks: Callable[[], Blocks], queries: Tensor, candidate_count: int, budget: int
) -> list[Tensor]:
    """Returns, for each head, the ascending indices (budget,) of the best tokens or pages, whose
    logits (H, C, n) `compute_blocks` yields, twice if they are too many to cache."""
    heads, chunk, _ = queries.shape
    if chunk == 1:
        parts = [block[:, 0] for _, block in compute_blocks()]
    else:
        passes = cache_scores_if_few(compute_blocks, heads * chunk * candidate_count)
        top = reduce(torch.maximum, (block.float().amax(dim=2) for _, block in passes()))
        parts = [(block.float() - top[..., None]).amax(dim=1) for _, block in passes()]
    return [top_k(row, budget) for row in torch.cat(parts, dim=1)]


def list_block_tokens(block_indices: Tensor, block_size: int, middle_count: int) -> Tensor:
    """Returns the offsets (K,) of the middle tokens in the blocks with ascending indices (n,)."""
    offsets = torch.arange(block_size, device=block_indices.device)
    tokens = block_indices[:, None] * block_size + offsets
    return tokens[tokens < middle_count]


@dataclass
class KeyBlockCache(LayerState):
    """A cache of numbers that were computed from the keys of each whole block of `size` tokens,
    valid until the block or one of the next `lookahead` tokens is cropped."""

    low: int = 0
    size: int = 0
    rows: GrowingRowMatrix | None = None
    lookahead: int = 0

    def crop(self, length: int) -> None:
        if self.rows is not None:
            self.rows.truncate_rows((length - self.lookahead - self.low) // self.size)

    def extend_cache(
        self, step: Step, block_size: int, block_width: int,
        compute_blocks: Callable[[Tensor, int], Tensor], lookahead: int = 0,
    ) -> GrowingRowMatrix:  # fmt: skip
        """Returns the numbers of the middle tokens' whole blocks, computing what is not cached by
        `compute_blocks` of the blocks' keys (G, n, D) and of the first token's position."""
        rows = self.rows
        if rows is None or (self.low, self.size, rows.width) != (step.low, block_size, block_width):
            rows = GrowingRowMatrix(block_width, step.queries.dtype, step.queries.device)
            self.low, self.size, self.rows = step.low, block_size, rows
        self.lookahead = lookahead
        whole = step.middle // block_size
        while rows.length < whole:
            count = min(whole - rows.length, max(1, TOKENS_AT_ONCE // block_size))
            first = step.low + rows.length * block_size
            keys, _ = step.store.span(first, first + count * block_size)
            rows.append_rows(compute_blocks(keys, first))
        return rows


@register("selector", "quest", about="pages for each head, by a bound of their logits")
@dataclass(frozen=True)
class QuestSelector(Selector):
    """Selects whole pages of tokens for each query head, none by a budget below one page."""

    page: int = 16  # tokens
    dense_layers: int = 0  # number of first layers with full attention; the original has 2

    def __post_init__(self) -> None:
        require_at_least(1, page=self.page)
        require_at_least(0, dense_layers=self.dense_layers)

    def new_layer_state(self) -> KeyBlockCache:
        return KeyBlockCache()

    def allowance(self, step: Step, budget: int) -> int:
        return step.middle if step.layer < self.dense_layers else budget

    def select(self, step: Step, budget: int) -> Tensor | list[Tensor]:
        """Returns offsets (K,) for each query head, or one tensor if all M are selected."""
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        rows: KeyBlockCache = step.layer_state(self)
        width, pages = 2 * step.store.heads * step.store.dim, -(-step.middle // self.page)
        extremes = rows.extend_cache(
            step, self.page, width, lambda keys, _: find_page_extremes(keys, self.page)
        )
        compute_bounds = partial(self._compute_page_bounds, step, extremes)
        chosen = select_for_each_head(compute_bounds, step.queries, pages, budget // self.page)
        return [list_block_tokens(row, self.page, step.middle) for row in chosen]

    def _compute_page_bounds(self, step: Step, page_extremes: GrowingRowMatrix) -> Blocks:
        """Yields upper bounds of pages' logits, as pairs of the first page and bounds (H, C, n)."""
        heads, chunk, dim = step.queries.shape
        groups, whole = step.store.heads, step.middle // self.page
        q = step.rotated(True).float() * step.scale
        # max(q a, q b) with a >= b is q a where q > 0, and q b elsewhere.
        both = torch.cat((q.clamp(min=0), q.clamp(max=0)), dim=-1)
        both = both.view(groups, heads // groups * chunk, 2 * dim)

        def bound_page_logits(page_extremes: Tensor) -> Tensor:
            pages = page_extremes.float().view(-1, groups, 2 * dim).permute(1, 2, 0)
            return (both @ pages).view(heads, chunk, -1)

        pages_at_once = choose_tokens_per_block(heads * chunk)
        for first, rows in page_extremes.iterate_row_blocks(0, whole, pages_at_once):
            yield first, bound_page_logits(rows)
        if whole * self.page < step.middle:
            keys = step.store.span(step.low + whole * self.page, step.high)[0]
            yield whole, bound_page_logits(find_page_extremes(keys, keys.shape[1]))


def find_page_extremes(keys: Tensor, page_size: int) -> Tensor:
    """Returns each component's largest and smallest value (n, G * 2 D) in n pages of keys."""
    pages = keys.reshape(keys.shape[0], -1, page_size, keys.shape[2])
    both = torch.cat((pages.amax(dim=2), pages.amin(dim=2)), dim=-1)
    return concat_key_heads(both)


@dataclass
class LokiLayerState(LayerState):
    """The principal directions of a layer's keys, and the keys projected on these directions."""

    settings: tuple[int, int, int] | None = None  # r, `fit_tokens` and the fit's first position
    upto: int = 0  # the position after the last token of the fit
    directions: Tensor | None = None  # (G, D, r)
    keys: KeyBlockCache = field(default_factory=KeyBlockCache)

    def crop(self, length: int) -> None:
        self.keys.crop(length)
        if length < self.upto:
            self.directions, self.upto = None, 0


def find_principal_directions(keys: Tensor, rank: int) -> Tensor:
    """Returns the directions of largest variance (G, D, rank) of keys (G, n, D), best first."""
    whole = to_float64(keys)
    centred = whole - whole.mean(dim=1, keepdim=True)
    vectors: Tensor = torch.linalg.eigh(centred.transpose(1, 2) @ centred).eigenvectors
    return vectors[..., -rank:].flip(-1).float().to(keys.device)


@register("selector", "loki", about="tokens for each head, in the keys' main directions")
@dataclass(frozen=True)
class LokiSelector(Selector):
    """Selects the best middle tokens of each query head by keys reduced to `rank` dimensions."""

    rank: int | None = None  # r; None stands for a quarter of D
    fit_tokens: int = 2048  # the largest number of middle tokens on which directions are fitted
    rotate: bool = True  # whether scores are the logits of attention at the far distance

    def __post_init__(self) -> None:
        require_at_least(1, rank=self.rank, fit_tokens=self.fit_tokens)

    def new_layer_state(self) -> LokiLayerState:
        return LokiLayerState()

    def select(self, step: Step, budget: int) -> Tensor | list[Tensor]:
        """Returns offsets (K,) for each query head, or one tensor if all M are selected."""
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        state: LokiLayerState = step.layer_state(self)
        basis = self._fit_principal_directions(state, step)
        width = step.store.heads * basis.shape[2]
        reduced = state.keys.extend_cache(
            step, 1, width, lambda keys, _: concat_key_heads(keys.float() @ basis)
        )
        compute_logits = partial(self._compute_reduced_logits, step, basis, reduced)
        return select_for_each_head(compute_logits, step.queries, step.middle, budget)

    def _fit_principal_directions(self, state: LokiLayerState, step: Step) -> Tensor:
        """Returns the principal directions (G, D, r) of keys, fitted anew for new settings."""
        dim = step.store.dim
        rank = max(1, dim // 4) if self.rank is None else min(self.rank, dim)
        settings = rank, self.fit_tokens, step.low
        if state.directions is None or state.settings != settings:
            state.upto = min(step.low + self.fit_tokens, step.high)
            keys = step.store.span(step.low, state.upto)[0]
            state.directions = find_principal_directions(keys, rank)
            state.settings, state.keys = settings, KeyBlockCache()
        return state.directions

    def _compute_reduced_logits(
        self, step: Step, directions: Tensor, projected_keys: GrowingRowMatrix
    ) -> Blocks:
        """Yields pairs of a block's offset into M and logits (H, C, n) of projected keys."""
        heads, chunk, dim = step.queries.shape
        groups = step.store.heads
        q = step.rotated(self.rotate).float() * step.scale
        q = q.reshape(groups, heads // groups * chunk, dim) @ directions
        block = choose_tokens_per_block(heads * chunk)
        for at, rows in projected_keys.iterate_row_blocks(0, step.middle, block):
            keys = rows.float().view(rows.shape[0], groups, -1).permute(1, 2, 0)
            yield at, (q @ keys).view(heads, chunk, -1)


def _register_per_head_method(
    name: str, about: str, source: str, cost: str, selector_options: dict[str, Any]
) -> None:
    """Registers a method that selects for each head, with far tokens at one distance."""

    def build_method_settings(preset: PresetSizes) -> dict[str, Any]:
        selector = {"name": name, **selector_options}
        position = {"name": "esa", "distance": choose_far_distance(preset)}
        return {"selector": selector, **OWN_SCORE, "position": position, "reading": "select"}

    cost = (
        f"{cost} + 2 F (I + L) + 2 H D K as published; here {cost} + 2 F L + 2 H F (I + K), "
        "as keys of all heads are loaded for each query head"
    )
    recipe(name, about=about, source=source, cost=cost)(build_method_settings)


_register_per_head_method(
        "quest", "pages of 16 tokens for each head, by an upper bound of their best logit",
        "Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, "
        "arXiv 2406.10774", "2 F M / 16", {"page": 16, "dense_layers": 0})  # fmt: skip
_register_per_head_method("loki",
        "tokens for each head, by logits in the first principal directions of its keys",
        "Singhania et al., Loki: Low-Rank Keys for Efficient Sparse Attention, arXiv 2406.02542",
        "F M / 4", {"rank": None, "fit_tokens": 2048, "rotate": True})  # fmt: skip
