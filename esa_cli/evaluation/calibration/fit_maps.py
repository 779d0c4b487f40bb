"""Fits one layer's maps by name: `closed-form`, `pca` or `learned`.

Fitted maps are kept in the work folder under a name made of all that shapes them, so that a run
that was interrupted, or asks for one method more, does not fit a layer twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.attention.compression import Linear, Moments, closed_form, pca
from esa_cli.evaluation.calibration.activation_files import MAPS, save
from esa_cli.evaluation.calibration.train_maps import Training, train

METHODS = ("closed-form", "pca", "learned")


def moments_of(queries: Tensor, keys: Tensor) -> Moments:
    """Second moments of folded queries and keys (n, F)."""
    moments = Moments()
    moments.add(queries, keys)
    return moments


@dataclass(frozen=True)
class Fitting:
    """How maps are fitted.

    Args:
        methods: which of METHODS. training: of `learned`; every layer's seed is its own.
    """

    methods: tuple[str, ...] = METHODS
    training: Training = field(default_factory=Training)

    def of_layer(self, layer: int) -> Training:
        return replace(self.training, seed=self.training.seed + 1000 * layer)


def fitting_of(method: str, training: Mapping[str, Any]) -> Fitting:
    """From what a person writes: a method or `all`, and the fields of `Training`."""
    return Fitting(METHODS if method == "all" else (method,), Training(**training))


def fit(method: str, queries: Tensor, keys: Tensor, rank: int, training: Training) -> Linear:
    """Maps of rank R, at most F, for folded queries and keys (n, F) of one layer."""
    rank = min(rank, queries.shape[1])
    if method == "learned":
        return train(queries, keys, rank, training)
    makers: dict[str, Callable[[Moments, int], Linear]] = {"closed-form": closed_form, "pca": pca}
    return makers[method](moments_of(queries, keys), rank)


def kept(folder: Path, layer: int, rank: int, method: str, training: Training) -> Path:
    """The file in which this layer's maps are kept."""
    shaping = {"method": method, "rank": rank}
    if method == "learned":
        shaping |= asdict(training)
    digest = hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"{MAPS}-{method}-{layer:03}-{digest}.safetensors"


def fit_once(
    method: str, queries: Tensor, keys: Tensor, rank: int, training: Training, file: Path
) -> Linear:
    """As `fit`, or what was kept in `file` of an earlier `fit`; a damaged file is made again."""
    if not _holds_maps(file):
        maps = fit(method, queries, keys, rank, training)
        pair = {"query_map": maps.query_map, "key_map": maps.key_map}
        save({name: map_.cpu().clone().contiguous() for name, map_ in pair.items()}, file)
    # Also what was fitted just now: strides of its own would round its products differently.
    found = load_file(file)
    return Linear(found["query_map"].to(queries), found["key_map"].to(queries))


def _holds_maps(file: Path) -> bool:
    try:
        with safe_open(file, framework="pt") as found:
            return {"query_map", "key_map"} <= set(found.keys())
    except (OSError, SafetensorError):
        return False
