"""Windows of the training texts that a finder ranks first for their questions, from files.

A folder has one file `NAME.jsonl` a text: a question's id, and the characters [start, end) of its
best windows, best first, a line. `benchmarks/training/rank_windows.py` writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from question_pairs import Span, TrainingText

from esa_cli.errors import DocumentError


@dataclass(frozen=True)
class RankedWindows:
    """Windows of one text by the question's id; `digest` is the SHA-256 of the file."""

    windows: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    digest: str = ""


def read_ranked_windows(folder: Path, texts: Sequence[TrainingText]) -> dict[str, RankedWindows]:
    """The files of these texts by their names; a text may have none.

    Raises:
        DocumentError: the folder has no file of any of the texts, or one is damaged or has
            windows outside its text.
    """
    found = {text.name: folder / f"{text.name}.jsonl" for text in texts}
    out = {text.name: _read(found[text.name], text) for text in texts if found[text.name].exists()}
    if not out:
        raise DocumentError(
            f"the folder of windows must have files NAME.jsonl of the texts, got {folder}",
            "benchmarks/training/rank_windows.py writes them",
        )
    return out


def _read(path: Path, text: TrainingText) -> RankedWindows:
    try:
        content = path.read_bytes()
        rows = [json.loads(line) for line in content.splitlines()]
        windows = {str(row["id"]): [(int(a), int(b)) for a, b in row["windows"]] for row in rows}
        for start, end in (span for spans in windows.values() for span in spans):
            if not 0 <= start < end <= len(text.text):
                raise ValueError(
                    f"a window must be within the {len(text.text)} characters, got [{start}, {end})"
                )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DocumentError(
            f"the windows {path} cannot be read: {error}",
            "write them again with benchmarks/training/rank_windows.py",
        ) from error
    return RankedWindows(windows, hashlib.sha256(content).hexdigest())
