"""The settings of models as transformers completes them, kept for processes without its classes.

A model's config.json leaves out what is the family's default, which only transformers knows. When
it has loaded a model, the whole settings are kept, see `settings_cache`, until the model's small
files or the version of transformers change.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from esa_cli.models.files.settings_cache import (
    UNUSABLE,
    installed,
    read_settings,
    settings_path,
    write_settings,
)

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
    they cannot be written, they are not kept.

    Args:
        config: of transformers.
    """
    if cached_config(folder) is None:
        with suppress(*UNUSABLE):
            write_settings(_path(folder), config.to_dict())


def _path(folder: Path) -> Path:
    kind = f"{FORMAT} {installed('transformers')}"
    return settings_path(kind, [folder / name for name in SMALL_FILES])
