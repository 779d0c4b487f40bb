"""Fits every layer by every method and measures recall, one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from esa_cli.attention.compression import Linear
from esa_cli.evaluation.calibration.activation_files import Shards
from esa_cli.evaluation.calibration.fit_maps import FitSettings, fit_once, maps_file
from esa_cli.evaluation.calibration.key_recall import (
    HeldOutTokens,
    limited_ks,
    recall,
    relative_error,
)

HELD_OUT = 0.2
"""Share of the tokens, the last ones, that nothing is fitted on."""


@dataclass
class MethodRecall:
    """One method's maps and their recall.

    Attributes:
        recall: [layer][k]. error: each layer's Eq. (7) on held-out pairs, relative.
    """

    maps: list[Linear] = field(default_factory=list)
    recall: list[list[float]] = field(default_factory=list)
    error: list[float] = field(default_factory=list)

    def series(self, at: int = -1) -> list[float]:
        """Recall of every layer at the k of index `at`."""
        return [layer[at] for layer in self.recall]

    def mean(self, at: int = -1) -> float:
        series = self.series(at)
        return sum(series) / len(series)


@dataclass(frozen=True)
class CalibrationStudy:
    """Recall of all methods.

    Args:
        tokens: read in all; the last `held_out` of them are not fitted on. ranks: R of each layer.
        ks: as limited by the held-out keys.
    """

    tokens: int
    held_out: int
    ranks: list[int]
    ks: list[int]
    results: dict[str, MethodRecall]

    @property
    def best(self) -> str:
        """The method with the highest mean recall at the largest k."""
        return max(self.results, key=lambda name: self.results[name].mean())

    def as_dict(self) -> dict[str, Any]:
        """For JSON; recall as [layer][k] by method."""
        methods = {
            name: {
                "mean": [found.mean(at) for at in range(len(self.ks))],
                "layers": found.recall,
                "error": found.error,
            }
            for name, found in self.results.items()
        }
        return {
            "tokens": self.tokens,
            "held_out": self.held_out,
            "k": self.ks,
            "ranks": self.ranks,
            "methods": methods,
        }


def held_out_count(tokens: int) -> int:
    """The number of tokens at the end that are held out."""
    return round(HELD_OUT * tokens)


@torch.no_grad()
def study(
    shards: Shards,
    ranks: Sequence[int],
    fitting: FitSettings,
    ks: Sequence[int],
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> CalibrationStudy:
    """Fits and measures all layers.

    Args:
        ranks: R of every layer. ks: limited to half of the held-out keys. device: where maps are
            fitted. progress: called with (layers done, of how many).
    """
    held = held_out_count(shards.tokens)
    used = limited_ks(ks, held)
    results = {method: MethodRecall() for method in fitting.methods}
    for layer, rank in enumerate(ranks):
        queries, keys = (x.to(device) for x in shards.layer(layer))
        apart = HeldOutTokens(queries[-held:], keys[-held:])
        full, training = apart.scores(), fitting.of_layer(layer)
        for method, result in results.items():
            file = maps_file(shards.folder, layer, rank, method, training)
            maps = fit_once(method, queries[:-held], keys[:-held], rank, training, file)
            reduced = apart.reduced_scores(maps)
            result.recall.append([recall(full, reduced, k) for k in used])
            result.error.append(relative_error(full, reduced))
            result.maps.append(Linear(maps.query_map.cpu(), maps.key_map.cpu()))
        if progress:
            progress(layer + 1, len(ranks))
    return CalibrationStudy(shards.tokens, held, [*ranks], used, results)
