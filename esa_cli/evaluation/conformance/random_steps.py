"""Random selection steps, for the checks and for plugin authors' own tests.

A selector that observes selects for a chunk first and observes it after: `make_step` makes the step
to select for, `watched` the step to observe, and `advance` calls `observe` and makes the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from random import Random

import torch
from torch import Tensor, nn

from esa_cli.attention.algebra import flatten_keys, fuse
from esa_cli.attention.kernels import reference
from esa_cli.attention.parts import Score
from esa_cli.attention.rope import Rope
from esa_cli.attention.selection import SumScore
from esa_cli.attention.step import Projection, Step
from esa_cli.attention.window import QueryState, TurnText
from esa_cli.storage.memory_store import MemoryStore

READ = 256
"""Tokens per chunk while the store is filled."""
BASE = 10000.0
ASKED = "Where are word3 and word7?"

Observe = Callable[[Step], None]
PLAIN = SumScore()


class PlainRotary(nn.Module):
    """A rotary embedding with transformers' signature: (x, position_ids (1, n)) -> cos, sin.

    Args:
        dim: D, even.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.frequencies = BASE ** (-torch.arange(0, dim, 2) / dim)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (1, n, D) in the dtype and on the device of x."""
        angles = position_ids.to(x.device)[..., None].float() * self.frequencies.to(x.device)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def make_step(
    *,
    middle: int = 100,
    chunk: int = 8,
    initial: int = 4,
    local: int = 16,
    heads: int = 6,
    groups: int = 2,
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seed: int = 0,
    spread: float = 1.0,
    ties: bool = False,
    distance: int = 64,
    layer: int = 0,
    decoding: bool = False,
    score: Score = PLAIN,
    projection: Projection | None = None,
    observe: Observe | None = None,
    words: bool = True,
) -> Step:
    """A step over a random document of I + M + L + C tokens, all of them in the store. The same
    arguments give the same numbers, whatever `observe` does.

    Args:
        middle, chunk, initial, local: M, C, I and L. heads, groups, dim: H, G and D.
        spread: standard deviation of queries (H, C, D) and unrotated keys and values (G, N, D).
        ties: every token has the same key. distance: query position that stands for 'far'.
        decoding: the chunk is an answer's token. projection: reduces keys of F = G * D.
        observe: a selector's hook, called for every chunk before the step's own.
        words: the step has the text of its tokens, random words, and a question of two of them.
    """
    start = initial + middle + local
    store = MemoryStore(groups, dim, dtype, torch.device(device))
    rows = _drawn((heads, groups, groups), start + chunk, dim, seed)
    queries, keys, values = ((one * spread).to(store.device, dtype) for one in rows)
    if ties:
        keys = keys[:, :1].expand_as(keys)
    step = Step(
        layer=layer,
        start=start,
        queries=queries[:, start:],
        store=store,
        low=initial,
        high=initial + middle,
        local=local,
        distance=distance,
        scale=dim**-0.5,
        rope=Rope(PlainRotary(dim)),
        score=score,
        projection=projection,
        decoding=decoding,
        query=QueryState(text=TurnText(ASKED, partial(_words, start, seed)) if words else None),
    )
    for low in range(0, start, READ):
        high = min(low + READ, start)
        store.append(keys[:, low:high], values[:, low:high])
        if observe is not None:
            observe(observed_step(_at(step, low, queries[:, low:high])))
    store.append(keys[:, start:], values[:, start:])
    _reduce(step)
    return step


def advance(
    step: Step,
    chunk: int = 8,
    *,
    seed: int = 1,
    decoding: bool = False,
    back: int = 0,
    observe: Observe | None = None,
) -> Step:
    """The step of `chunk` new random tokens after those now in the store, with the same windows.

    Args:
        decoding: they are an answer's token.
        back: tokens taken back before, this step's chunk first; a new turn then begins.
        observe: a selector's hook, called for this step's chunk, unless it was taken back already.
    """
    store = step.store
    if observe is not None and len(store) == step.start + step.queries.shape[1]:
        observe(observed_step(step))
    if back:
        store.crop(-back)
        for state in step.states.values():
            state.crop(len(store))
        step = replace(step, query=QueryState(text=step.text))
    start = len(store)
    random = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> Tensor:
        return torch.randn(rows, chunk, store.dim, generator=random).to(step.queries)

    queries = draw(step.queries.shape[0])
    store.append(draw(store.heads), draw(store.heads))
    step = replace(_at(step, start, queries), decoding=decoding)
    _reduce(step)
    return step


def observed_step(step: Step) -> Step:
    """The argument of `observe` after the step's chunk attended to I (at `distance`), L and C."""
    return replace(step, low=0, projection=None, lse=_lse(step))


def _words(tokens: int, seed: int) -> list[str]:
    """A word of 50 for each token, every ninth with the end of a sentence."""
    draw = Random(seed)
    return [f" word{draw.randrange(50)}{'.' * (i % 9 == 8)}" for i in range(tokens)]


@lru_cache(maxsize=4)  # checks that compare two steps make the same one again
def _drawn(heads: tuple[int, ...], tokens: int, dim: int, seed: int) -> list[Tensor]:
    """Random numbers (h, tokens, D) for each number of heads h; not to be written to."""
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(h, tokens, dim, generator=random) for h in heads]


def _at(step: Step, start: int, queries: Tensor) -> Step:
    """The step of the chunk of queries (H, C, D) from position `start` on."""
    local = min(step.local, start)
    high = start - local
    low = min(step.low, high)
    return replace(
        step, start=start, queries=queries, low=low, high=high, local=local, decoding=False
    )


def _lse(step: Step) -> Tensor:
    """(H, C) log-sum-exp of attention to I, L and C."""
    chunk, rope = step.queries.shape[1], step.rope
    places = torch.arange(step.local + chunk, device=step.queries.device)
    keys, values = step.store.span(step.start - step.local, step.start + chunk)
    queries = rope.rotate(step.queries, places[step.local :])
    near = reference(queries, rope.rotate(keys, places), values, True, step.scale)
    keys, values = step.store.span(0, step.low)
    return fuse([near, reference(step.rotated(True), keys, values, False, step.scale)])[1]


def _reduce(step: Step) -> None:
    if step.projection is None:
        return
    for _, keys in step.store.key_blocks(step.store.reduced, step.high):
        step.store.append_features(step.projection.keys(flatten_keys(keys)))
