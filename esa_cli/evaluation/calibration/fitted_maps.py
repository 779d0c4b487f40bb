"""Maps of one layer, fitted in closed form, by PCA, or trained as in the paper; and a whole
calibration: opens the work folder, collects, studies, saves the best maps.

Training minimises Eq. (7) with Adam. A batch is 128 queries and 128 keys, shuffled independently:
its 128 x 128 products are pairs of C and M, where the paper sums over both. One epoch uses every
query and every key once. Beyond the paper, the maps of the epoch with the smallest loss on
validation tokens are kept; the start counts as an epoch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.attention.compression import Learned, Linear, closed_form, pca, save_learned
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Moments
from esa_cli.errors import PresetError, UsageError
from esa_cli.evaluation.calibration.activations import (
    MAPS,
    Shards,
    collect,
    open_folder,
    save,
    saving_errors,
    whole_key_method,
)
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
    """Loads the maps of one layer from `folder`, or fits them and saves them there where the file
    is missing or damaged. Queries and keys are folded, (n, F); the rank is min(R, F)."""
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


QUERIES = 512
"""Most held-out queries that recall is measured with, evenly spaced over those there are."""
HELD_OUT = 0.2
"""Share of the tokens, the last ones, that nothing is fitted on."""
LEAST = 64
"""Fewest tokens that can be divided into fitted and held-out ones."""
DEFAULT_RANK = 48
_MADE_BY = "esa_version"


def recall(full: Tensor, reduced: Tensor, k: int) -> float:
    """Mean recall@k over queries, of scores (Q, n) by reduced scores (Q, n)."""
    truth = torch.zeros(full.shape, dtype=torch.bool, device=full.device)
    truth.scatter_(1, full.topk(k, dim=1).indices, True)
    return float(truth.gather(1, reduced.topk(k, dim=1).indices).double().mean())


@dataclass
class MethodRecall:
    """One method's maps; recall[layer][k]; error: each layer's Eq. (7) on held-out pairs, relative
    to the full scores' square."""

    maps: list[Linear] = field(default_factory=list)
    recall: list[list[float]] = field(default_factory=list)
    error: list[float] = field(default_factory=list)

    def mean(self, at: int = -1) -> float:
        """Mean recall over layers, at the k of index `at`."""
        return sum(layer[at] for layer in self.recall) / len(self.recall)


@dataclass(frozen=True)
class CalibrationStudy:
    """Recall of all methods; the last `held_out` of the tokens are not fitted on."""

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
        ks = range(len(self.ks))
        methods = {
            name: {
                "mean": [result.mean(at) for at in ks],
                "layers": result.recall,
                "error": result.error,
            }
            for name, result in self.results.items()
        }
        facts = {"tokens": self.tokens, "held_out": self.held_out, "k": self.ks}
        return {**facts, "ranks": self.ranks, "methods": methods}


@torch.no_grad()
def study(
    shards: Shards,
    ranks: Sequence[int],
    fitting: FitSettings,
    ks: Sequence[int],
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> CalibrationStudy:
    """Fits maps on `device` and measures them, layer by layer with its rank of `ranks`. The ks are
    limited to half of the held-out keys."""
    held = round(HELD_OUT * shards.tokens)
    ks = sorted({max(1, min(k, held // 2)) for k in ks})
    results = {method: MethodRecall() for method in fitting.methods}
    for layer, rank in enumerate(ranks):
        queries, keys = (x.to(device) for x in shards.layer(layer))
        asked, apart = spaced_rows(queries[-held:], QUERIES), keys[-held:]
        full = asked @ apart.T
        for method, result in results.items():
            maps = fit_once(
                method, queries[:-held], keys[:-held], rank, fitting.training, shards.folder, layer
            )
            reduced = maps.queries(asked) @ maps.keys(apart).T
            result.recall.append([recall(full, reduced, k) for k in ks])
            result.error.append(float((full - reduced).square().sum() / full.square().sum()))
            result.maps.append(Linear(maps.query_map.cpu(), maps.key_map.cpu()))
        if progress:
            progress(layer + 1, len(ranks))
    return CalibrationStudy(shards.tokens, held, [*ranks], ks, results)


@dataclass(frozen=True)
class CalibrationJob:
    """A text, a model, and the folder of their queries and keys; `settings` is all that these
    depend on, as JSON."""

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
        """Fits and measures; rank: of every layer, at most F; None takes the preset's."""
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
    target = resolved_preset.compared(name, preset)
    if not resolve(target).method.score.features:
        raise UsageError(
            f"method {name!r} scores with whole keys, and would not use a compressor",
            "leave out --for, which then is `esa`; or give a score that has one a shortlist: "
            f"--for {resolved_preset.AS_IS} --set score.shortlist=4096",
        )
    return target


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
    shards = open_folder(folder, settings)
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
