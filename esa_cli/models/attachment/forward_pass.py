"""One forward call of a transformers model, from its rotary module to its last attention layer.

`attach` opens it in the rotary module, the cache registers itself with each layer's keys, and the
attention function takes the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol
from weakref import ref

from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.errors import UsageError


class AttendingCache(Protocol):
    """A cache of transformers, to whose tokens the attached model's queries attend.

    Attributes:
        method: what its layers run, but those that attend to a window.
    """

    method: Method

    def attend(
        self, attention: Callable[..., Tensor], layer: int, q: Tensor, sink: Tensor | None
    ) -> Tensor:
        """Attention output (H, C, D) of a layer's queries q (H, C, D), unrotated; `attention` is
        the layer's, `sink` (H,) its attention sink."""
        ...


@dataclass
class ForwardPass:
    """The forward call in progress of one attached model.

    Args:
        running: between the rotary module and the last layer with attention. span: absolute
            positions of the first and the last token; None: not known (a compiled model), or they
            follow the cached ones.
        cache: that the call appends to. layer: the last layer whose keys were appended.
        readers: layers that append no keys, and read those of another one.
        read: the cache that these read from, where there are some. An interrupted call would hold
            it, and its rows, to the next one: it is not kept alive.
    """

    running: bool = False
    span: tuple[int, int] | None = None
    cache: AttendingCache | None = None
    layer: int = -1
    readers: Container[int] = ()
    read: ref[AttendingCache] | None = None

    def open(self, span: tuple[int, int] | None) -> None:
        """Begins a forward call."""
        self.running, self.span, self.cache, self.layer = True, span, None, -1
        self.read = None

    def check_span(self, length: int, count: int) -> None:
        """Raises UsageError when these tokens do not follow the `length` cached ones."""
        if self.span is not None and self.span != (length, length + count - 1):
            raise UsageError(
                f"positions of {count} tokens must follow the {length} cached ones, got "
                f"{self.span[0]} to {self.span[1]}",
                "leave position_ids out, and use_cache on",
            )

    def enter(self, layer: int, cache: AttendingCache) -> None:
        """Registers the cache that appended this layer's keys."""
        self.cache, self.layer = cache, layer
        self.read = ref(cache) if self.readers else None

    def take(self, layer: int, last: int) -> AttendingCache | None:
        """The cache that appended this layer's keys, or those that it reads, or None; the `last`
        layer ends the call.

        It is not kept: a cache that is dropped after the call frees its memory.
        """
        cache, self.cache = self.cache, None
        found = cache if self.layer == layer else None
        if layer in self.readers:
            found = self.read() if self.read else None
        if layer == last:
            self.running, self.read = False, None
        return found

    def close(self) -> None:
        """Ends the call when the model is detached."""
        self.running, self.cache, self.read, self.layer = False, None, None, -1
