"""What a method is made of beyond its settings' words: plugin files, and files that settings name.

Both are known by what is in them: rows of an edited plugin are another method's rows. What such a
file imports from elsewhere is not looked at.
"""

from __future__ import annotations

import hashlib
import inspect
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from esa_cli.attention.method import Method
from esa_cli.errors import PresetError

PARTS = ("selector", "score", "compressor", "position")
_WITHOUT_FILE: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def sources(method: Method) -> dict[str, str]:
    """The hashes of the plugin files that the method's parts stand in, by kind of part.

    A class typed into a running Python has no file: it is only itself, until it is typed again.
    """
    found = {}
    for name in PARTS:
        kind = type(getattr(method, name))
        if not kind.__module__.startswith("esa_cli."):
            file = _file(kind)
            found[name] = _of(file) if file else _WITHOUT_FILE.setdefault(kind, uuid.uuid4().hex)
    return found


def without_file(method: Method) -> str:
    """The first kind of part whose class stands in no file; empty where all do."""
    kinds = {name: type(getattr(method, name)) for name in PARTS}
    return next((name for name, kind in kinds.items() if _file(kind) is None), "")


def contents(settings: Mapping[str, Any], files: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of one part; those that name a file have the hash of its content.

    Args:
        files: of the part (`Compressor.files`); a setting called `file` names one, too. Files that
            no setting names are hashed under `files`.
    """
    out = dict(settings)
    for key, value in settings.items():
        if key == "file" or value in files:
            out[key] = _of(Path(str(value)).expanduser())
    others = [_of(Path(one).expanduser()) for one in files if one not in settings.values()]
    return {**out, "files": others} if others else out


def _file(kind: type) -> Path | None:
    try:
        return Path(inspect.getfile(kind))
    except (TypeError, OSError):  # what Python says of classes that were typed in
        return None


def _of(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        said = error.strerror or str(error)
        raise PresetError(f"{file} cannot be read: {said}", "name a file that is there") from error
