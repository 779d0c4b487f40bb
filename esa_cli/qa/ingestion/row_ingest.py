"""Makes books with a KV cache: a session prefills each document on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from esa_cli.documents.document import Document
from esa_cli.models.attachment.layer_traits import kv_dtype
from esa_cli.models.files.families import key_shapes, latent_block
from esa_cli.qa.finding.books import Book, TokenisedDocument
from esa_cli.qa.ingestion.ingest import Ingest, StoredForm
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.qa.planning.plan import STORED_AT_ONCE
from esa_cli.qa.planning.row_storage import hindrance, layout, maps
from esa_cli.qa.presets.cache_key import cache_key
from esa_cli.storage.library import SEGMENT, Entry, Layout
from esa_cli.storage.library.disk import LibraryPaths, damage_error
from esa_cli.storage.library.stored_document import Writer
from esa_cli.storage.memory_store import PrefilledDocument
from esa_cli.system.progress import Progress

if TYPE_CHECKING:  # they import transformers
    from esa_cli.attention.step import LayerState
    from esa_cli.models.attachment.kv_cache import State

SERVES = {"int8": ("int8", "native"), "native": ("native",)}
"""Requested row format -> stored formats that satisfy the request."""


class RowIngest(Ingest):
    """Makes books with a KV cache, stored as `int8`, or `native` bit for bit."""

    def __init__(self, rows: str, *options: Any) -> None:
        super().__init__(*options)
        self.rows = rows

    def _layout(self, rows: str) -> Layout:
        """Returns the layout of this model's KV cache in the library. Raises ModelError."""
        session = self.esa.session
        config, running = session.model.config, session.attachment.method_layers
        return layout(
            session.method,
            self.esa.facts["fingerprint"],
            str(kv_dtype(session.model)).removeprefix("torch."),
            rows,
            [i for i, at in enumerate(session.attachment.row_layers) if at in running],
            latent_block(config),
            len(session.cache.states.layers),
            key_shapes(config),
        )

    def _identity(self, layout: Layout) -> str:
        session = self.esa.session
        head = session.prompt.head()
        return cache_key(self.esa.facts, head, session.preset, session.method, layout)

    @property
    def stores(self) -> bool:
        return super().stores and self._storable

    @property
    def reads(self) -> bool:
        """KV caches are stored for presets that answer from text, too."""
        return self.needs_rows or self.stores

    @property
    def _storable(self) -> bool:
        return self.esa.attaches and not hindrance(self.esa.method)

    def identities(self) -> list[str]:
        kinds = SERVES.get(self.rows, (self.rows,)) if self._storable else ()
        return [self._identity(self._layout(kind)) for kind in kinds]

    def owns(self, entry: Entry) -> bool:
        return self._storable and self._identity(self._layout(entry.layout.kind)) == entry.identity

    def open_entry(self, document: Document, entry: Entry) -> Book:
        assert self.library is not None
        stored = self.library.open(entry)
        layers = stored.layers([self.esa.session.model.device] * entry.layout.layers)
        projections = stored.projections or [None] * len(layers)
        states: list[dict[type, LayerState]] = [{} for _ in layers]
        prefilled = PrefilledDocument(
            stored.ids, layers, projections, entry.head,
            states=states, recurrent=self._place_states(stored.states, entry.key),
        )  # fmt: skip
        return Book(document, prefilled, stored.offsets[entry.head :], entry)

    def form(self, text: TokenisedDocument) -> StoredForm:
        session, layout = self.esa.session, self._layout(self.rows)
        ids = [*session.prompt.head(), *text.ids]
        return StoredForm(
            self._identity(layout), ids, layout, session.model.device, self._state_bytes
        )

    @property
    def _state_bytes(self) -> int:
        model = self.esa.session.model
        return shape_of(model.config.to_dict()).states(model.dtype.itemsize)

    def _place_states(self, states: Sequence[State], key: str) -> list[State]:
        """Moves stored states to the model's device. Raises LibraryError: not this model's."""
        assert self.library is not None
        size = sum(tensor.nbytes for state in states for tensor in state.values())
        if size not in (0, self._state_bytes):  # those before the first token are empty
            path = LibraryPaths(self.library.root).document(key, "states")
            raise damage_error(path, "its states have other shapes than this model's", key)
        device = self.esa.session.model.device
        return [{name: one.to(device) for name, one in state.items()} for state in states]

    def check_memory(self, tokens: int) -> None:
        """A stored KV cache is on the disk: only new tokens take memory, some at a time."""
        if not self.stores:
            super().check_memory(tokens)
        elif self.planner:
            self.planner.check(min(tokens, STORED_AT_ONCE))

    def store(self, writer: Writer, text: TokenisedDocument, on_progress: Progress) -> Entry:
        session, document, ids = self.esa.session, text.document, list(writer.ids)
        done = PrefilledDocument(
            ids[: writer.done], writer.layers, writer.projections or [],
            recurrent=self._place_states(writer.states, writer.key),
        )  # fmt: skip
        head = len(ids) - len(text.ids)

        def flush(tokens: int) -> None:
            if tokens % SEGMENT == 0:
                writer.flush(maps(session.project()), session.cache.states.taken())

        try:
            session.begin(ids, done)
            session.resume(on_progress, flush)
            return writer.finish(
                text=document.text,
                offsets=torch.cat((torch.zeros(head, 2, dtype=torch.int64), text.offsets)),
                marks=[list(mark) for mark in document.marks],
                head=head,
                provenance=self.provenance(document, self.rows),
                projections=maps(session.project()),
                states=session.cache.states.taken(),
            )
        finally:
            session.clear()

    def compute(self, text: TokenisedDocument, on_progress: Progress) -> Book:
        session = self.esa.session
        ids = [*session.prompt.head(), *text.ids]
        self.check_memory(len(ids))
        self.events.started(text.document, len(ids), None)
        try:
            session.begin(ids, reserve=0)
            session.resume(on_progress)
        except BaseException:
            session.clear()
            raise
        return Book(text.document, session.prefilled_document(), text.offsets)
