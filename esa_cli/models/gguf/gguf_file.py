"""Reading a GGUF file: its metadata, and its tensors as numbers.

Every count, length and offset in the file is held against the file's size before it is used, so
that a file that is cut off or made to do harm is refused and nothing else. `gguf.GGUFReader` does
not do so: an array with a large count grows its lists until the memory is used up.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError, first_line

MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_DIMENSIONS = 4
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
"""Types of metadata; `_NUMBERS` has their letters for `struct`."""
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_AGAIN = "it may be cut off; fetch it again"


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor is in the file: `shape` in torch's order, `kind` of GGMLQuantizationType,
    `start` and `size` in bytes of the file."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class GgufFile:
    """A GGUF file, open until `close` or the end of a `with` block.

    Args:
        path: of a file, or of the first one of a split model, whose others are beside it.
        part: it is one of these others.

    Raises:
        ModelError: not a whole GGUF file, another part than the first, a part is lacking, or with
            a type of numbers not known.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, *, part: bool = False) -> None:
        self.path = path
        parts = [] if part else other_parts(path)
        if path.stat().st_size < 24:
            raise ModelError(f"{path.name} is not a GGUF file", _AGAIN)
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ModelError(f"{path.name} is not a GGUF file", _AGAIN)
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = len(MAGIC)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._elsewhere: dict[str, GgufFile] = {}
        self._others: list[GgufFile] = []
        try:
            self._read_header()
            for other in parts:
                self._add(GgufFile(other, part=True))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the files."""
        for other in self._others:
            other.close()
        self._bytes.close()

    @property
    def architecture(self) -> str:
        """llama.cpp's name for the kind of model. Raises ModelError: the file has none."""
        found = self.metadata.get("general.architecture")
        if not isinstance(found, str):
            raise ModelError(f"{self.path.name} does not say which kind of model it is", _AGAIN)
        return found

    def setting(self, name: str, default: Any = None) -> Any:
        """The metadata of this name below that of the architecture."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    @property
    def size(self) -> int:
        """Bytes of the file, and of the other parts of a split model."""
        return len(self._bytes) + sum(other.size for other in self._others)

    def read(self, name: str) -> Any:
        """A tensor as a numpy array of float32. Raises ModelError: its type cannot be unpacked."""
        if name in self._elsewhere:
            return self._elsewhere[name].read(name)
        import numpy
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        kind = GGMLQuantizationType(tensor.kind)
        raw = numpy.frombuffer(self._bytes[tensor.start : tensor.start + tensor.size], numpy.uint8)
        numbers, width = GGML_QUANT_SIZES[kind]
        row = tensor.shape[-1] // numbers * width
        try:
            found = dequantize(raw.reshape(*tensor.shape[:-1], row), kind)
        except (NotImplementedError, ValueError) as error:
            raise ModelError(
                f"{self.path.name} has weights of type {kind.name}, which the package gguf cannot "
                f"unpack: {first_line(error)}",
                "use a file of another quantisation, such as Q4_K_M or Q8_0",
            ) from error
        return found.reshape(tensor.shape).astype(numpy.float32, copy=False)

    def _add(self, other: GgufFile) -> None:
        """Takes the tensors of another part."""
        self._others.append(other)
        if twice := self.tensors.keys() & other.tensors.keys():
            raise other._damaged(f"tensor {min(twice)[:80]}")
        self.tensors |= other.tensors
        self._elsewhere |= dict.fromkeys(other.tensors, other)

    def _read_header(self) -> None:
        (version,) = self._unpack("I")
        if version not in VERSIONS:
            raise ModelError(
                f"{self.path.name} must be GGUF of version 2 or 3, got {version}",
                "convert the model again with a newer llama.cpp, on a little-endian machine",
            )
        tensors, entries = self._unpack("QQ")
        for _ in range(self._count(entries, 13)):
            name = self._string()
            (kind,) = self._unpack("I")
            self.metadata[name] = self._value(kind)
        infos = [self._tensor_info() for _ in range(self._count(tensors, 24))]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._damaged(f"alignment {alignment}")
        data = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in infos:
            self.tensors[name] = self._placed(name, shape, kind, data + offset)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (count,) = self._unpack("I")
        if not 0 < count <= MOST_DIMENSIONS:
            raise self._damaged(f"tensor {name[:80]}")
        shape = self._unpack("Q" * count)[::-1]
        kind, offset = self._unpack("IQ")
        return name, shape, kind, offset

    def _placed(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> GgufTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            numbers, width = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (KeyError, ValueError) as error:
            raise ModelError(
                f"{self.path.name} has weights of the type {kind}, which is not known",
                "use a file of another quantisation, such as Q4_K_M or Q8_0, or upgrade gguf",
            ) from error
        size = prod(shape) // numbers * width
        if name in self.tensors or 0 in shape or shape[-1] % numbers:
            raise self._damaged(f"tensor {name[:80]}")
        if start + size > len(self._bytes):
            raise self._damaged(f"tensor {name[:80]}")
        return GgufTensor(shape, kind, start, size)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _NUMBERS:
            return self._unpack(_NUMBERS[kind])[0]
        if kind != _ARRAY:
            raise self._damaged(f"metadata of type {kind}")
        inner, count = self._unpack("IQ")
        if inner == _STRING:
            return [self._string() for _ in range(self._count(count, 8))]
        if inner not in _NUMBERS:
            raise self._damaged(f"an array of type {inner}")
        form = _NUMBERS[inner]
        return list(self._unpack(f"{self._count(count, struct.calcsize(form))}{form}"))

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        start = self._at
        self._at += self._count(length, 1)
        # llama.cpp keeps bytes that are no text in some vocabularies.
        return self._bytes[start : self._at].decode("utf-8", "replace")

    def _unpack(self, form: str) -> tuple[Any, ...]:
        form = "<" + form
        size = struct.calcsize(form)
        if self._at + size > len(self._bytes):
            raise self._damaged("its end")
        found = struct.unpack_from(form, self._bytes, self._at)
        self._at += size
        return found

    def _count(self, count: int, size: int) -> int:
        """`count`, when as many things of at least `size` bytes can be in the rest of the file."""
        if count * size > len(self._bytes) - self._at:
            raise self._damaged(f"a count of {count}")
        return count

    def _damaged(self, where: str) -> ModelError:
        return ModelError(f"{self.path.name} is damaged or cut off at {where}", _AGAIN)


def other_parts(path: Path) -> list[Path]:
    """The files of a split model after its first. Raises ModelError: it is not the first, or one
    is lacking."""
    if not (match := _PART.fullmatch(path.name)):
        return []
    number, count = int(match[2]), int(match[3])
    if number != 1:
        raise ModelError(
            f"{path.name} is part {number} of a model of {count} parts",
            f"give the first: {match[1]}-00001-of-{match[3]}.gguf",
        )
    end = path.suffix
    parts = [path.with_name(f"{match[1]}-{i:05d}-of-{match[3]}{end}") for i in range(2, count + 1)]
    if lacking := [one.name for one in parts if not one.is_file()]:
        raise ModelError(
            f"{path.name} lacks {len(lacking)} of its {count} parts, such as {lacking[0]}",
            "put all parts into one folder",
        )
    return parts
