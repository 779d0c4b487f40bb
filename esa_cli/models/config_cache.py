"""The settings of models as transformers completes them, kept for processes without its classes.

A model's config.json leaves out what is the family's default, which only transformers knows. When
it has loaded a model, the whole settings are written to a file of `prepared_models.home`, found
again by the contents of the model's small files and the version of transformers.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from esa_cli.errors import UsageError
from esa_cli.models.prepared_models import home
from esa_cli.system.files import replacing
from esa_cli.system.text import text_digest

FORMAT = 1
"""Raised when what is kept differs."""
SMALL_FILES = ("config.json", "generation_config.json")
"""The files of a model's folder from which transformers makes its settings."""


def cached_config(folder: Path) -> dict[str, Any] | None:
    """The completed settings of the model in a folder; None: they are not known, or damaged."""
    with suppress(OSError, ValueError, UsageError):
        digest, _, text = _path(folder).read_text("utf-8").partition("\n")
        if digest == text_digest(text):
            found: dict[str, Any] = json.loads(text)
            return found
    return None


def cache_config(folder: Path, config: Any) -> None:
    """Keeps the completed settings of a model that transformers has loaded from a folder; where
    they cannot be written, they are not kept.

    Args:
        config: of transformers.
    """
    with suppress(OSError, ValueError, UsageError):
        if cached_config(folder) is not None:
            return
        path, text = _path(folder), json.dumps(config.to_dict(), default=str)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(f"{text_digest(text)}\n{text}", "utf-8")


def _path(folder: Path) -> Path:
    import transformers

    found = hashlib.sha256(f"{FORMAT} {transformers.__version__}".encode())
    for name in SMALL_FILES:
        with suppress(FileNotFoundError):
            content = (folder / name).read_bytes()
            found.update(f"\n{name} {len(content)}\n".encode() + content)
    return home() / "settings" / f"{found.hexdigest()[:32]}.json"
