"""One calibration from end to end: opens the work folder, collects, studies, saves the maps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.compression import Learned, Linear, save_learned
from esa_cli.attention.method import Method
from esa_cli.errors import PresetError, UsageError
from esa_cli.evaluation.calibration.activations import (
    Shards,
    collect,
    open_folder,
    saving_errors,
    whole_key_method,
)
from esa_cli.evaluation.calibration.train_maps import FitSettings, fit_once, maps_file, spaced_rows
from esa_cli.models.attachment.attach import attach
from esa_cli.models.attachment.fingerprint import KEY, Fingerprint, fingerprint, query_rotation
from esa_cli.models.files.families import keeps_state, layer_windows
from esa_cli.models.loading.load import LoadedModel
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import resolve
from esa_cli.system.files import replacing
from esa_cli.system.progress import Progress
from esa_cli.system.text import text_digest
from esa_cli.version import __version__

QUERIES = 512
"""Most held-out queries that recall is measured with, evenly spaced over those there are."""


def recall(full: Tensor, reduced: Tensor, k: int) -> float:
    """Mean recall@k over queries, of scores (Q, n) by reduced scores (Q, n)."""
    truth = torch.zeros(full.shape, dtype=torch.bool, device=full.device)
    truth.scatter_(1, full.topk(k, dim=1).indices, True)
    found = truth.gather(1, reduced.topk(k, dim=1).indices)
    return float(found.double().mean())


@dataclass(frozen=True)
class HeldOutTokens:
    """Folded queries and keys (n, F) of one layer, on which nothing was fitted."""

    queries: Tensor
    keys: Tensor

    def scores(self) -> Tensor:
        """Full scores (Q, n) of the measured queries."""
        return spaced_rows(self.queries, QUERIES) @ self.keys.T

    def reduced_scores(self, maps: Linear) -> Tensor:
        """Reduced scores (Q, n) of the same queries."""
        return maps.queries(spaced_rows(self.queries, QUERIES)) @ maps.keys(self.keys).T


def relative_error(full: Tensor, reduced: Tensor) -> float:
    """Eq. (7) over the pairs of scores (Q, n), relative to the full scores' square."""
    return float((full - reduced).square().sum() / full.square().sum())


def limited_ks(ks: Sequence[int], keys: int) -> list[int]:
    """The ks, ascending, each at most half of the keys, without repetitions."""
    return sorted({max(1, min(k, keys // 2)) for k in ks})


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


LEAST = 64
"""Fewest tokens that can be divided into fitted and held-out ones."""
DEFAULT_RANK = 48
_MADE_BY = "esa_version"


@dataclass(frozen=True)
class CalibrationJob:
    """A text, a model, and the folder of their queries and keys.

    Args:
        settings: all that these depend on, as JSON.
    """

    loaded: LoadedModel
    preset: Preset
    method: Method
    ids: list[int]
    shards: Shards
    of_model: Fingerprint
    settings: dict[str, Any]

    @property
    def width(self) -> int:
        """F, the dimensions of folded keys."""
        return self.of_model.groups * self.of_model.dim

    def collect(self, progress: Progress | None = None) -> None:
        """Prefills the tokens that are not stored yet."""
        with attach(self.loaded.model, self.method) as attachment:
            collect(attachment, self.ids, self.shards, progress)

    def study(
        self,
        rank: int | None,
        fitting: FitSettings,
        ks: Sequence[int],
        progress: Progress | None = None,
    ) -> CalibrationStudy:
        """Fits and measures.

        Args:
            rank: of every layer, at most F; None takes the preset's.
        """
        rank = rank or int(self.preset.compressor.get("rank", DEFAULT_RANK))
        ranks = [min(rank, self.width)] * self.of_model.layers
        device = self.loaded.device if self.loaded.device.type == "cuda" else "cpu"
        return study(self.shards, ranks, fitting, ks, device, progress)

    def save(self, path: Path, done: CalibrationStudy, fitting: FitSettings) -> None:
        """Writes the best method's maps, with their provenance. Raises ResourceError,
        DocumentError: the file cannot be written."""
        trained = asdict(fitting.training) if done.best == "learned" else {}
        metadata = {
            _MADE_BY: __version__,
            KEY: self.of_model.as_text(),
            **query_rotation(self.method),
            "method": done.best,
            "ranks": json.dumps(done.ranks),
            "training": json.dumps(trained, sort_keys=True),
            "reading": json.dumps(self.settings, sort_keys=True),
        }
        maps, place = done.results[done.best].maps, path.resolve()  # a link stays one
        with saving_errors(path, "--out"):
            if not os.access(place.parent, os.W_OK):
                save_learned(place, maps, metadata)
                return
            with replacing(place) as part:
                save_learned(part, maps, metadata)


def target_preset(name: str, preset: Preset) -> Preset:
    """The preset with the settings of the method that will use the maps. Raises UsageError: there
    is no such method, or it scores with whole keys."""
    made = resolved_preset.compared(name, preset)
    if not resolve(made).method.score.features:
        raise UsageError(
            f"method {name!r} scores with whole keys, and would not use a compressor",
            "leave out --for, which then is `esa`; or give a score that has one a shortlist: "
            f"--for {resolved_preset.AS_IS} --set score.shortlist=4096",
        )
    return made


def open_job(
    loaded: LoadedModel, preset: Preset, text: str, tokens: int, folder: Path
) -> CalibrationJob:
    """Takes the text's first `tokens` tokens, and opens the work folder.

    Raises:
        UsageError: the text is too short, the folder is another run's, or layers of the model
            attend to a window or keep a state.
        ResourceError, DocumentError: the folder cannot be written.
    """
    config = loaded.model.config
    if any(layer_windows(config)) or keeps_state(config):
        raise UsageError(
            "esa calibrate fits maps for models whose layers all attend to all tokens; some of "
            f"this {config.model_type} model's attend to a window, or keep a state",
            "use the closed-form compressor, which is fitted while a text is read: "
            "--set compressor.name=closed-form",
        )
    ids = PromptTokens(loaded.tokenizer, preset.prompt).document(text)[:tokens]
    if len(ids) < LEAST:
        raise UsageError(
            f"a text must have at least {LEAST} tokens to fit on, got {len(ids)}",
            "50,000 are better",
        )
    of_model, chosen = fingerprint(loaded.model), preset.model_dump()
    parts = ("window", "selector", "score", "position", "reading", "prompt", "kernel")
    settings = {
        "model": of_model.as_text(),
        "text": text_digest(text),
        "number of tokens": len(ids),
        "dtype": str(loaded.dtype),
        **{part: chosen[part] for part in parts},
    }
    shards = open_folder(folder, settings, len(ids))
    method = whole_key_method(resolve(preset).method)
    return CalibrationJob(loaded, preset, method, ids, shards, of_model, settings)


def refuse_foreign(path: Path) -> None:
    """Raises UsageError for a file that `CalibrationJob.save` did not write."""
    try:
        ours = _MADE_BY in Learned(str(path)).metadata
    except PresetError:
        ours = False
    if not ours:
        raise UsageError(
            f"--out must be new or a file of `esa calibrate`, got {path}", "name another file"
        )
