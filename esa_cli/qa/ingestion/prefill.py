"""Prefill: a document's tokens pass the model once, and their keys and values are kept.

A prefilled document can be kept, opened again, alone or with others, and continued; `session` asks
questions after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from esa_cli.attention.method import Method
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.step import Projection
from esa_cli.errors import UsageError
from esa_cli.models.attachment.attach import attach, last_alone
from esa_cli.models.attachment.families import keeps_state
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.qa.answering.cached_text import CachedText
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.ingestion.archive import check_joins
from esa_cli.qa.ingestion.cache_placement import CachePlacement
from esa_cli.qa.planning.costs import FEED
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import (
    ResolvedPreset,
    check_fits_model,
    check_reduced_keys,
    check_same_fit,
    resolve,
)
from esa_cli.storage.cache_choice import check_in_memory
from esa_cli.storage.growing_rows import RESERVE
from esa_cli.storage.joined_store import PrefilledDocument, concatenate
from esa_cli.system.progress import Progress


def feed(
    model: Any,
    ids: Sequence[int],
    cache: EsaCache,
    start: int = 0,
    done: Progress | None = None,
) -> None:
    """Runs ids[start:] through the model's layers, FEED tokens at a time. Layers that keep no rows
    and read those of others compute the last token of each piece alone, where the model can do so.

    Args:
        cache: of an attachment; it gets the keys and values. done: called after every piece.
    """
    for at in range(start, len(ids), FEED):
        piece = list(ids[at : at + FEED])
        if len(piece) == 1:  # before longer ones a cache with states keeps a copy by itself
            cache.snapshot()
        tokens = torch.tensor([piece], device=model.device)
        model.base_model(input_ids=tokens, past_key_values=cache, **last_alone(model.config))
        if done:
            done(at + len(piece), len(ids))


class Prefill:
    """The documents in one attached model's cache.

    Args:
        model, tokenizer: of transformers. preset: method, prompt and generation settings; with the
            method that is built from it, if it was built before.
        cache: where keys and values are kept; see `storage.cache_choice`.

    Raises:
        ModelError: the model cannot be supported. PresetError: the method does not hold, or its
            compressor was made for another model. UsageError: there is no such place.
    """

    def __init__(
        self, model: Any, tokenizer: Any, preset: Preset | ResolvedPreset, cache: str = "auto"
    ) -> None:
        resolved = resolve(preset)
        self.model, self.tokenizer, self.preset = model, tokenizer, resolved.preset
        self.prompt = PromptTokens(tokenizer, self.preset.prompt)
        self.method = resolved.method
        check_fits_model(self.method, model)
        self.placement = CachePlacement(model, self.method, cache)
        self.attachment = attach(model, self.method)
        self.cache = self.attachment.new_cache()
        self.text = CachedText(tokenizer)
        self._read_by = self.method
        self._ids: list[int] = []
        self._todo: list[int] = []
        self._head = 0
        self._opened: list[PrefilledDocument] = []

    def clear(self) -> None:
        """Drops the cached document, and frees its memory; of what others keep, its copies."""
        self.cache.release()
        self.cache = self.attachment.new_cache()
        self.text = CachedText(self.tokenizer)
        self._ids, self._todo, self._opened = [], [], []

    def prefilled_document(self) -> PrefilledDocument:
        """The cached document, to be opened later by this session or another of the same model."""
        memories = self.cache.memories
        return PrefilledDocument(
            list(self._ids), [one.store for one in memories], self.project(), self._head,
            self._read_by, [one.states for one in memories], self.cache.states.taken(),
        )  # fmt: skip

    def project(self) -> list[Projection | None]:
        """Computes the reduced keys of all cached tokens; returns each layer's projection."""
        self.cache.project()
        return [one.projection for one in self.cache.memories]

    def open(self, documents: Sequence[PrefilledDocument]) -> None:
        """Asks from now on about these documents, concatenated, in place of those before.

        Raises:
            UsageError: there is none, or there are several, and layers of the model keep a state.
            PresetError: one was prefilled for another compressor, or
                without the reduced keys that the method scores by.
        """
        if not documents:
            raise UsageError("no document to ask about", "read one first")
        if len(documents) > 1:
            check_joins(self.model.config.model_type, keeps_state(self.model.config))
        for one in documents:
            check_same_fit(one.read_by, self.method)
            check_reduced_keys(one, self.method)
        self.clear()
        self._read_by = self.method
        self._ids, stores, projections = concatenate(documents)
        self._todo, self._head = self._ids, documents[0].head
        self._opened = list(documents)
        # A selector's layer state belongs to the rows of one document.
        alone = documents[0] if len(documents) == 1 else None
        states = [alone.layer_states(i) for i in range(len(stores))] if alone else []
        self.cache.hold(stores, projections, states, documents[0].recurrent)

    @property
    def layers(self) -> Sequence[int]:
        """Indices of the model's layers that run the method."""
        return self.attachment.method_layers

    @property
    def document_tokens(self) -> int:
        """Cached tokens, the prompt's head included."""
        return len(self._ids)

    @torch.inference_mode()
    def read(
        self,
        text: str,
        progress: Callable[[int, int], None] | None = None,
        method: Method | None = None,
    ) -> None:
        """Prefills a document, in place of those before.

        After an interruption (Ctrl-C) the tokens so far are cached, and `resume` continues.

        Args:
            text: the whole document. progress: called with (tokens read, tokens in all).
            method: prefills in place of the one that answers.
        """
        self.begin(self.prompt.document(text), method=method)
        self.resume(progress)

    def begin(
        self,
        ids: list[int],
        done: PrefilledDocument | None = None,
        method: Method | None = None,
        reserve: int = RESERVE,
    ) -> None:
        """Sets the ids to prefill; `resume` runs them.

        Args:
            ids: of `prompt.document`. done: what was read of them before, by the same method; its
                stores are read on into. method: prefills in place of the one that answers.
            reserve: tokens that there is room for behind them; 0 where they will be opened, which
                makes room of its own.

        Raises:
            UsageError: rows are to be on disk, and `done` has no stores there.
        """
        self.clear()
        self._read_by = method or self.method
        self._todo, self._head = ids, len(self.prompt.head())
        if done is None:
            check_in_memory(self.placement.cache)
            self.cache = self.attachment.new_cache(self.placement.stores(len(ids)))
            self.cache.expect(len(ids) + reserve)
        else:
            self._ids = ids[: len(done.ids)]
            states = [done.layer_states(i) for i in range(len(done.stores))]
            projections = done.projections if done.ids else None
            self.cache.hold(done.stores, projections, states, done.recurrent)

    @torch.inference_mode()
    def resume(
        self,
        progress: Callable[[int, int], None] | None = None,
        settle: Callable[[int], None] | None = None,
    ) -> None:
        """Prefills the rest, also after an interruption.

        Args:
            settle: called with the tokens read, all of them in the cache, after every FEED.
        """
        ids, done = self._todo, len(self._ids)

        def took(tokens: int, total: int) -> None:
            self._ids.extend(ids[len(self._ids) : tokens])
            if settle:
                settle(tokens)
            if progress:
                progress(tokens, total)

        self.cache.begin(QueryState(Phase.PREFILL), self._read_by)
        self.cache.truncate(done)
        try:
            feed(self.model, ids, self.cache, done, took)
            self.cache.project()
        finally:
            self.cache.truncate(len(self._ids))
            self.cache.begin(QueryState(), self.method)
