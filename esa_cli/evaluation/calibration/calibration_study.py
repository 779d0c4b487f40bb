"""Fits every layer by every method and measures recall, one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from esa_cli.attention.compression import Linear, spectrum
from esa_cli.evaluation.calibration.activation_files import Shards
from esa_cli.evaluation.calibration.fit_maps import Fitting, fit_once, kept, moments_of
from esa_cli.evaluation.calibration.key_recall import STORED, Heldout, error, limited, recalls
from esa_cli.evaluation.calibration.ranks import allocate

HELD_OUT = 0.2
"""Share of the tokens, the last ones, that nothing is fitted on."""


@dataclass
class Result:
    """One method's maps and what they find, layer by layer.

    Attributes:
        recall: by how reduced keys are stored (see `recall.STORED`), for each layer the recall at
            every k. error: each layer's Eq. 6 on held-out pairs, relative.
    """

    maps: list[Linear] = field(default_factory=list)
    recall: dict[str, list[list[float]]] = field(
        default_factory=lambda: {name: [] for name in STORED}
    )
    error: list[float] = field(default_factory=list)

    def series(self, stored: str = STORED[0], at: int = -1) -> list[float]:
        """Recall of every layer at the k of index `at`."""
        return [layer[at] for layer in self.recall[stored]]

    def mean(self, stored: str = STORED[0], at: int = -1) -> float:
        series = self.series(stored, at)
        return sum(series) / len(series)


@dataclass(frozen=True)
class Study:
    """What came out: ranks, one a layer; the ks that were used; and each method's result.

    `tokens` were read in all, the last `held_out` of them not fitted on.
    """

    tokens: int
    held_out: int
    ranks: list[int]
    ks: list[int]
    results: dict[str, Result]

    @property
    def best(self) -> str:
        """The method with the highest mean recall at the largest k."""
        return max(self.results, key=lambda name: self.results[name].mean())

    def as_dict(self) -> dict[str, Any]:
        """Numbers only, for JSON: recall as [layer][k], by method and by how keys are stored."""
        methods = {
            name: {
                "mean": {
                    stored: [found.mean(stored, at) for at in range(len(self.ks))]
                    for stored in STORED
                },
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


def held_out(tokens: int) -> int:
    """How many of so many tokens are held out, the last ones."""
    return round(HELD_OUT * tokens)


def choose_ranks(shards: Shards, layers: int, total: int) -> list[int]:
    """Ranks for a fixed total, by the spectra of what is fitted on; see `ranks.allocate`."""
    spectra = []
    for layer in range(layers):
        queries, keys = (x[: -held_out(shards.tokens)] for x in shards.layer(layer))
        spectra.append(spectrum(moments_of(queries, keys)))
    return allocate(spectra, total)


@torch.no_grad()
def study(
    shards: Shards,
    ranks: Sequence[int],
    fitting: Fitting,
    ks: Sequence[int],
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Fits and measures all layers.

    Args:
        ranks: R of every layer. ks: see `recall`; limited to half of the held-out keys.
        device: where to fit. progress: called with (layers done, of how many).
    """
    held = held_out(shards.tokens)
    used = limited(ks, held)
    results = {method: Result() for method in fitting.methods}
    for layer, rank in enumerate(ranks):
        queries, keys = (x.to(device) for x in shards.layer(layer))
        apart = Heldout(queries[-held:], keys[-held:], keys[:-held])
        full, training = apart.scores(), fitting.of_layer(layer)
        for method, result in results.items():
            file = kept(shards.folder, layer, rank, method, training)
            maps = fit_once(method, queries[:-held], keys[:-held], rank, training, file)
            reduced = apart.reduced(maps)
            for stored, at_ks in recalls(full, reduced, used).items():
                result.recall[stored].append(at_ks)
            result.error.append(error(full, reduced[STORED[0]]))
            result.maps.append(Linear(maps.query_map.cpu(), maps.key_map.cpu()))
        if progress:
            progress(layer + 1, len(ranks))
    return Study(shards.tokens, held, [*ranks], used, results)
