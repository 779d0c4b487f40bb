"""Small JSON files with facts that only transformers knows of a model, for processes without it.

A model's config.json leaves out the family's defaults: when transformers has loaded a model, its
completed settings are stored until the model's small files or the version of transformers change.
A file is found by the contents of the model's files that it follows from, and is not used when it
is damaged. It lies in the folder `settings` of `prepared_models.home`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from esa_cli.errors import UsageError
from esa_cli.models.files.prepared_models import home
from esa_cli.system.files import replacing
from esa_cli.system.text import text_digest

_UNUSABLE = (OSError, ValueError, UsageError)
"""Errors of a file that cannot be read or written, or has no place: then nothing is kept."""
FORMAT = 1
"""Raised when what is kept differs."""
installed = cache(version)
"""The version of a package, which is not imported."""


def _path(kind: str, files: Iterable[Path]) -> Path:
    digest = hashlib.sha256(kind.encode())
    for file in files:
        with suppress(FileNotFoundError):
            content = file.read_bytes()
            digest.update(f"\n{file.name} {len(content)}\n".encode() + content)
    return home() / "settings" / f"{digest.hexdigest()[:32]}.json"


def cached_settings(kind: str, files: Iterable[Path]) -> dict[str, Any] | None:
    """The settings that follow from these files of a model, some of which may be missing; None:
    they are not known, or damaged. `kind` names them and the versions of their packages."""
    with suppress(*_UNUSABLE):
        digest, _, text = _path(kind, files).read_text("utf-8").partition("\n")
        if digest == text_digest(text):
            settings: dict[str, Any] = json.loads(text)
            return settings
    return None


def cache_settings(kind: str, files: list[Path], make: Callable[[], dict[str, Any]]) -> None:
    """Keeps settings that are not known yet, as `cached_settings` returns them, unless they cannot
    be written; values that are no JSON as their text."""
    if cached_settings(kind, files) is not None:
        return
    text = json.dumps(make(), default=str)
    with suppress(*_UNUSABLE):
        path = _path(kind, files)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(f"{text_digest(text)}\n{text}", "utf-8")


def _of_config(folder: Path) -> tuple[str, list[Path]]:
    """The files of a model's folder from which transformers makes its settings."""
    files = [folder / name for name in ("config.json", "generation_config.json")]
    return f"{FORMAT} {installed('transformers')}", files


def cached_config(folder: Path) -> dict[str, Any] | None:
    """The completed settings of the model in a folder; None: they are not known, or damaged."""
    return cached_settings(*_of_config(folder))


def cache_config(folder: Path, config: Any) -> None:
    """Keeps the completed settings of a model that transformers has loaded from a folder."""
    cache_settings(*_of_config(folder), config.to_dict)
