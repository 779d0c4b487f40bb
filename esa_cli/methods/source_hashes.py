"""Content hashes of the files behind a method: plugin sources, and files named in settings.

Documents stored with an earlier content are not reused. Imports of these files are not hashed.
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
    """Hashes of the plugin files that define the method's parts, by kind of part.

    A class defined in an interactive session has no file, and a random name in place of a hash.
    """
    found = {}
    for name in PARTS:
        kind = type(getattr(method, name))
        if not kind.__module__.startswith("esa_cli."):
            file = _file(kind)
            found[name] = _of(file) if file else _WITHOUT_FILE.setdefault(kind, uuid.uuid4().hex)
    return found


def without_file(method: Method) -> str:
    """The first kind of part whose class has no source file; empty where all have one."""
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
    except (TypeError, OSError):  # a class defined in an interactive session
        return None


def _of(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        reason = error.strerror or str(error)
        raise PresetError(f"{file} cannot be read: {reason}", "check the path") from error
