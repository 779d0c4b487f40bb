"""Reads single values from the head of a GGUF file, without reading its arrays.

The `gguf` package builds an object for every entry of the vocabulary, which takes seconds; this
skips over them. It knows GGUF versions 2 and 3, little-endian, which is what is in use.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO

from esa_cli.errors import ModelError

_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


def read_string(path: Path, key: str) -> str | None:
    """The string that a GGUF file's head has under `key`, or None if it has none.

    Raises:
        ModelError: the file is not GGUF, or its head is cut off or of an unknown version.
        OSError: the file cannot be read.
    """
    wanted = key.encode()
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError(f"{path.name} is not a GGUF file.", "Check or fetch it again.")
        try:
            version, _, entries = _unpack(stream, "<IQQ")
            if version not in (2, 3):
                raise ValueError(f"version {version} is unknown")
            for _ in range(entries):
                name, kind = _bytes(stream), _unpack(stream, "<I")[0]
                if name == wanted and kind == _STRING:
                    return _bytes(stream).decode("utf-8", "replace")
                _skip(stream, kind)
        except (ValueError, KeyError, struct.error, OverflowError, MemoryError) as error:
            raise ModelError(
                f"The GGUF file {path.name} is damaged: {error}.", "Fetch it again."
            ) from error
    return None


def _unpack(stream: IO[bytes], form: str) -> tuple[int, ...]:
    return struct.unpack(form, stream.read(struct.calcsize(form)))


def _bytes(stream: IO[bytes]) -> bytes:
    (length,) = _unpack(stream, "<Q")
    data = stream.read(length)
    if len(data) != length:
        raise ValueError("it is cut off")
    return data


def _skip(stream: IO[bytes], kind: int) -> None:
    if kind == _STRING:
        _bytes(stream)
    elif kind == _ARRAY:
        inner, count = _unpack(stream, "<IQ")
        if inner in _SCALAR_BYTES:
            stream.seek(count * _SCALAR_BYTES[inner], 1)
        else:
            for _ in range(count):
                _skip(stream, inner)
    else:
        stream.seek(_SCALAR_BYTES[kind], 1)
