"""Prefills a text and stores each layer's queries, keys and values.

As the paper prepares its training data: tokens are selected as the preset says, but by whole
queries and keys. Queries are stored as the score will use them: folded in float32, and rotated to
the far distance before where the score rotates.

A killed run refills the cache from the keys and values and continues. A selector's side data is
then empty for the earlier tokens; only a selector that needs it (`observe`) may select otherwise
than in one run.
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
from esa_cli.attention.step import ChunkTrace
from esa_cli.attention.window import Phase, QueryState
from esa_cli.errors import ResourceError, UsageError
from esa_cli.models.attachment.attach import Attachment
from esa_cli.qa.answering.session import feed
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.system.files import replacing, writing_errors
from esa_cli.system.machine import size_text
from esa_cli.system.progress import Progress

SETTINGS = "esa-calibration.json"
MAPS = "maps"
"""First part of the names of fitted maps, which `fitted_maps` keeps in the same folder."""
KINDS = ("queries", "keys", "values")
_PART = re.compile(r"part-(\d+)-(\d+)")
_AFRESH = "delete it to start again there; --work names another folder"


def whole_key_method(method: Method) -> Method:
    """The method, scoring with whole keys."""
    return dataclasses.replace(method, compressor=NoCompression())


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
    if shards.tokens >= len(ids):
        return
    shape = shape_of(attachment.model.config.to_dict())
    size = torch.float32.itemsize + 2 * attachment.model.dtype.itemsize
    needed = shape.layers * shape.groups * shape.dim * size * (len(ids) - shards.tokens)
    free = shutil.disk_usage(shards.folder).free
    if needed > free:
        raise ResourceError(
            f"queries, keys and values take {size_text(needed)} in {shards.folder}, where "
            f"{size_text(free)} are free",
            "use fewer --tokens, or another disk with --work",
        )
    rows: dict[str, list[Tensor]] = {}

    def trace(seen: ChunkTrace) -> None:
        method, queries = attachment.method, seen.queries
        if method.score.rotates:
            queries = seen.rope.far_queries(queries, method.position.distance)
        keys, values = seen.store.span(seen.start, seen.stop)
        folded = fold(queries.float(), seen.store.heads)
        for kind, x in zip(KINDS, (folded, flatten_keys(keys), flatten_keys(values)), strict=True):
            rows.setdefault(f"{kind}.{seen.layer}", []).append(x.cpu())

    cache = attachment.new_cache()
    cache.expect(len(ids))
    cache.begin(QueryState(Phase.PREFILL, trace=trace))
    for part in shards.memories():
        for layer, pair in zip(cache.own, part, strict=True):
            keys, values = (x.view(x.shape[0], shape.groups, -1).transpose(0, 1) for x in pair)
            layer.append(keys.to(attachment.model.device), values.to(attachment.model.device))

    def store(tokens: int, total: int) -> None:
        shards.add({name: torch.cat(pieces) for name, pieces in rows.items()})
        rows.clear()
        if progress:
            progress(tokens, total)

    feed(attachment.model, ids, cache, shards.tokens, store)


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
    unfinished = path.with_suffix(".unfinished")
    with saving_errors(path, "--work"), replacing(path, unfinished) as part:
        save_file(dict(tensors), str(part))


class Shards:
    """The parts of one folder, from the first token on, without a gap: each a file with queries,
    keys and values (n, F) of every layer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._paths: list[Path] = []
        self.tokens = 0
        """Tokens stored so far."""
        for path in sorted(folder.glob("part-*.safetensors")):
            span = _PART.fullmatch(path.stem)
            if span and int(span[1]) == self.tokens:
                self._paths.append(path)
                self.tokens = int(span[2])

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Stores the next n tokens: (n, F) by kind and layer, as "keys.3". Raises as `save`."""
        stop = self.tokens + rows["queries.0"].shape[0]
        path = self.folder / f"part-{self.tokens:08}-{stop:08}.safetensors"
        save({name: x.contiguous() for name, x in rows.items()}, path)
        self._paths.append(path)
        self.tokens = stop

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Folded queries and keys of one layer, (tokens, F) float32 each. Raises UsageError: a part
        is damaged."""
        queries, keys = [], []
        for path in self._paths:
            with _opened(path) as file:
                queries.append(file.get_tensor(f"queries.{index}"))
                keys.append(file.get_tensor(f"keys.{index}"))
        return torch.cat(queries).float(), torch.cat(keys).float()

    def memories(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Yields each part's keys and values, (n, F) of each layer. Raises UsageError: a part is
        damaged."""
        for path in self._paths:
            with _opened(path) as file:
                layers = range(len(file.keys()) // len(KINDS))
                yield [
                    (file.get_tensor(f"keys.{i}"), file.get_tensor(f"values.{i}")) for i in layers
                ]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", "delete it; the same command makes it again"
        ) from error


def open_folder(folder: Path, settings: Mapping[str, Any]) -> Shards:
    """The shards in `folder`, which is created.

    Args:
        settings: as JSON; a folder with other settings is refused.

    Raises:
        UsageError: the folder has another run's data, or is not a calibration's.
        ResourceError, DocumentError: the folder cannot be written.
    """
    file = folder / SETTINGS
    with saving_errors(folder, "--work"):
        if not file.is_file():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UsageError(
                    f"--work must be a folder of `esa calibrate`, got {folder}", "name another"
                )
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(file, file.with_suffix(".unfinished")) as part:
                part.write_text(json.dumps(settings, indent=2, sort_keys=True), "utf-8")
    try:
        stored = dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", _AFRESH) from error
    now = json.loads(json.dumps(settings))
    for key in sorted({*stored, *now}):
        if stored.get(key) != now.get(key):
            raise UsageError(f"{folder} has data of another {key}", _AFRESH)
    return Shards(folder)
