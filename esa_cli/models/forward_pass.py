"""One forward call of the host, from its rotary module to its last attention layer.

The rotary stand-in opens it, the cache enters it with each layer's keys, and the attention function
takes the cache from it. Knows neither the cache's class nor the attachment's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C")


@dataclass
class ForwardPass(Generic[C]):
    """The forward call in progress of one attached model, if there is one.

    Args:
        running: between the rotary module and the last layer. span: absolute positions of the
            first and the last token, as the host gives them; None: not known (a compiled host).
        cache: that the call writes to. layer: the last layer whose keys it took.
    """

    running: bool = False
    span: tuple[int, int] | None = None
    cache: C | None = None
    layer: int = -1

    def open(self, span: tuple[int, int] | None) -> None:
        """The host's forward call begins."""
        self.running, self.span, self.cache, self.layer = True, span, None, -1

    def enter(self, layer: int, cache: C) -> None:
        """A cache has taken this layer's keys."""
        self.cache, self.layer = cache, layer

    def take(self, layer: int, layers: int) -> C | None:
        """The cache that took this layer's keys, if one did; the last layer ends the call."""
        if layer == layers - 1:
            self.running = False
        return self.cache if self.layer == layer else None

    def close(self) -> None:
        """Ends the call: the model is detached."""
        self.running, self.cache, self.layer = False, None, -1
