"""Small JSON files of what only transformers knows of a model, kept for processes without it.

A file is found again by the contents of the model's files that it follows from, and is not used
when it is damaged. It lies in the folder `settings` of `prepared_models.home`.
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
    """The file of settings that follow from these files of a model, of which some may be missing.

    Args:
        kind: names the settings, and the versions of what made them.

    Raises:
        OSError: a file cannot be read. UsageError: as `home`.
    """
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
