"""Prefills a text and stores each layer's queries and keys.

As the paper prepares its training data: tokens are selected as the preset says, but by whole
queries and keys. Queries are stored as the score will use them: folded in float32, and rotated to
the far distance before where the score rotates.

A killed run refills the cache and continues. A selector's side data is then empty for the earlier
tokens; only a selector that needs it (`observe`) may select otherwise than in one run.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from esa_cli.attention.algebra import flatten_keys, fold
from esa_cli.attention.compression import NoCompression
from esa_cli.attention.method import Method
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.step import ChunkTrace
from esa_cli.errors import ResourceError, UsageError
from esa_cli.models.attachment.attach import Attachment
from esa_cli.models.attachment.inspection import layer_devices
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.qa.answering.session import feed
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.system.files import replacing, writing_errors
from esa_cli.system.machine import size_text
from esa_cli.system.progress import Progress


def whole_key_method(method: Method) -> Method:
    """The method, scoring with whole keys."""
    return dataclasses.replace(method, compressor=NoCompression())


class _ActivationCollector:
    """Collects queries, keys and values of each layer during a forward call."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment, layers = attachment, len(attachment.traits)
        self.queries: list[list[Tensor]] = [[] for _ in range(layers)]
        self.keys: list[list[Tensor]] = [[] for _ in range(layers)]
        self.values: list[list[Tensor]] = [[] for _ in range(layers)]

    def __call__(self, seen: ChunkTrace) -> None:
        method, queries = self.attachment.method, seen.queries
        if method.score.rotates:
            queries = seen.rope.far_queries(queries, method.position.distance)
        keys, values = seen.store.span(seen.start, seen.stop)
        self.queries[seen.layer].append(fold(queries.float(), seen.store.heads).cpu())
        self.keys[seen.layer].append(flatten_keys(keys).cpu())
        self.values[seen.layer].append(flatten_keys(values).cpu())

    def take(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Queries, keys and values (n, F) of each layer since the last call."""
        taken = [[torch.cat(x) for x in kind] for kind in (self.queries, self.keys, self.values)]
        for pieces in (*self.queries, *self.keys, *self.values):
            pieces.clear()
        return taken[0], taken[1], taken[2]


def _refill(cache: EsaCache, shards: Shards, attachment: Attachment) -> None:
    """Fills the cache with the stored keys and values; see `Shards.memories`."""
    heads = shape_of(attachment.model.config.to_dict()).groups
    places = layer_devices(attachment.model)
    for layers in shards.memories():
        for layer, pair, place in zip(cache.own, layers, places, strict=True):
            keys, values = (x.view(x.shape[0], heads, -1).transpose(0, 1) for x in pair)
            layer.append(keys.to(place), values.to(place))


@torch.inference_mode()
def collect(
    attachment: Attachment, ids: Sequence[int], shards: Shards, progress: Progress | None = None
) -> None:
    """Prefills the tokens that are not stored yet, and stores their activations.

    Args:
        attachment: of a method of `whole_key_method`. ids: all tokens, the stored ones included.

    Raises:
        ResourceError: the disk is too small.
    """
    if shards.tokens < len(ids):
        _check_disk(attachment, shards, len(ids) - shards.tokens)
        cache = attachment.new_cache()
        cache.expect(len(ids))
        collector = _ActivationCollector(attachment)
        cache.begin(QueryState(Phase.PREFILL, trace=collector))
        _refill(cache, shards, attachment)

        def keep(tokens: int, total: int) -> None:
            shards.add(*collector.take())
            if progress:
                progress(tokens, total)

        feed(attachment.model, ids, cache, shards.tokens, keep)
    shards.drop_values()


def _check_disk(attachment: Attachment, shards: Shards, tokens: int) -> None:
    shape = shape_of(attachment.model.config.to_dict())
    size = torch.float32.itemsize + 2 * attachment.model.dtype.itemsize
    row = shape.layers * shape.groups * shape.dim * size
    free = shutil.disk_usage(shards.folder).free
    if row * tokens > free:
        raise ResourceError(
            f"queries, keys and values take {size_text(row * tokens)} in {shards.folder}, where "
            f"{size_text(free)} are free",
            "use fewer --tokens, or another disk with --work",
        )


SETTINGS = "esa-calibration.json"
MAPS = "maps"
"""First part of the names of fitted maps, which `fit_maps` keeps in the same folder."""
_PART, _VALUES, _SUFFIX, _UNFINISHED = "part", "values", ".safetensors", ".unfinished"
_SPAN = re.compile(rf"{_PART}-(\d+)-(\d+)")


def saving_errors(path: Path, option: str) -> AbstractContextManager[None]:
    """As `writing_errors`, safetensors' own among them; the hints name the command's option."""
    return writing_errors(
        path,
        f"free some space, or name a place on another disk with {option}",
        f"name a place that you may write to with {option}",
        also=SafetensorError,
    )


def save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a safetensors file atomically. Raises ResourceError, DocumentError."""
    with saving_errors(path, "--work"), replacing(path, path.with_suffix(_UNFINISHED)) as part:
        save_file(dict(tensors), str(part))


class Shards:
    """The parts of one folder, from the first token on, without a gap.

    Args:
        folder: of `open_folder`. wanted: tokens of the whole text. If some are missing, only parts
            before the first one without values count, because they can refill the cache.
    """

    def __init__(self, folder: Path, wanted: int = 0) -> None:
        self.folder = folder
        self._names: list[str] = []
        self.tokens = 0
        """Tokens stored so far."""
        for path in sorted(folder.glob(f"{_PART}-*-*{_SUFFIX}")):
            span = _SPAN.fullmatch(path.stem)
            if span and int(span[1]) == self.tokens:
                self._names.append(f"{span[1]}-{span[2]}")
                self.tokens = int(span[2])
        if self.tokens < wanted:
            self._keep_what_has_values()

    def _keep_what_has_values(self) -> None:
        for at, name in enumerate(self._names):
            if not self._path(_VALUES, name).is_file():
                self.tokens = int(name.split("-")[0])
                del self._names[at:]
                return

    def _path(self, kind: str, name: str) -> Path:
        return self.folder / f"{kind}-{name}{_SUFFIX}"

    def add(
        self, queries: Sequence[Tensor], keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> None:
        """Stores the next n tokens, one tensor (n, F) a layer of each. Raises as `save`."""
        stop = self.tokens + queries[0].shape[0]
        name = f"{self.tokens:08}-{stop:08}"
        # The part is written last: if it exists, so do its values.
        save(
            {f"values.{i}": x.contiguous() for i, x in enumerate(values)}, self._path(_VALUES, name)
        )
        part = {f"queries.{i}": x.contiguous() for i, x in enumerate(queries)}
        part |= {f"keys.{i}": x.contiguous() for i, x in enumerate(keys)}
        save(part, self._path(_PART, name))
        self._names.append(name)
        self.tokens = stop

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Folded queries and keys of one layer, (tokens, F) float32 each. Raises UsageError: a part
        is damaged."""
        queries, keys = [], []
        for name in self._names:
            with self._opened(_PART, name) as file:
                queries.append(file.get_tensor(f"queries.{index}"))
                keys.append(file.get_tensor(f"keys.{index}"))
        return torch.cat(queries).float(), torch.cat(keys).float()

    @contextmanager
    def _opened(self, kind: str, name: str) -> Iterator[Any]:
        path = self._path(kind, name)
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"{path} cannot be read: {error}", "delete it; the same command makes it again"
            ) from error

    def memories(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Yields each part's keys and values, (n, F) of each layer; needs the values files. Raises
        UsageError: a part is damaged."""
        for name in self._names:
            with self._opened(_VALUES, name) as file:
                values = [file.get_tensor(f"values.{i}") for i in range(len(file.keys()))]
            with self._opened(_PART, name) as file:
                keys = [file.get_tensor(f"keys.{i}") for i in range(len(values))]
            yield list(zip(keys, values, strict=True))

    def drop_values(self) -> None:
        """Deletes the values, which only a killed run needs."""
        for path in self.folder.glob(f"{_VALUES}-*{_SUFFIX}"):
            path.unlink()


def open_folder(folder: Path, settings: Mapping[str, Any], wanted: int = 0) -> Shards:
    """The shards in `folder`, which is created.

    Args:
        settings: as JSON; a folder with other settings is refused. wanted: see `Shards`.

    Raises:
        UsageError: the folder has another run's data, or is not a calibration's.
        ResourceError, DocumentError: the folder cannot be written.
    """
    file = folder / SETTINGS
    with saving_errors(folder, "--work"):
        empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        if not empty and not file.is_file():
            raise UsageError(
                f"--work must be a folder of `esa calibrate`, got {folder}", "name another"
            )
        folder.mkdir(parents=True, exist_ok=True)
    if not file.is_file():
        text = json.dumps(settings, indent=2, sort_keys=True)
        with saving_errors(file, "--work"), replacing(file, file.with_suffix(_UNFINISHED)) as part:
            part.write_text(text, "utf-8")
    kept, now = _settings(file), json.loads(json.dumps(settings))
    for key in sorted({*kept, *now}):
        if kept.get(key) != now.get(key):
            raise UsageError(f"{folder} has data of another {key}", _AFRESH)
    return Shards(folder, wanted)


_AFRESH = "delete it to start again there; --work names another folder"


def _settings(file: Path) -> dict[str, Any]:
    """Raises UsageError if the file is damaged, since its parts are then of an unknown text."""
    try:
        kept = json.loads(file.read_text("utf-8"))
        if isinstance(kept, dict):
            return kept
        said = "it has no settings"
    except (OSError, ValueError) as error:
        said = str(error)
    raise UsageError(f"{file} cannot be read: {said}", _AFRESH)
