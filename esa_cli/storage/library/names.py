"""The names of files that esa makes in a library. Only what is named so is listed, counted, swept.

Digests are of lower-case hexadecimal: 40 letters for a document or the beginning of a segment, 24
for projections; see `chain` and `contents`.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDERS = ("documents", "segments", "fits", "claims", "locks")
_KEY, _FIT = "[0-9a-f]{40}", "[0-9a-f]{24}"
_NAMES = {
    "documents": rf"{_KEY}\.(?:doc|text|tokens|used)",
    "segments": rf"{_KEY}-(?:{_FIT}|none)\.seg",
    "fits": rf"{_FIT}\.fit",
    "claims": rf"{_KEY}\.claim",
}
KEPT = tuple(_NAMES)
"""The folders with what is kept: all but the locks."""
_WHOLE = {folder: re.compile(name) for folder, name in _NAMES.items()}
_PART = {folder: re.compile(rf"\.{name}\.{_KEY}\.part") for folder, name in _NAMES.items()}


def is_ours(path: Path) -> bool:
    """Whether a path in one of the folders has a name that esa gives there, or a part of such a
    file has while it is written."""
    folder = path.parent.name
    return any(names[folder].fullmatch(path.name) for names in (_WHOLE, _PART))


def is_document(name: str) -> bool:
    """Whether a file in `documents` is a manifest."""
    return name.endswith(".doc") and _WHOLE["documents"].fullmatch(name) is not None
