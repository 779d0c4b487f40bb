"""Reads the JSON-lines files that benchmarks are published as; errors name file and line."""

from __future__ import annotations

import codecs
import json
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from esa_cli.errors import DocumentError, UsageError
from esa_cli.models.files.hub import silent_bar
from esa_cli.system.text import has_lone_surrogate

FOLDERS = ("", "data")
"""Places of files below the folder that the user names."""


@dataclass(frozen=True)
class DataRow:
    """One line of a file."""

    path: Path
    line: int
    data: dict[str, Any]

    def wrong(self, what: str) -> DocumentError:
        return DocumentError(
            f"{self.path}, line {self.line}: {what}", "fetch the official file again"
        )

    def text(self, key: str) -> str:
        value = self.data.get(key)
        if not isinstance(value, str):
            raise self.wrong(f"{key!r} must be a text, got {_short(value)}")
        return self._whole(key, value)

    def _whole(self, key: str, value: str) -> str:
        """Refuses lone surrogates, which JSON escapes can spell and no tokenizer accepts."""
        if has_lone_surrogate(value):
            raise self.wrong(f"{key!r} must be Unicode text, got a lone surrogate")
        return value

    def number(self, key: str) -> int:
        value = self.data.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(f"{key!r} must be a whole number, got {_short(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts or numbers, or a single one; at least one."""
        value = self.data.get(key)
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(v, str | int | float) for v in values):
            raise self.wrong(f"{key!r} must be a text or a list of texts, got {_short(value)}")
        return tuple(self._whole(key, str(v)) for v in values)

    def filled_texts(self, key: str) -> tuple[str, ...]:
        """The same for texts that are searched in an answer: an empty one would always be found."""
        values = self.texts(key)
        if not all(value.strip() for value in values):
            raise self.wrong(f"{key!r} must have no empty text")
        return values

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self.data.get(key)
        if not isinstance(value, list) or not value or not all(type(v) is int for v in value):
            raise self.wrong(f"{key!r} must be a list of whole numbers, got {_short(value)}")
        return tuple(value)


def _short(value: object) -> str:
    return repr(value)[:60]


def find(folder: Path, *names: str) -> Path | None:
    """The first of the files that is in the folder or in its data/."""
    for name in names:
        for below in FOLDERS:
            path = folder / below / name
            if path.is_file():
                return path
    return None


def need(folder: Path, source: str, *names: str) -> Path:
    """The same; raises DocumentError when no file is there."""
    path = find(folder, *names)
    if path is None:
        raise DocumentError(f"{folder / names[0]} is missing", f"official files: {source}")
    return path


def rows(path: Path) -> Iterator[DataRow]:
    """The objects of a file of JSON lines; empty lines are skipped. Raises DocumentError: the file
    cannot be read, a line is not a JSON object, or there is none."""
    empty = True
    try:
        with path.open("rb") as lines:
            for line, text in enumerate(lines, start=1):
                text = text.removeprefix(codecs.BOM_UTF8) if line == 1 else text
                if text.strip():
                    empty = False
                    yield _row(path, line, text)
    except OSError as error:
        raise DocumentError(
            f"{path} cannot be read: {error.strerror}", "fetch the official file again"
        ) from error
    if empty:
        raise _nothing(path)


def array(path: Path) -> list[DataRow]:
    """The objects of a file that is one JSON array; the line is the place in it."""
    try:
        data = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DocumentError(
            f"{path} cannot be read: {error}", "fetch the official file again"
        ) from error
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise DocumentError(f"{path} must be a list of objects", "fetch the official file again")
    if not data:
        raise _nothing(path)
    return [DataRow(path, place, one) for place, one in enumerate(data, start=1)]


def _nothing(path: Path) -> DocumentError:
    return DocumentError(f"{path} has no records", "fetch the official file again")


def _row(path: Path, line: int, text: bytes) -> DataRow:
    try:
        data = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise DataRow(path, line, {}).wrong(f"not UTF-8: {error}") from error
    except (ValueError, RecursionError):  # broken, a number too long to be one, or nested too deep
        data = None
    row = DataRow(path, line, data if isinstance(data, dict) else {})
    if not isinstance(data, dict):
        raise row.wrong("not a JSON object")
    return row


_TIMEOUT_S = 10


@dataclass(frozen=True)
class Dataset:
    """A repository of the hub, with the licence that its authors state."""

    repo: str
    licence: str
    patterns: Sequence[str]


DATASETS = {
    "longbench": Dataset(
        "THUDM/LongBench", "MIT; the texts keep the licences of their sources", ["data.zip"]
    ),
    "infinitebench": Dataset(
        "xinrongzhang2022/InfiniteBench",
        "MIT; the texts keep the licences of their sources",
        [
            "passkey.jsonl", "number_string.jsonl", "kv_retrieval.jsonl", "math_find.jsonl",
            "longbook_choice_eng.jsonl", "code_debug.jsonl",
        ],
    ),
    "needlebench": Dataset(
        "opencompass/NeedleBench",
        "see the page of the dataset",
        ["PaulGrahamEssays.jsonl", "needles.jsonl", "multi_needle_reasoning_en.json"],
    ),
}  # fmt: skip


def dataset(name: str, source: str) -> Dataset:
    """The benchmark's repository; raises UsageError when it has none."""
    if name not in DATASETS:
        raise UsageError(f"{name} cannot be downloaded", f"official files: {source}")
    return DATASETS[name]


def download(chosen: Dataset, folder: Path, *, bars: bool = True) -> None:
    """Puts the files into the folder; `bars` shows progress. Raises DocumentError: they cannot be
    fetched or unpacked."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            chosen.repo,
            repo_type="dataset",
            local_dir=folder,
            allow_patterns=list(chosen.patterns),
            etag_timeout=_TIMEOUT_S,
            tqdm_class=None if bars else silent_bar(),
        )
        for archive in folder.glob("data.zip"):
            unpack(archive, folder)
    except Exception as error:
        reason = (str(error.__cause__ or error) or type(error).__name__).splitlines()[0]
        raise DocumentError(
            f"cannot fetch {chosen.repo} from the hub: {reason}",
            "check the network, proxy and HF_ENDPOINT; or copy the files into --data yourself",
        ) from error


def unpack(archive: Path, folder: Path) -> None:
    """Extracts an archive's .jsonl files into the folder itself, without the archive's folders."""
    with zipfile.ZipFile(archive) as packed:
        for member in packed.namelist():
            name = PurePosixPath(member).name
            if name.endswith(".jsonl"):
                with packed.open(member) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
