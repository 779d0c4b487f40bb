"""The work folder of a calibration: folded queries, keys, and values of each layer.

    esa-calibration.json             the text, the model and the method
    part-START-STOP.safetensors      queries.I and keys.I, (n, F) each, for every layer I
    values-START-STOP.safetensors    values.I (n, F), until the last token is stored

There is one part for each piece that the model was fed. Parts are written atomically: a killed run
continues behind the last one. Values only serve to refill the cache then; if a part is lost after
they are deleted, prefill starts again at the first token.

Keys and values have the model's dtype: a refilled cache must equal the first one to the last bit.
Queries are float32, as sums over heads in float16 can overflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from esa_cli.errors import UsageError
from esa_cli.system.files import replacing, writing_errors

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
            {f"values.{i}": x.contiguous() for i, x in enumerate(values)},
            self._path(_VALUES, name),
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


def _empty(folder: Path) -> None:
    """Deletes a calibration's files in a folder, and nothing else."""
    for path in folder.glob("*-*"):
        kind, known = path.name.split("-")[0], (_SUFFIX, _UNFINISHED)
        if kind in (_PART, _VALUES, MAPS) and path.suffix in known:
            path.unlink()
    (folder / SETTINGS).unlink()


def open_folder(
    folder: Path, settings: Mapping[str, Any], resume: bool = True, wanted: int = 0
) -> Shards:
    """The shards in `folder`, which is created, and emptied unless `resume`.

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
        if file.is_file() and not resume:
            _empty(folder)
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


_AFRESH = "--no-resume starts again there; --work names another folder"


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
