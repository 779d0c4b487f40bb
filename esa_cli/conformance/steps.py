"""Random selection steps, as `attention` makes them, for tests of scores and selectors.

Letters as in `protocols`. Knows nothing about the checks; plugin authors use it in their own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from ..compressors import flatten_keys
from ..protocols import Projection, Score
from ..rotary import Rope
from ..scores import SumScore
from ..step import Step
from ..store import LayerStore

READ = 256
"""Tokens per chunk while the store is filled, before the chunk that selects."""
BASE = 10000.0

Observe = Callable[[Step], None]
PLAIN = cast(Score, SumScore())


class Rotary(nn.Module):
    """A plain rotary embedding with the host's call: (x, position_ids (1, n)) -> cos, sin.

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
    score: Score = PLAIN,
    projection: Projection | None = None,
    observe: Observe | None = None,
) -> Step:
    """A step over a random document of I + M + L + C tokens, all of them in the store.

    The same arguments give the same numbers, whatever `observe` does.

    Args:
        middle, chunk, initial, local: M, C, I and L. heads, groups, dim: H, G and D.
        spread: standard deviation of queries (H, C, D) and unrotated keys and values (G, N, D).
        ties: every token has the same key. distance: query position that stands for 'far'.
        score: the step's score; `sum` unless given. projection: reduces keys of F = G * D.
        observe: a selector's hook, called for every chunk on the way, as `attention` does.
    """
    start = initial + middle + local
    place = torch.device(device)
    random = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> Tensor:
        values = torch.randn(rows, start + chunk, dim, generator=random)
        return (values * spread).to(place, dtype)

    queries, keys, values = draw(heads), draw(groups), draw(groups)
    if ties:
        keys = keys[:, :1].expand_as(keys)
    store = LayerStore(groups, dim, dtype, place)
    step = Step(
        layer=0,
        start=start,
        queries=queries[:, start:],
        store=store,
        low=initial,
        high=initial + middle,
        local=local,
        distance=distance,
        scale=dim**-0.5,
        rope=Rope(Rotary(dim)),
        score=score,
        projection=projection,
    )
    for low, high in _spans(start, chunk):
        store.append(keys[:, low:high], values[:, low:high])
        if observe is not None:
            observe(_watched(step, low, queries[:, low:high]))
    _reduce(step)
    return step


def advance(step: Step, chunk: int = 8, *, seed: int = 1, observe: Observe | None = None) -> Step:
    """The step of `chunk` new random tokens after those now in the store, cropped or not.

    The step's windows are kept: L is the last `step.local` tokens, I the first `step.low`.
    """
    store, start = step.store, len(step.store)
    random = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> Tensor:
        return torch.randn(rows, chunk, store.dim, generator=random).to(step.queries)

    queries = draw(step.queries.shape[0])
    store.append(draw(store.heads), draw(store.heads))
    if observe is not None:
        observe(_watched(step, start, queries))
    local = min(step.local, start)
    high = start - local
    low = min(step.low, high)
    step = replace(step, start=start, queries=queries, low=low, high=high, local=local)
    _reduce(step)
    return step


def _spans(start: int, chunk: int) -> Iterator[tuple[int, int]]:
    for low in range(0, start, READ):
        yield low, min(low + READ, start)
    yield start, start + chunk


def _watched(step: Step, start: int, queries: Tensor) -> Step:
    """What `observe` is given: nothing is initial yet, and everything before L may become M."""
    local = min(step.local, start)
    return replace(
        step,
        start=start,
        queries=queries,
        low=0,
        high=start - local,
        local=local,
        projection=None,
    )


def _reduce(step: Step) -> None:
    if step.projection is None:
        return
    for _, keys in step.store.key_blocks(step.store.reduced, step.high):
        step.store.append_features(step.projection.keys(flatten_keys(keys)))
