"""A prefilled document apart from any session, and the concatenation of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.step import KVStore, LayerState, Projection
from esa_cli.storage.joined_store import JoinedStore, PerDocumentMaps, StoreSlice
from esa_cli.storage.memory_store import MemoryStore
from esa_cli.storage.row_allocation import RESERVE


@dataclass(frozen=True)
class PrefilledDocument:
    """One document as a model prefilled it.

    Args:
        ids: of its tokens, the prompt's head first. stores: one for each layer that keeps rows,
            with one for every token. projections: the fitted compressor of each layer, or None.
        head: number of tokens of the prompt's head.
        read_by: the method that prefilled it; None if only the same one can find it, as in a
            library.
        states: what selectors keep of each layer's tokens, by class of selector.
        recurrent: the state of each layer that keeps one in place of rows, behind the last token.
    """

    ids: Sequence[int]
    stores: Sequence[KVStore]
    projections: Sequence[Projection | None]
    head: int = 0
    read_by: Method | None = None
    states: Sequence[dict[type, LayerState]] = ()
    recurrent: Sequence[dict[str, Tensor]] = ()

    def layer_states(self, layer: int) -> dict[type, LayerState]:
        """Of one layer; each opening adds to them, so that nothing is computed twice."""
        return self.states[layer] if self.states else {}


def concatenate(
    documents: Sequence[PrefilledDocument],
) -> tuple[list[int], list[KVStore], list[Projection | None]]:
    """Ids, stores and projections of the documents in order; the first keeps its prompt's head."""
    ids, starts = list(documents[0].ids), [0]
    for document in documents[1:]:
        starts.append(len(ids))
        ids += document.ids[document.head :]
    stores: list[KVStore] = []
    projections: list[Projection | None] = []
    for layer, first in enumerate(documents[0].stores):
        parts = [
            StoreSlice(document.stores[layer], document.head if i else 0, len(document.ids))
            for i, document in enumerate(documents)
        ]
        keys, _ = first.span(0, 1)
        tail = MemoryStore(first.heads, first.dim, keys.dtype, keys.device, first.shared)
        tail.expect(RESERVE)
        stores.append(JoinedStore(parts, tail))
        maps = [document.projections[layer] for document in documents]
        fitted = [one for one in maps if one is not None]
        if not fitted or len(fitted) < len(maps):
            projections.append(None)
        else:
            projections.append(fitted[0] if len(fitted) == 1 else PerDocumentMaps(starts, fitted))
    return ids, stores, projections


def text_rows(documents: Sequence[PrefilledDocument]) -> list[range]:
    """For each document of `concatenate`, the rows of its text, without the prompt's head."""
    out, start = [], 0
    for i, document in enumerate(documents):
        stop = start + len(document.ids) - (document.head if i else 0)
        out.append(range(start + (0 if i else document.head), stop))
        start = stop
    return out
