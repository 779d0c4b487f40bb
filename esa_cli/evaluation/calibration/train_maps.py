"""Trains one layer's maps by gradient descent, as the paper does: Eq. (7) with Adam.

A batch is 128 queries and 128 keys, shuffled independently: its 128 x 128 products are pairs of C
and M, where the paper sums over both. One epoch uses every query and every key once. The maps have
no bias, as `compression.Linear` has none.

Beyond the paper: the maps of the epoch with the smallest loss on validation tokens are kept (the
start counts as an epoch), and `loss: rank` compares the order of the keys instead of their scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.attention.compression import Linear, closed_form, pca
from esa_cli.attention.parts import Moments
from esa_cli.evaluation.calibration.activations import MAPS, save
from esa_cli.system.text import text_digest

Loss = Literal["mse", "rank"]

VALIDATION = 0.1
"""Share of the tokens, the last ones, that choose the epoch and are not trained on."""
COMPARED = 1024
"""Most validation queries, and keys, that are compared after an epoch."""


def spaced_rows(x: Tensor, most: int) -> Tensor:
    """At most `most` rows of x (n, F), evenly spaced."""
    if x.shape[0] <= most:
        return x
    return x[torch.linspace(0, x.shape[0] - 1, most, device=x.device).long()]


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of training; the defaults are the paper's.

    Args:
        epochs, batch, lr: of Adam. loss: `mse`, Eq. (7), or `rank`, see `rank_loss`.
        seed: of the first maps and of the order of the tokens.
    """

    epochs: int = 10
    batch: int = 128
    lr: float = 5e-4
    loss: Loss = "mse"
    seed: int = 0


def square_loss(full: Tensor, reduced: Tensor) -> Tensor:
    """Eq. (7): the mean squared difference of scores (Q, n)."""
    return (full - reduced).square().mean()


def rank_loss(full: Tensor, reduced: Tensor) -> Tensor:
    """Mean KL divergence from the softmax of full scores to that of reduced scores, both (Q, n).

    The temperature is the standard deviation of the query's full scores. So the order of the best
    keys counts, which is what is selected, and queries with large scores weigh no more than others.
    """
    spread = full.std(dim=1, keepdim=True, correction=0).clamp_min(1e-12)
    wanted = torch.log_softmax(full / spread, dim=1)
    got = torch.log_softmax(reduced / spread, dim=1)
    return (wanted.exp() * (wanted - got)).sum(dim=1).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": square_loss, "rank": rank_loss}


def _random_maps(width: int, rank: int, seed: int, device: torch.device) -> Linear:
    """The usual start of a linear layer: uniform, within one over the root of its width."""
    random = torch.Generator().manual_seed(seed)
    maps = (2 * torch.rand(2, width, rank, generator=random) - 1) / math.sqrt(width)
    return Linear(*maps.to(device))


def train(queries: Tensor, keys: Tensor, rank: int, settings: TrainingSettings) -> Linear:
    """Maps of rank R trained on folded queries and keys (n, F) of one layer."""
    cut = max(1, queries.shape[0] - max(1, round(VALIDATION * queries.shape[0])))
    apart = spaced_rows(queries[cut:], COMPARED), spaced_rows(keys[cut:], COMPARED)
    queries, keys = queries[:cut], keys[:cut]
    best = _random_maps(queries.shape[1], rank, settings.seed, queries.device)
    lowest = _loss(best, *apart, settings)
    maps = [best.query_map.clone().requires_grad_(), best.key_map.clone().requires_grad_()]
    adam = torch.optim.Adam(maps, lr=settings.lr)
    order = torch.Generator().manual_seed(settings.seed + 1)
    for _ in range(settings.epochs):
        _epoch(maps, adam, queries, keys, settings, order)
        reached = Linear(*(map_.detach().clone() for map_ in maps))
        loss = _loss(reached, *apart, settings)
        if loss < lowest:
            best, lowest = reached, loss
    return best


def _loss(maps: Linear, queries: Tensor, keys: Tensor, settings: TrainingSettings) -> float:
    reduced = maps.queries(queries) @ maps.keys(keys).T
    return float(LOSSES[settings.loss](queries @ keys.T, reduced))


@torch.enable_grad()
def _epoch(
    maps: list[Tensor],
    adam: torch.optim.Adam,
    queries: Tensor,
    keys: Tensor,
    settings: TrainingSettings,
    order: torch.Generator,
) -> None:
    """One step for every `batch` queries and keys."""
    loss = LOSSES[settings.loss]
    count, device = queries.shape[0], queries.device
    shuffled = [torch.randperm(count, generator=order).to(device) for _ in range(2)]
    for at in range(0, count, settings.batch):
        some_queries, some_keys = (x[at : at + settings.batch] for x in shuffled)
        q, k = queries[some_queries], keys[some_keys]
        adam.zero_grad()
        loss(q @ k.T, (q @ maps[0]) @ (k @ maps[1]).T).backward()  # type: ignore[no-untyped-call]
        adam.step()


METHODS = ("closed-form", "pca", "learned")


def moments_of(queries: Tensor, keys: Tensor) -> Moments:
    """Second moments of folded queries and keys (n, F)."""
    moments = Moments()
    moments.add(queries, keys)
    return moments


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit.

    Args:
        methods: which of METHODS. training: of `learned`; every layer has a seed of its own.
    """

    methods: tuple[str, ...] = METHODS
    training: TrainingSettings = field(default_factory=TrainingSettings)

    @classmethod
    def of(cls, method: str, training: Mapping[str, Any]) -> FitSettings:
        """From a method or `all`, and fields of `TrainingSettings`."""
        return cls(METHODS if method == "all" else (method,), TrainingSettings(**training))

    def of_layer(self, layer: int) -> TrainingSettings:
        return replace(self.training, seed=self.training.seed + 1000 * layer)


def fit(
    method: str, queries: Tensor, keys: Tensor, rank: int, training: TrainingSettings
) -> Linear:
    """Maps of rank R, at most F, for folded queries and keys (n, F) of one layer."""
    rank = min(rank, queries.shape[1])
    if method == "learned":
        return train(queries, keys, rank, training)
    makers: dict[str, Callable[[Moments, int], Linear]] = {"closed-form": closed_form, "pca": pca}
    return makers[method](moments_of(queries, keys), rank)


def maps_file(folder: Path, layer: int, rank: int, method: str, training: TrainingSettings) -> Path:
    """The file that keeps this layer's maps."""
    shaping = {"method": method, "rank": rank}
    if method == "learned":
        shaping |= asdict(training)
    digest = text_digest(json.dumps(shaping, sort_keys=True))[:12]
    return folder / f"{MAPS}-{method}-{layer:03}-{digest}.safetensors"


def fit_once(
    method: str, queries: Tensor, keys: Tensor, rank: int, training: TrainingSettings, file: Path
) -> Linear:
    """As `fit`, or the maps that an earlier call left in `file`; a damaged file is made again."""
    if not _holds_maps(file):
        maps = fit(method, queries, keys, rank, training)
        pair = {"query_map": maps.query_map, "key_map": maps.key_map}
        save({name: map_.cpu().clone().contiguous() for name, map_ in pair.items()}, file)
    # New maps are read from the file, too: other strides would round products differently.
    found = load_file(file)
    return Linear(found["query_map"].to(queries), found["key_map"].to(queries))


def _holds_maps(file: Path) -> bool:
    try:
        with safe_open(file, framework="pt") as found:
            return {"query_map", "key_map"} <= set(found.keys())
    except (OSError, SafetensorError):
        return False
