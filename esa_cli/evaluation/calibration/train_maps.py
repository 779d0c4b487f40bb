"""Fits one layer's maps: in closed form, by PCA, or trained by gradient descent as in the paper.

Training minimises Eq. (7) with Adam. A batch is 128 queries and 128 keys, shuffled independently:
its 128 x 128 products are pairs of C and M, where the paper sums over both. One epoch uses every
query and every key once. Beyond the paper, the maps of the epoch with the smallest loss on
validation tokens are kept; the start counts as an epoch.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.attention.compression import Linear, closed_form, pca
from esa_cli.attention.parts import Moments
from esa_cli.evaluation.calibration.activations import MAPS, save
from esa_cli.system.text import text_digest

METHODS = ("closed-form", "pca", "learned")
VALIDATION = 0.1
"""Share of the tokens, the last ones, that choose the epoch and are not trained on."""
COMPARED = 1024
"""Most validation queries, and keys, that are compared after an epoch."""


@dataclass(frozen=True)
class TrainingSettings:
    """Of Adam, and the seed of the first maps and of the order of the tokens; defaults as in the
    paper."""

    epochs: int = 10
    batch: int = 128
    lr: float = 5e-4
    seed: int = 0


@dataclass(frozen=True)
class FitSettings:
    """Which of METHODS, and the settings of `learned`."""

    methods: tuple[str, ...] = METHODS
    training: TrainingSettings = field(default_factory=TrainingSettings)


def spaced_rows(x: Tensor, most: int) -> Tensor:
    """At most `most` rows of x (n, F), evenly spaced."""
    if x.shape[0] <= most:
        return x
    return x[torch.linspace(0, x.shape[0] - 1, most, device=x.device).long()]


def square_loss(full: Tensor, reduced: Tensor) -> Tensor:
    """Eq. (7): the mean squared difference of scores (Q, n)."""
    return (full - reduced).square().mean()


def train(queries: Tensor, keys: Tensor, rank: int, settings: TrainingSettings) -> Linear:
    """Maps of rank R trained on folded queries and keys (n, F) of one layer."""
    count, device = queries.shape[0], queries.device
    cut = max(1, count - max(1, round(VALIDATION * count)))
    held_queries, held_keys = (spaced_rows(x[cut:], COMPARED) for x in (queries, keys))
    held_scores = held_queries @ held_keys.T
    # The usual start of a linear layer: uniform, within one over the root of its width.
    random = torch.Generator().manual_seed(settings.seed)
    width = queries.shape[1]
    start = (2 * torch.rand(2, width, rank, generator=random) - 1) / math.sqrt(width)
    maps = [one.clone().requires_grad_() for one in start.to(device)]
    adam = torch.optim.Adam(maps, lr=settings.lr)
    order = torch.Generator().manual_seed(settings.seed + 1)
    best, lowest = Linear(*start.to(device)), math.inf
    for epoch in range(settings.epochs + 1):
        if epoch:
            shuffled = [torch.randperm(cut, generator=order).to(device) for _ in range(2)]
            for at in range(0, cut, settings.batch):
                some, others = (x[at : at + settings.batch] for x in shuffled)
                _step(adam, maps, queries[some], keys[others])
        trained = Linear(*(one.detach().clone() for one in maps))
        reduced = trained.queries(held_queries) @ trained.keys(held_keys).T
        loss = float(square_loss(held_scores, reduced))
        if loss < lowest:
            best, lowest = trained, loss
    return best


@torch.enable_grad()
def _step(adam: torch.optim.Adam, maps: list[Tensor], q: Tensor, k: Tensor) -> None:
    adam.zero_grad()
    square_loss(q @ k.T, (q @ maps[0]) @ (k @ maps[1]).T).backward()  # type: ignore[no-untyped-call]
    adam.step()


def moments_of(queries: Tensor, keys: Tensor) -> Moments:
    """Second moments of folded queries and keys (n, F)."""
    moments = Moments()
    moments.add(queries, keys)
    return moments


def fit_once(
    method: str,
    queries: Tensor,
    keys: Tensor,
    rank: int,
    training: TrainingSettings,
    folder: Path,
    layer: int,
) -> Linear:
    """Maps of rank R, at most F, for folded queries and keys (n, F) of one layer, from the file
    that an earlier call left in `folder`, or fitted; a damaged file is made again."""
    shaping = {"method": method, "rank": rank}
    if method == "learned":
        training = replace(training, seed=training.seed + 1000 * layer)
        shaping |= asdict(training)
    digest = text_digest(json.dumps(shaping, sort_keys=True))[:12]
    file = folder / f"{MAPS}-{method}-{layer:03}-{digest}.safetensors"
    try:
        return _load(file, queries)
    except (OSError, SafetensorError, KeyError):
        pass
    rank = min(rank, queries.shape[1])
    if method == "learned":
        maps = train(queries, keys, rank, training)
    else:
        solve = closed_form if method == "closed-form" else pca
        maps = solve(moments_of(queries, keys), rank)
    pair = {"query_map": maps.query_map, "key_map": maps.key_map}
    save({name: map_.cpu().clone().contiguous() for name, map_ in pair.items()}, file)
    # New maps are read from the file, too: other strides would round products differently.
    return _load(file, queries)


def _load(file: Path, like: Tensor) -> Linear:
    maps = load_file(file)
    return Linear(maps["query_map"].to(like), maps["key_map"].to(like))
