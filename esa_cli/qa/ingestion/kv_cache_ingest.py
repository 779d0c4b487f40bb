"""Computes the KV caches of documents: a session prefills each document separately."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from esa_cli.attention.parts import Moments
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError
from esa_cli.models.attachment.layer_traits import get_kv_dtype, list_kv_layers
from esa_cli.models.files.families import (
    check_esa_supports_config,
    get_latent_quantization_block_size,
    list_unequal_kv_heads,
)
from esa_cli.qa.finding.finder import TokenisedDocument
from esa_cli.qa.finding.passage_finder import Book
from esa_cli.qa.ingestion.ingest import DocumentIngester, StoragePlan
from esa_cli.qa.planning.model_shape import read_model_shape
from esa_cli.qa.planning.plan import STORED_AT_ONCE
from esa_cli.qa.presets.cache_key import make_cache_key
from esa_cli.qa.presets.resolved_preset import (
    check_projections_storable,
    explain_why_not_storable,
    find_reduced_key_widths,
)
from esa_cli.storage.library import SEGMENT, Layout, Library, LibraryEntry
from esa_cli.storage.library.disk import LibraryPaths, make_damage_error
from esa_cli.storage.library.library import DocumentWriter
from esa_cli.storage.library.stored_cache import KVCacheWriter, StoredKVCache
from esa_cli.storage.memory_store import PrefilledDocument
from esa_cli.system.progress import Progress

if TYPE_CHECKING:  # they import transformers
    from esa_cli.attention.step import LayerState
    from esa_cli.models.attachment.kv_cache import RecurrentState


class KvCacheIngester(DocumentIngester):
    """Computes KV caches of documents, and stores them as `int8` or as exact `native` copies."""

    def __init__(self, rows: str, *options: Any) -> None:
        super().__init__(*options)
        self.rows = rows

    def _make_file_layout(self, number_format: str) -> Layout:
        """Returns the file layout of the model's KV caches in the format `int8` or `native`. Raises
        ModelError. UsageError: the library cannot store the method's projections."""
        session, shape = self.esa.session, self.model_digest["fingerprint"]
        method, attached, config = session.method, session.attachment, session.model.config
        compressor, features = method.compressor, method.score.features
        if features and not compressor.fit_tokens:  # refused before the document is read
            check_projections_storable([compressor.fit(0, Moments())])
        folded, block = shape["groups"] * shape["dim"], get_latent_quantization_block_size(config)
        widths = find_reduced_key_widths(compressor, shape["layers"], folded, features)
        reduced = tuple(
            width if layer in attached.method_layers else 0
            for layer, width in zip(list_kv_layers(session.model), widths, strict=False)
        )
        return Layout(
            layers=shape["layers"], heads=shape["groups"], dim=shape["dim"],
            dtype=str(get_kv_dtype(session.model)).removeprefix("torch."),
            kind=number_format,  # type: ignore[arg-type]
            reduced=reduced, fit=compressor.fit_tokens if any(reduced) else 0, segment=SEGMENT,
            shared=block > 0, block=block, states=len(session.cache.states.layers),
            shapes=tuple(list_unequal_kv_heads(config)),
        )  # fmt: skip

    def _make_cache_identity(self, layout: Layout) -> str:
        session = self.esa.session
        head = session.prompt.encode_prompt_start()
        return make_cache_key(self.model_digest, head, session.preset, session.method, layout)

    @property
    def stores_documents(self) -> bool:
        return super().stores_documents and self._can_store_kv_caches

    @property
    def _can_store_kv_caches(self) -> bool:
        """Whether the model can run the method, and the library can store a KV cache of it."""
        if self.esa.preset.answer.finds_by_bm25_only:
            try:
                check_esa_supports_config(self.esa.loaded.text_model.config)
            except ModelError:
                return False
        return not explain_why_not_storable(self.esa.resolved.method)

    def list_model_and_settings_identities(self) -> list[str]:
        if not self._can_store_kv_caches:
            return []
        kinds = dict.fromkeys((self.rows, "native"))  # exact copies serve a request for int8, too
        return [self._make_cache_identity(self._make_file_layout(kind)) for kind in kinds]

    def matches_entry_settings(self, entry: LibraryEntry) -> bool:
        if not self._can_store_kv_caches:
            return False
        layout = self._make_file_layout(entry.layout.kind)
        return self._make_cache_identity(layout) == entry.identity

    def open_library_entry(self, library: Library, document: Document, entry: LibraryEntry) -> Book:
        stored = library.open_document(entry)
        cache = StoredKVCache(stored, self.esa.session.model.device)
        projections = cache.projections or [None] * len(cache.layers)
        states: list[dict[type, LayerState]] = [{} for _ in cache.layers]
        prefilled = PrefilledDocument(
            stored.token_ids.tolist(), cache.layers, projections, entry.head,
            states=states, recurrent=self._move_recurrent_states_to_device(cache.states, entry.key),
        )  # fmt: skip
        return Book(document, prefilled, stored.offsets[entry.head :], entry)

    def plan_storage(self, text: TokenisedDocument) -> StoragePlan:
        session, layout = self.esa.session, self._make_file_layout(self.rows)
        ids = [*session.prompt.encode_prompt_start(), *text.ids]
        make_writer = partial(KVCacheWriter, device=session.model.device)
        identity, size = self._make_cache_identity(layout), self._count_recurrent_state_bytes()
        return StoragePlan(identity, ids, layout, make_writer, size)

    def _count_recurrent_state_bytes(self) -> int:
        model = self.esa.session.model
        shape = read_model_shape(model.config.to_dict())
        return shape.count_recurrent_state_bytes(model.dtype.itemsize)

    def _move_recurrent_states_to_device(
        self, states: Sequence[RecurrentState], document_key: str
    ) -> list[RecurrentState]:
        """Moves a document's recurrent states to the model's device. Raises LibraryError."""
        assert self.library is not None
        size = sum(tensor.nbytes for state in states for tensor in state.values())
        if size not in (0, self._count_recurrent_state_bytes()):  # the first are empty
            path = LibraryPaths(self.library.root).get_document_path(document_key, "states")
            problem = "its states have other shapes than this model's"
            raise make_damage_error(path, problem, document_key)
        device = self.esa.session.model.device
        return [{name: one.to(device) for name, one in state.items()} for state in states]

    def check_tokens_fit_memory(self, new_tokens: int) -> None:
        """Raises ResourceError if the new tokens whose KV cache is not yet on disk do not fit."""
        if not self.stores_documents:
            super().check_tokens_fit_memory(new_tokens)
        elif self.planner:
            self.planner.check_memory_suffices(min(new_tokens, STORED_AT_ONCE))

    def store_document(
        self, writer: DocumentWriter, text: TokenisedDocument, on_progress: Progress
    ) -> LibraryEntry:
        assert isinstance(writer, KVCacheWriter)
        session, document, ids = self.esa.session, text.document, list(writer.ids)
        done = PrefilledDocument(
            ids[: writer.stored_token_count], writer.layers, writer.projections or [],
            recurrent=self._move_recurrent_states_to_device(writer.states, writer.key),
        )  # fmt: skip
        head = len(ids) - len(text.ids)

        def write_segment_if_complete(prefilled_tokens: int) -> None:
            if prefilled_tokens % SEGMENT == 0:
                projections = check_projections_storable(session.compute_reduced_keys())
                writer.write_complete_segments(projections, session.cache.states.copy_states())

        try:
            session.plan_prefill(ids, done)
            session.resume(on_progress, write_segment_if_complete)
            return writer.finish_document(
                text=document.text,
                offsets=torch.cat((torch.zeros(head, 2, dtype=torch.int64), text.offsets)),
                marks=[list(mark) for mark in document.marks],
                head=head,
                provenance=self.make_provenance(document, self.rows),
                projections=check_projections_storable(session.compute_reduced_keys()),
                states=session.cache.states.copy_states(),
            )
        finally:
            session.empty_cache()

    def ingest_into_memory(self, text: TokenisedDocument, on_progress: Progress) -> Book:
        session = self.esa.session
        ids = [*session.prompt.encode_prompt_start(), *text.ids]
        self.check_tokens_fit_memory(len(ids))
        self.events.announce_ingest(text.document, len(ids), None)
        try:
            session.plan_prefill(ids, reserved_tokens=0)
            session.resume(on_progress)
        except BaseException:
            session.empty_cache()
            raise
        return Book(text.document, session.prefilled_document(), text.offsets)
