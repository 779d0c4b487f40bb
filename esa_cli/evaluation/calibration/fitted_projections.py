"""Fits low-rank projections of queries and keys to a text, and measures the projections' recall.

The queries and keys are collected during a prefill that selects tokens by unreduced queries and
keys, as in the ESA paper. Training minimises the ESA paper's equation 7 with Adam. Unlike in the
ESA paper, the projections of the epoch with the smallest validation loss are taken."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from esa_cli.attention import compression
from esa_cli.attention.algebra import concat_key_heads, fold
from esa_cli.attention.compression import ClosedFormCompressor, Linear, PcaCompressor
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Moments
from esa_cli.attention.step import ChunkTrace
from esa_cli.attention.window import Phase, QueryState
from esa_cli.errors import PresetError, ResourceError, UsageError
from esa_cli.models.attachment import fingerprint
from esa_cli.models.attachment.attach import attach
from esa_cli.models.files.families import has_recurrence, list_sliding_windows
from esa_cli.models.loading.load import LoadedModel
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.answering.session import prefill_tokens
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import resolve_preset
from esa_cli.system.files import convert_writing_errors, replace_atomically
from esa_cli.system.machine import format_size
from esa_cli.system.progress import Progress
from esa_cli.system.text import digest_text
from esa_cli.version import __version__

METHODS = ("closed-form", "pca", "learned")
HELD_OUT, VALIDATION = 0.2, 0.1
"""Shares of the tokens that are held out for measuring recall, and for choosing the epoch."""
QUERIES, COMPARED = 512, 1024
"""Numbers of queries for measuring recall, and of queries and keys for the validation loss."""
MIN_TOKENS = 64
DEFAULT_RANK = 48
_MADE_BY = "esa_version"


@dataclass(frozen=True)
class AdamSettings:
    """Settings for training projections with Adam; the defaults are those of the ESA paper."""

    epochs: int = 10
    batch: int = 128
    lr: float = 5e-4
    seed: int = 0  # determines the initial projections and the order of tokens


def pick_evenly_spaced_rows(matrix: Tensor, max_rows: int) -> Tensor:
    if matrix.shape[0] <= max_rows:
        return matrix
    return matrix[torch.linspace(0, matrix.shape[0] - 1, max_rows, device=matrix.device).long()]


def compute_squared_loss(full_scores: Tensor, reduced_scores: Tensor) -> Tensor:
    """Returns the mean squared difference of two score matrices, equation 7 of the ESA paper."""
    return (full_scores - reduced_scores).square().mean()


@torch.enable_grad()
def train_projections(queries: Tensor, keys: Tensor, rank: int, settings: AdamSettings) -> Linear:
    """Trains low-rank projections on one layer's folded queries and keys by gradient descent."""
    count, device = queries.shape[0], queries.device
    cut = max(1, count - max(1, round(VALIDATION * count)))
    held_queries, held_keys = (pick_evenly_spaced_rows(x[cut:], COMPARED) for x in (queries, keys))
    held_scores = held_queries @ held_keys.T
    # The usual initialisation of a linear layer is uniform in +-1 / sqrt(width).
    random = torch.Generator().manual_seed(settings.seed)
    width = queries.shape[1]
    start = (2 * torch.rand(2, width, rank, generator=random) - 1) / math.sqrt(width)
    projections = [part.clone().requires_grad_() for part in start.to(device)]
    adam = torch.optim.Adam(projections, lr=settings.lr)
    order = torch.Generator().manual_seed(settings.seed + 1)
    best, lowest = Linear(*start.to(device)), math.inf
    for epoch in range(settings.epochs + 1):
        if epoch:
            shuffled = [torch.randperm(cut, generator=order).to(device) for _ in range(2)]
            for at in range(0, cut, settings.batch):
                q, k = (
                    x[places[at : at + settings.batch]]
                    for x, places in zip((queries, keys), shuffled, strict=True)
                )
                adam.zero_grad()
                compute_squared_loss(
                    q @ k.T, (q @ projections[0]) @ (k @ projections[1]).T
                ).backward()  # type: ignore[no-untyped-call]
                adam.step()
        trained = Linear(*(part.detach().clone() for part in projections))
        reduced = trained.queries(held_queries) @ trained.keys(held_keys).T
        loss = float(compute_squared_loss(held_scores, reduced))
        if loss < lowest:
            best, lowest = trained, loss
    return best


def fit_projections(
    fitting_method: str, queries: Tensor, keys: Tensor, rank: int, training: AdamSettings
) -> Linear:
    """Fits low-rank projections to one layer's folded queries and keys by one of `METHODS`."""
    rank = min(rank, queries.shape[1])
    if fitting_method == "learned":
        return train_projections(queries, keys, rank, training)
    moments = Moments()
    moments.add_tokens(queries, keys)
    compressor = ClosedFormCompressor if fitting_method == "closed-form" else PcaCompressor
    projections = compressor(rank).fit(0, moments)
    return Linear(projections.query_map.contiguous(), projections.key_map.contiguous())


def compute_recall_at_k(full_scores: Tensor, reduced_scores: Tensor, k: int) -> float:
    """Returns the share of the top k keys by full scores that are also top k by reduced scores."""
    truth = torch.zeros(full_scores.shape, dtype=torch.bool, device=full_scores.device)
    truth.scatter_(1, full_scores.topk(k, dim=1).indices, True)
    return float(truth.gather(1, reduced_scores.topk(k, dim=1).indices).double().mean())


@dataclass
class MethodRecall:
    """The projections of each layer that one method fitted, and the projections' recall@k."""

    projections: list[Linear] = field(default_factory=list)
    recall: list[list[float]] = field(default_factory=list)  # the recall by layer and by index of k

    def average_recall(self, k_index: int = -1) -> float:
        """Returns recall@k as the mean over layers, by default for the largest k."""
        return sum(layer[k_index] for layer in self.recall) / len(self.recall)


@dataclass(frozen=True)
class RecallStudy:
    """The recall of several methods of fitting projections, measured on held-out tokens."""

    tokens: int
    held_out: int
    ranks: list[int]
    ks: list[int]
    results: dict[str, MethodRecall]

    def find_best_method(self) -> str:
        return max(self.results, key=lambda name: self.results[name].average_recall())

    def make_json_data(self) -> dict[str, Any]:
        methods = {
            name: {"mean": [*map(one.average_recall, range(len(self.ks)))], "layers": one.recall}
            for name, one in self.results.items()
        }
        facts = {"tokens": self.tokens, "held_out": self.held_out, "k": self.ks}
        return {**facts, "ranks": self.ranks, "methods": methods}


_writing_errors = partial(
    convert_writing_errors,
    full_disk_hint="free some space, or give a file on another disk with --out",
    other_hint="give a file that you may write to with --out",
    also_caught=SafetensorError,
)


@dataclass(frozen=True)
class ProjectionFitter:
    """Fits projections to the queries and keys that a model has for the tokens of a text. They are
    stored in `folder`, in float32 files with the folded queries and the keys of each layer."""

    loaded: LoadedModel
    preset: Preset
    method: Method
    ids: list[int]
    folder: Path
    of_model: fingerprint.ModelFingerprint

    @property
    def width(self) -> int:
        """The numbers of a token's keys in one layer, and of its folded queries."""
        return self.of_model.groups * self.of_model.dim

    def append_queries_and_keys(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        """Appends queries and keys to the layer's two files. Raises ResourceError."""
        for kind, rows in (("queries", queries), ("keys", keys)):
            path = self.folder / f"{kind}-{layer}"
            with _writing_errors(path), path.open("ab") as file:
                file.write(rows.float().cpu().contiguous().numpy().tobytes())

    def load_queries_and_keys(self, layer: int) -> list[Tensor]:
        files = (self.folder / f"{kind}-{layer}" for kind in ("queries", "keys"))
        raw = (bytearray(file.read_bytes()) for file in files)
        return [torch.frombuffer(x, dtype=torch.float32).view(-1, self.width) for x in raw]

    @torch.inference_mode()
    def store_queries_and_keys(self, progress: Progress | None = None) -> None:
        """Prefills the text, and stores all queries and keys. Raises ResourceError."""
        folder, layers = self.folder, self.of_model.layers
        needed = 2 * torch.float32.itemsize * layers * self.width * len(self.ids)
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise ResourceError(
                f"the queries and keys would take {format_size(needed)} in {folder}, but only "
                f"{format_size(free)} are free",
                "give a smaller number of --tokens, or a file on another disk with --out",
            )
        with attach(self.loaded.model, self.method) as attachment:

            def store_chunk_queries_and_keys(chunk: ChunkTrace) -> None:
                queries, distance = chunk.queries, self.method.position.distance
                if self.method.score.rotates:
                    queries = chunk.rope.rotate_to_far_distance(queries, distance)
                keys, _ = chunk.store.span(chunk.start, chunk.stop)
                folded = fold(queries.float(), chunk.store.heads)
                self.append_queries_and_keys(chunk.layer, folded, concat_key_heads(keys))

            cache = attachment.new_cache(expected_tokens=len(self.ids))
            cache.begin_query(QueryState(Phase.PREFILL, trace=store_chunk_queries_and_keys))
            prefill_tokens(attachment.model, self.ids, cache, progress=progress)

    @torch.no_grad()
    def measure_recall(
        self, rank: int | None, fitting_methods: Sequence[str], training: AdamSettings, k_values:
        Sequence[int], progress: Progress | None = None,
    ) -> RecallStudy:  # fmt: skip
        """Fits projections by each method, by default of the preset's rank; measures recall@k."""
        rank = min(rank or int(self.preset.compressor.get("rank", DEFAULT_RANK)), self.width)
        device = self.loaded.device if self.loaded.device.type == "cuda" else "cpu"
        held, layers = round(HELD_OUT * len(self.ids)), self.of_model.layers
        k_values = sorted({max(1, min(k, held // 2)) for k in k_values})
        results = {method: MethodRecall() for method in fitting_methods}
        for layer in range(layers):
            queries, keys = (x.to(device) for x in self.load_queries_and_keys(layer))
            asked, apart = pick_evenly_spaced_rows(queries[-held:], QUERIES), keys[-held:]
            full = asked @ apart.T
            own_training = replace(training, seed=training.seed + 1000 * layer)
            for method, result in results.items():
                fitted = fit_projections(method, queries[:-held], keys[:-held], rank, own_training)
                reduced = fitted.queries(asked) @ fitted.keys(apart).T
                result.recall.append([compute_recall_at_k(full, reduced, k) for k in k_values])
                result.projections.append(Linear(fitted.query_map.cpu(), fitted.key_map.cpu()))
            if progress:
                progress(layer + 1, layers)
        return RecallStudy(len(self.ids), held, [rank] * layers, k_values, results)

    def save_best_projections(self, path: Path, study: RecallStudy, training: AdamSettings) -> None:
        """Writes the best projections and their settings. Raises ResourceError, DocumentError."""
        trained = asdict(training) if (best := study.find_best_method()) == "learned" else {}
        metadata = {
            _MADE_BY: __version__,
            fingerprint.KEY: json.dumps(asdict(self.of_model), sort_keys=True),
            **fingerprint.make_query_rotation_metadata(self.method),
            "method": best,
            "ranks": json.dumps(study.ranks),
            "training": json.dumps(trained, sort_keys=True),
            "text": digest_text(json.dumps(self.ids)),
        }
        # A link stays a link.
        with _writing_errors(path), replace_atomically(path.resolve()) as part:
            tensors = compression.make_named_projection_tensors(study.results[best].projections)
            save_file(tensors, part, metadata=metadata)


def apply_reduced_key_method(method_name: str, preset: Preset) -> Preset:
    """Returns the preset with a method. Raises UsageError: the method cannot use projections."""
    target = resolved_preset.set_method_to_compare(method_name, preset)
    if not resolve_preset(target).method.score.features:
        raise UsageError(
            f"method {method_name!r} scores with unreduced keys, and cannot use projections",
            "leave out --for to fit projections for the method `esa`, or let the score use reduced "
            f"keys: --for {resolved_preset.AS_IS} --set score.shortlist=4096",
        )
    return target


def open_projection_fitter(
    loaded: LoadedModel, preset: Preset, text: str, max_tokens: int, folder: Path
) -> ProjectionFitter:
    """Returns a `ProjectionFitter` that stores queries and keys in a folder. Raises UsageError: the
    text is too short, or the model has sliding-window or recurrent layers."""
    config = loaded.model.config
    if any(list_sliding_windows(config)) or has_recurrence(config):
        raise UsageError(
            "esa calibrate needs a model whose layers all attend to all tokens, but this "
            f"{config.model_type} model has sliding-window or recurrent layers",
            "leave out esa calibrate, and fit projections during prefill: "
            "--set compressor.name=closed-form",
        )
    ids = PromptEncoder(loaded.tokenizer, preset.prompt).encode_document(text)[:max_tokens]
    if len(ids) < MIN_TOKENS:
        raise UsageError(
            f"to fit projections, a text must have at least {MIN_TOKENS} tokens, got {len(ids)}",
            "give esa calibrate a longer text, best with 50,000 tokens or more",
        )
    of_model = fingerprint.compute_model_fingerprint(loaded.model)
    method = replace(resolve_preset(preset).method, compressor=compression.NoCompression())
    return ProjectionFitter(loaded, preset, method, ids, folder, of_model)


def refuse_to_overwrite_foreign_file(path: Path) -> None:
    """Raises UsageError if an existing file at --out was not written by `esa calibrate`."""
    try:
        is_ours = _MADE_BY in compression.LearnedCompressor(str(path)).metadata
    except PresetError:
        is_ours = False
    if not is_ours:
        message = f"{path} exists, but `esa calibrate` did not write it"
        raise UsageError(message, "give --out another path")
