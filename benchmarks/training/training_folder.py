"""The folder of a training: refused if it has another, and finished with its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from training_checkpoint import FILE

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import convert_writing_errors, write_text_atomically

RECORD = "training.json"


def check_folder(folder: Path, resume: bool, what: str, *results: str) -> None:
    """Refuses a folder before anything is loaded.

    Args:
        what: is trained. results: names of its files.

    Raises:
        UsageError: it has a training and `resume` is False, or none and it is True.
    """
    checkpoint = (folder / FILE).is_file()
    if resume and not checkpoint:
        raise UsageError(
            f"--out must have a checkpoint to resume, got {folder}", "begin without it"
        )
    if not resume and (checkpoint or any((folder / name).exists() for name in results)):
        hint = "add --resume, or name another folder" if checkpoint else "name another folder"
        raise UsageError(f"--out must have no {what} yet, got {folder}", hint)


def finish_folder(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes `training.json` and removes the checkpoint. Raises ResourceError, DocumentError."""
    with writing_folder(folder):
        write_text_atomically(folder / RECORD, json.dumps(record, indent=1) + "\n")
        (folder / FILE).unlink(missing_ok=True)


def writing_folder(folder: Path) -> AbstractContextManager[None]:
    """Gives errors of writing into the folder their hints."""
    return convert_writing_errors(
        folder, "free some space; --resume goes on", "name a folder that you may write to",
        also_caught=SafetensorError, other_error=DocumentError,
    )  # fmt: skip
