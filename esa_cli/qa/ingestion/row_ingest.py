"""Makes the KV rows of books: documents are prefilled by a session, each on its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from esa_cli.documents.document import Document
from esa_cli.models.attachment.layer_traits import kv_dtype
from esa_cli.models.files.families import key_shapes, latent_block
from esa_cli.qa.finding.books import Book, TokenisedDocument
from esa_cli.qa.ingestion.ingest import Ingest, StoredForm, provenance
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
    from esa_cli.qa.answering.session import Session

SERVES = {"int8": ("int8", "native"), "native": ("native",)}
"""Requested row format -> stored formats that satisfy it."""


class RowIngest(Ingest):
    """Makes books with KV rows.

    Args:
        rows: how these are stored, `int8`, or `native` bit for bit. options: those of `Ingest`.
    """

    def __init__(self, rows: str, *options: Any) -> None:
        super().__init__(*options)
        self.rows = rows

    @property
    def session(self) -> Session:
        return self.esa.session

    def _layout(self, rows: str) -> Layout:
        """The layout of this model's rows in the library. Raises ModelError: its layers compute in
        different types."""
        session = self.session
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
        session = self.session
        head = session.prompt.head()
        return cache_key(self.esa.facts, head, session.preset, session.method, layout)

    @property
    def stores(self) -> bool:
        return super().stores and self._storable

    @property
    def reads(self) -> bool:
        """Rows are stored for presets that answer from text, too."""
        return self.needs_rows or self.stores

    @property
    def _storable(self) -> bool:
        return self.esa.attaches and not hindrance(self.esa.method)

    def identities(self) -> list[str]:
        kinds = SERVES.get(self.rows, (self.rows,)) if self._storable else ()
        return [self._identity(self._layout(kind)) for kind in kinds]

    def owns(self, entry: Entry) -> bool:
        return self._storable and self._identity(self._layout(entry.layout.kind)) == entry.identity

    def opened(self, document: Document, entry: Entry, read_s: float = 0.0) -> Book:
        assert self.library is not None
        stored = self.library.open(entry)
        layers = stored.layers([self.session.model.device] * entry.layout.layers)
        projections = stored.projections or [None] * len(layers)
        states: list[dict[type, LayerState]] = [{} for _ in layers]
        held = PrefilledDocument(
            stored.ids, layers, projections, entry.head,
            states=states, recurrent=self._placed(stored.states, entry.key),
        )  # fmt: skip
        return Book(document, held, stored.offsets[entry.head :], entry, read_s)

    def form(self, text: TokenisedDocument) -> StoredForm:
        layout, ids = self._layout(self.rows), [*self.session.prompt.head(), *text.ids]
        device, identity = self.session.model.device, self._identity(layout)
        return StoredForm(identity, ids, layout, device, self._state_bytes)

    @property
    def _state_bytes(self) -> int:
        model = self.session.model
        return shape_of(model.config.to_dict()).states(model.dtype.itemsize)

    def _placed(self, states: Sequence[State], key: str) -> list[State]:
        """Stored states of the document of this key, on the model's device. Raises LibraryError:
        they are not this model's, as in a stranger's export."""
        assert self.library is not None
        size = sum(tensor.nbytes for state in states for tensor in state.values())
        if size not in (0, self._state_bytes):  # those before the first token are empty
            path = LibraryPaths(self.library.root).document(key, "states")
            raise damage_error(path, "its states have other shapes than this model's", key)
        device = self.session.model.device
        return [{name: one.to(device) for name, one in state.items()} for state in states]

    def check_memory(self, tokens: int) -> None:
        """Rows go to the disk: only those that are not there yet take memory."""
        if self.stores:
            if self.planner:
                self.planner.check(min(tokens, STORED_AT_ONCE))
            return
        super().check_memory(tokens)

    def store(self, writer: Writer, text: TokenisedDocument, hear: Progress) -> Entry:
        session, document, ids = self.session, text.document, list(writer.ids)
        done = PrefilledDocument(
            ids[: writer.done], writer.layers, writer.projections or [],
            recurrent=self._placed(writer.states, writer.key),
        )  # fmt: skip
        head = len(ids) - len(text.ids)

        def settle(tokens: int) -> None:
            if tokens % SEGMENT == 0:
                writer.flush(maps(session.project()), session.cache.states.taken())

        try:
            session.begin(ids, done)
            session.resume(hear, settle)
            return writer.finish(
                text=document.text,
                offsets=torch.cat((torch.zeros(head, 2, dtype=torch.int64), text.offsets)),
                marks=[list(mark) for mark in document.marks],
                head=head,
                provenance=provenance(document, session.preset, self.rows),
                projections=maps(session.project()),
                states=session.cache.states.taken(),
            )
        finally:
            session.clear()

    def compute(self, text: TokenisedDocument, hear: Progress, started: float) -> Book:
        session = self.session
        ids = [*session.prompt.head(), *text.ids]
        self.check_memory(len(ids))
        self.events.started(text.document, len(ids), None)
        try:
            session.begin(ids, reserve=0)
            session.resume(hear)
        except BaseException:
            session.clear()
            raise
        spent = time.perf_counter() - started
        return self.held(
            Book(text.document, session.prefilled_document(), text.offsets, None, spent)
        )
