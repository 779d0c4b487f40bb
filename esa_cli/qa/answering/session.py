"""A session prefills a document once, and answers questions by attention to the KV cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from itertools import groupby
from typing import Any

import torch

from esa_cli.attention.method import Method
from esa_cli.attention.parts import report_plugin_errors
from esa_cli.attention.step import ChunkTrace, Projection
from esa_cli.attention.window import Phase, QueryState, QuestionAndText, SurveyPassComplete
from esa_cli.errors import UsageError
from esa_cli.models.attachment.attach import attach, get_last_token_only_options
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.files.families import has_recurrence
from esa_cli.models.text_passes.generation import AnswerStreamer, generate
from esa_cli.qa.answering.prompt import EncodedQuestion, PromptEncoder
from esa_cli.qa.answering.reply import Reply, Turn
from esa_cli.qa.planning.plan import FEED, puts_kv_cache_on_host
from esa_cli.qa.presets.preset import Preset, choose_sampling_options
from esa_cli.qa.presets.resolved_preset import (
    ResolvedPreset,
    check_can_join_documents,
    check_document_has_reduced_keys,
    check_method_fits_model,
    check_same_compressor,
    resolve_preset,
)
from esa_cli.storage import refuse_disk_cache_outside_library, refuse_unknown_cache_name
from esa_cli.storage.memory_store import RESERVE, PrefilledDocument, concatenate_documents
from esa_cli.system.progress import Progress

INCOMPLETE = "\ufffd"
"""The character to which a tokenizer decodes a token that is part of a character."""


def decode_each_token(tokenizer: Any, token_ids: Sequence[int]) -> list[str]:
    """Returns each token's text; of several tokens of one character, the first gets all of it."""
    # Each is decoded after another token: some tokenizers strip the space of a text's first word.
    before = list(tokenizer("a", add_special_tokens=False)["input_ids"])

    def decode_token_ids(ids: Sequence[int]) -> str:
        return str(tokenizer.decode([*before, *ids], clean_up_tokenization_spaces=False))

    taken = len(decode_token_ids([]))
    known = {token: decode_token_ids([token])[taken:] for token in set(token_ids)}
    pieces = list[str]()
    for incomplete, group in groupby(token_ids, lambda token: INCOMPLETE in known[token]):
        ids = list(group)
        whole = [decode_token_ids(ids)[taken:], *[""] * (len(ids) - 1)]
        pieces += whole if incomplete else [known[token] for token in ids]
    return pieces


def prefill_tokens(
    model: Any, token_ids: Sequence[int], cache: EsaCache, start_token: int = 0,
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Prefills tokens into a KV cache, from number `start_token` on, `FEED` tokens at a time."""
    for at in range(start_token, len(token_ids), FEED):
        piece = list(token_ids[at : at + FEED])
        if len(piece) == 1:  # before longer ones a cache with states keeps a copy by itself
            cache.store_state_snapshot()
        tokens = torch.tensor([piece], device=model.device)
        # Layers that share keys and values of an earlier layer compute only the last token.
        options = get_last_token_only_options(model.config)
        model.base_model(input_ids=tokens, past_key_values=cache, **options)
        if progress:
            progress(at + len(piece), len(token_ids))


class Session(AbstractContextManager["Session"]):
    """Prefills documents and answers questions with a model whose attention is replaced.

    Args:
        model, tokenizer: of transformers. preset: with its method, if that was built before.
        cache: where the KV cache is; one of `storage.CACHES`.

    Raises ModelError: the model is not supported. PresetError: the method is wrong, or made for
    another model. UsageError: `cache` is unknown."""

    def __init__(
        self, model: Any, tokenizer: Any, preset: Preset | ResolvedPreset, cache: str = "auto"
    ) -> None:
        resolved = resolve_preset(preset)
        self.model, self.tokenizer, self.preset = model, tokenizer, resolved.preset
        self.prompt = PromptEncoder(tokenizer, self.preset.prompt)
        self.method = resolved.method
        check_method_fits_model(self.method, model)
        refuse_unknown_cache_name(cache)
        self._cache_place = cache
        self.attachment = attach(model, self.method)
        self.cache = self.attachment.new_cache()
        self._read_by, self._head = self.method, 0
        self.empty_cache()

    def empty_cache(self) -> None:
        """Empties the KV cache, and frees its memory."""
        self.cache.free_temporary_copies()
        self.cache = self.attachment.new_cache()
        self._ids: list[int] = []
        self._todo: list[int] = []
        self._opened: list[PrefilledDocument] = []
        self._token_texts = cache(lambda: decode_each_token(self.tokenizer, self._ids))
        self._score_results: dict[Hashable, Any] = {}  # of scores that compare words

    def prefilled_document(self) -> PrefilledDocument:
        """Returns the document in the KV cache, which any session of the same model can open."""
        memories = self.cache.layer_kv_caches
        return PrefilledDocument(
            list(self._ids), [one.store for one in memories], self.compute_reduced_keys(),
            self._head, self._read_by, [one.states for one in memories],
            self.cache.states.copy_states(),
        )  # fmt: skip

    def compute_reduced_keys(self) -> list[Projection | None]:
        """Computes the reduced keys of all cached tokens, and returns each layer's projection."""
        self.cache.compute_reduced_keys()
        return [one.projection for one in self.cache.layer_kv_caches]

    def open(self, documents: Sequence[PrefilledDocument]) -> None:
        """Replaces the documents in the KV cache by joined `documents`, unless these are open.

        Raises UsageError: there is no document, or there are several and cannot be joined.
        PresetError: a document was prefilled without the reduced keys that the method needs."""
        if not documents:
            raise UsageError("there is no document to ask about", "ingest a document first")
        if list(map(id, documents)) == list(map(id, self._opened)):
            return
        if len(documents) > 1:
            resolved, config = ResolvedPreset(self.preset, self.method), self.model.config
            check_can_join_documents(resolved, config.model_type, has_recurrence(config))
        for one in documents:
            check_same_compressor(one.read_by, self.method)
            check_document_has_reduced_keys(one, self.method)
        self.empty_cache()
        self._read_by = self.method
        self._ids, stores, projections = concatenate_documents(documents)
        self._todo, self._head = self._ids, documents[0].head
        # A selector's layer state belongs to one document.
        alone = documents[0] if len(documents) == 1 else None
        states = alone.states if alone else ()
        self.cache.use_filled_kv_stores(stores, projections, states, documents[0].recurrent)
        self._opened = list(documents)

    @property
    def document_tokens(self) -> int:
        """The number of tokens in the KV cache, including the prompt before the document."""
        return len(self._ids)

    @torch.inference_mode()
    def read(
        self, text: str, progress: Progress | None = None, method: Method | None = None
    ) -> None:
        """Empties the KV cache and prefills a document; `resume` continues after an interruption.
        `progress` is called with (tokens prefilled, all tokens); `method` replaces the preset's."""
        self.plan_prefill(self.prompt.encode_document(text), method=method)
        self.resume(progress)

    def plan_prefill(
        self, token_ids: list[int], prefilled: PrefilledDocument | None = None,
        method: Method | None = None, reserved_tokens: int = RESERVE,
    ) -> None:  # fmt: skip
        """Empties the KV cache, and sets the token ids that the next call of `resume` will prefill.

        Args:
            prefilled: the first of these tokens, prefilled by the same method; will be extended.
            reserved_tokens: room for a question and answer; 0 if the document is opened later.

        Raises UsageError: the cache is on disk, and `prefilled` has no stores there."""
        self.empty_cache()
        self._read_by = method or self.method
        self._todo, self._head = token_ids, len(self.prompt.encode_prompt_start())
        if prefilled is None:
            place = self._cache_place
            refuse_disk_cache_outside_library(place)
            on_host = puts_kv_cache_on_host(self.model, self.method, place, len(token_ids))
            expected = len(token_ids) + reserved_tokens
            self.cache = self.attachment.new_cache(on_host, expected)
        else:
            self._ids = token_ids[: len(prefilled.ids)]
            projections = prefilled.projections if prefilled.ids else None
            states = prefilled.states, prefilled.recurrent
            self.cache.use_filled_kv_stores(prefilled.stores, projections, *states)

    @torch.inference_mode()
    def resume(
        self, progress: Progress | None = None,
        on_cached_tokens: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        """Prefills the tokens given to `plan_prefill`, except those that are already cached."""
        ids, done = self._todo, len(self._ids)

        def record_prefilled_tokens(prefilled_tokens: int, all_tokens: int) -> None:
            self._ids.extend(ids[len(self._ids) : prefilled_tokens])
            if on_cached_tokens:
                on_cached_tokens(prefilled_tokens)
            if progress:
                progress(prefilled_tokens, all_tokens)

        self.cache.begin_query(QueryState(Phase.PREFILL), self._read_by)
        self.cache.truncate(done)
        try:
            prefill_tokens(self.model, ids, self.cache, done, record_prefilled_tokens)
            self.cache.compute_reduced_keys()
        finally:
            self.cache.truncate(len(self._ids))
            self.cache.begin_query(QueryState(), self.method)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Restores the model's original attention, which the method has replaced."""
        self.attachment.detach()

    def use_preset(self, preset: Preset | ResolvedPreset) -> None:
        """Replaces the preset, but keeps the documents. Raises PresetError: its method is wrong."""
        resolved = resolve_preset(preset)
        new = resolved.method
        check_method_fits_model(new, self.model)
        if self._ids:
            check_same_compressor(self._read_by, new)
        for document in self._opened:
            check_document_has_reduced_keys(document, new)
        self.method = self.attachment.method = new
        self.cache.begin_query(QueryState(), new)
        self.preset = resolved.preset
        self.prompt = PromptEncoder(self.tokenizer, self.preset.prompt)

    @torch.inference_mode()
    def ask(
        self, question: str, *, max_new_tokens: int | None = None,
        temperature: float | None = None, seed: int | None = None, prime: str = "",
        top_p: float | None = None, history: Sequence[Turn] = (),
        on_text: Callable[[str], None] | None = None,
        trace: Callable[[ChunkTrace], None] | None = None,
    ) -> Reply:  # fmt: skip
        """Answers one question; the KV cache is the same afterwards, even after an interruption.

        Args:
            prime: the answer prefix, with which the model's answer begins; not in `Reply.text`.
            max_new_tokens, temperature, top_p: None takes the preset's. Temperature 0 is greedy.
            on_text: called with each piece of the answer. trace: with each chunk's `ChunkTrace`.

        Raises UsageError: no document is prefilled to its end, the question is empty, or a setting
        is out of range. LengthError, HistoryError: the question, or its history, is too long.
        PresetError: the method scores by another compressor than that of the prefill."""
        if not self._ids:
            raise UsageError("no document is prefilled", "call session.read(text) first")
        if len(self._ids) < len(self._todo):
            wrong = f"only {len(self._ids):,} of {len(self._todo):,} tokens are prefilled"
            raise UsageError(wrong, "call session.resume() to prefill the rest of the document")
        check_same_compressor(self._read_by, self.method)
        options = max_new_tokens, temperature, top_p
        tokens, heat, nucleus = choose_sampling_options(self.preset.generation, *options)
        asked = EncodedQuestion.encode(self.prompt, question, prime, history, len(self._ids))
        asked.check_fits_context(self.method.window, self.preset.context, tokens)
        length, started = len(self._ids), time.perf_counter()
        streamer = AnswerStreamer(self.tokenizer, on_text)
        text = QuestionAndText(question, self._token_texts, self._score_results)
        query = QueryState(Phase.QUESTION, turn_start=length, trace=trace, text=text)
        # A second Ctrl-C may have interrupted the cropping after the last question.
        self.cache.truncate(length)
        self.cache.begin_query(query, self.method)
        try:
            self._run_model_on_tokens(asked.before)
            query.question = asked.span
            query.answer_start = length + len(asked.before) + len(asked.ids_without_prefix)
            self._run_survey_pass(asked, query)
            generate(
                self.model, self._ids + asked.before + asked.ids, self.cache, streamer,
                max_new_tokens=tokens, temperature=heat, top_p=nucleus, seed=seed,
            )  # fmt: skip
        finally:
            self.cache.truncate(length)
            self.cache.begin_query(QueryState())
        ended = time.perf_counter()
        return Reply(
            streamer.text.strip(), question_tokens=len(asked.before) + len(asked.ids),
            answer_tokens=len(streamer.ids), first_token_s=(streamer.first or ended) - started,
            total_s=ended - started, cut=streamer.cut,
        )  # fmt: skip

    def check_length(self, question: str, prime: str, max_new_tokens: int | None) -> None:
        """Raises UsageError if a question is empty, LengthError if it exceeds the context."""
        asked = EncodedQuestion.encode(self.prompt, question, prime, (), len(self._ids))
        answer, *_ = choose_sampling_options(self.preset.generation, max_new_tokens, None, None)
        asked.check_fits_context(self.method.window, self.preset.context, answer)

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        """Counts the tokens of a question, including earlier questions and answers."""
        asked = EncodedQuestion.encode(self.prompt, question, "", history, 0)
        return len(asked.before) + len(asked.ids)

    def _run_model_on_tokens(self, token_ids: list[int]) -> None:
        if token_ids:
            batch = torch.tensor([token_ids], device=self.model.device)
            self.model.base_model(input_ids=batch, past_key_values=self.cache)

    def _run_survey_pass(self, question: EncodedQuestion, query: QueryState) -> None:
        """Computes the scores of all layers, if the selector needs them before a layer selects."""
        length, method = self.cache.get_seq_length(), self.method
        chunk, limit = method.window.chunk, method.window.full_attention_limit
        full = question.find_last_chunk_start(chunk) <= limit  # nothing is selected
        if full or not method.selector.surveys:
            return
        query.surveying = True
        with suppress(SurveyPassComplete):
            self._run_model_on_tokens(question.ids_without_prefix)
        self.cache.truncate(length)
        with report_plugin_errors(vars(method)):
            query.selector = method.selector.start_turn_after_survey(query.selector)
        query.surveying = query.dense = False
