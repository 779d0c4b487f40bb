"""Small JSON files of what only transformers knows of a model, for processes that do not import it.

A model's config.json leaves out the family's defaults: when transformers has loaded a model, its
completed settings are stored until the model's small files or the version of transformers change.
A file is found by the contents of the model's files that it follows from, and is not used when it
is damaged. It lies in the folder `settings` of `prepared_models.home`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from esa_cli.errors import UsageError
from esa_cli.models.files.prepared_models import home
from esa_cli.system.files import replacing
from esa_cli.system.text import text_digest

UNUSABLE = (OSError, ValueError, UsageError, PackageNotFoundError)
"""Errors of a file that cannot be read or written, or has no place: then nothing is kept."""


def settings_path(kind: str, files: Iterable[Path]) -> Path:
    """The file of settings that follow from these files of a model, some of which may be missing,
    and from `kind`, which names the settings and the versions of what made them. Raises OSError: a
    file cannot be read. UsageError: as `home`."""
    found = hashlib.sha256(kind.encode())
    for file in files:
        with suppress(FileNotFoundError):
            content = file.read_bytes()
            found.update(f"\n{file.name} {len(content)}\n".encode() + content)
    return home() / "settings" / f"{found.hexdigest()[:32]}.json"


def read_settings(path: Path) -> dict[str, Any] | None:
    """What was written there; None: nothing, or it is damaged. Raises OSError, ValueError."""
    digest, _, text = path.read_text("utf-8").partition("\n")
    if digest != text_digest(text):
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def write_settings(path: Path, values: dict[str, Any]) -> None:
    """Writes values, those that are no JSON as their text. Raises OSError."""
    text = json.dumps(values, default=str)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(f"{text_digest(text)}\n{text}", "utf-8")


@cache
def installed(package: str) -> str:
    """The version of a package, which is not imported. Raises PackageNotFoundError."""
    return version(package)


FORMAT = 1
"""Raised when what is kept differs."""
SMALL_FILES = ("config.json", "generation_config.json")
"""The files of a model's folder from which transformers makes its settings."""


def cached_config(folder: Path) -> dict[str, Any] | None:
    """The completed settings of the model in a folder; None: they are not known, or damaged."""
    with suppress(*UNUSABLE):
        return read_settings(_path(folder))
    return None


def cache_config(folder: Path, config: Any) -> None:
    """Keeps the completed settings of a model that transformers has loaded from a folder; where
    they cannot be written, they are not kept."""
    if cached_config(folder) is None:
        with suppress(*UNUSABLE):
            write_settings(_path(folder), config.to_dict())


def _path(folder: Path) -> Path:
    kind = f"{FORMAT} {installed('transformers')}"
    return settings_path(kind, [folder / name for name in SMALL_FILES])
