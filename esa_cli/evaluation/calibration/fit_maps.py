"""Fits one layer's maps by name: `closed-form`, `pca` or `learned`.

Fitted maps are kept in the work folder, in a file named after all that shapes them, so that an
interrupted run, or one with another method, does not fit a layer twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.attention.compression import Linear, closed_form, pca
from esa_cli.attention.moments import Moments
from esa_cli.evaluation.calibration.activation_files import MAPS, save
from esa_cli.evaluation.calibration.train_maps import TrainingSettings, train
from esa_cli.system.text import text_digest

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
