"""The memory of a layer that keeps no rows: it has queries alone, and reads another layer's rows.

Gemma 3n and Gemma 4 have such layers. Store, compressor and reduced keys are the other layer's, the
selection and what selectors keep of it are its own. The compressor is fitted to the queries of the
layer that keeps the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from esa_cli.attention.interfaces import LayerState, Projection
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.attention.method import Method
from esa_cli.attention.rope import Rope


class ReaderStates(LayerState):
    """What selectors keep of the layers that read one layer's rows, by layer and class of selector.

    It is a state of that layer, so that it is cropped, and kept with a document, as others are.
    """

    def __init__(self) -> None:
        self.layers: dict[int, dict[type, LayerState]] = {}

    def crop(self, length: int) -> None:
        for states in self.layers.values():
            for state in states.values():
                state.crop(length)


@dataclass
class SharedMemory(LayerMemory):
    """One layer's view of another one's memory; see `LayerMemory`.

    Args:
        source: the memory of the layer that keeps the rows.
    """

    source: LayerMemory = field(kw_only=True)

    @staticmethod
    def of(layer: int, source: LayerMemory) -> SharedMemory:
        """The view of the model's layer with this index."""
        kept = source.states.setdefault(ReaderStates, ReaderStates())
        assert isinstance(kept, ReaderStates), "states are kept by their class"
        states = kept.layers.setdefault(layer, {})
        return SharedMemory(layer, source.store, states, source=source)

    def learn(self, method: Method, rope: Callable[[], Rope], q: Tensor, start: int) -> None:
        """Nothing: the compressor is the source's."""

    def project(self, method: Method, upto: int) -> Projection | None:
        """As the source, whose reduced keys these are; None, which is whole keys, before the source
        has selected. A model may leave out all but the last token of what it reads, so that M is
        there earlier than for the source: the compressor would be fitted to fewer tokens."""
        return self.source.project(method, upto) if self.source.fitted else None

    def forget(self) -> None:
        """Frees copies of rows, which may be other ones from now on."""
        self.fetched = None

    def crop(self, tokens: int) -> None:
        """Nothing but `forget`: the source is cropped."""
        self.forget()

    def release(self) -> None:
        """As `forget`; the source frees the store's."""
        self.forget()
