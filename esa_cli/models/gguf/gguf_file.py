"""Reading a GGUF file by the package gguf: its metadata, and its tensors as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
from gguf import GGUFReader, GGUFValueType

from esa_cli.errors import ModelError, first_line

_AGAIN = "it may be cut off, or be converted by an old llama.cpp; fetch it again"


MOST_PARTS = 1 << 21
"""Of a header: 262,144 tokens and 500,000 merges make 1.5 million. The package has an object for
each."""


class _Reader(GGUFReader):
    """Refuses what lies beyond the file's end, where the package would count on without end, and
    headers for whose parts the memory may not suffice."""

    parts = 0

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise ValueError(f"its header has more than {MOST_PARTS:,} parts")
        if int(offset) + numpy.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("it ends before what its header says")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """An array of numbers is one part."""
        if raw_type == GGUFValueType.ARRAY:
            kind, count = self._get(orig_offs, numpy.uint32), self._get(orig_offs + 4, numpy.uint64)
            if dtype := self.gguf_scalar_to_np.get(GGUFValueType(kind[0])):
                numbers = self._get(orig_offs + 12, dtype, count[0])
                types = [GGUFValueType.ARRAY, GGUFValueType(kind[0])]
                return 12 + numbers.nbytes, [kind, count, numbers], [2], types
        return super()._get_field_parts(orig_offs, raw_type)


class GgufFile:
    """A GGUF file.

    Attributes:
        tensors: of gguf's reader, by name.

    Raises:
        ModelError: not a whole GGUF file, a part of a model, or with a type of numbers not known.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, Any] = {}
        try:
            reader = _Reader(path)
            self.metadata: dict[str, Any] = {
                name: field.contents()
                for name, field in reader.fields.items()
                if field.types[0] != GGUFValueType.ARRAY or not name.startswith("tokenizer.")
            }
            for tensor in reader.tensors:
                if tensor.name in self.tensors or not tensor.n_elements:
                    raise ValueError(f"tensor {tensor.name[:80]}")
                self.tensors[tensor.name] = tensor
        except OSError:
            raise
        except Exception as error:  # whatever the package raises
            message = f"{path.name} is no whole GGUF file: {first_line(error)}"
            raise ModelError(message[:250], _AGAIN) from error
        if self.metadata.get("split.count", 1) > 1:
            raise ModelError(
                f"{path.name} is a part of a model", "join it: llama-gguf-split --merge"
            )

    @property
    def architecture(self) -> str:
        """llama.cpp's name for the kind of model. Raises ModelError: the file has none."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ModelError(f"{self.path.name} does not say which kind of model it is", _AGAIN)
        return name

    def setting(self, name: str, default: Any = None) -> Any:
        """The metadata of this name below that of the architecture."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape in torch's order."""
        return tuple(self.tensors[name].shape.tolist()[::-1])

    def read(self, name: str) -> Any:
        """A tensor as a numpy array of float32. Raises ModelError: its type cannot be unpacked."""
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        try:
            numbers = dequantize(tensor.data, tensor.tensor_type).reshape(self.shape(name))
        except (NotImplementedError, ValueError) as error:
            raise ModelError(
                f"{self.path.name} has weights of type {tensor.tensor_type.name}, which gguf "
                f"cannot unpack: {first_line(error)}",
                "use a file of another quantisation, such as Q4_K_M or Q8_0",
            ) from error
        return numbers.astype(numpy.float32)
