"""A session: prefill a document once, ask as many questions about it as needed.

The document's keys and values stay in the cache; each question follows them and is cropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from esa_cli.attention.parts import blame_plugins
from esa_cli.attention.query_state import Phase, QueryState, SurveyComplete
from esa_cli.attention.step import ChunkTrace
from esa_cli.errors import UsageError
from esa_cli.models.generation import Streamer, end_ids, generate
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.question import EncodedQuestion
from esa_cli.qa.answering.reply import Turn
from esa_cli.qa.ingestion.prefill import Prefill
from esa_cli.qa.presets.preset import Preset, chosen_generation, longest_answer
from esa_cli.qa.presets.resolved_preset import (
    ResolvedPreset,
    check_fits_model,
    check_reduced_keys,
    check_same_fit,
    resolve,
)


@dataclass(frozen=True)
class Answer:
    """One answer, its tokens and times in seconds; `cut`: it ended at `max_new_tokens`."""

    text: str
    question_tokens: int
    answer_tokens: int
    first_token_s: float
    total_s: float
    cut: bool = False


class Session(Prefill):
    """Asks questions about one document, or several, with one attached model.

    Use as a context manager, which restores the model on leaving.

    Args:
        model, tokenizer: of transformers. preset: method, prompt and generation settings.

    Raises:
        ModelError: the model cannot be supported. PresetError: the method does not hold, or its
            compressor was made for another model.
    """

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Restores the model."""
        self.attachment.detach()

    def use(self, preset: Preset | ResolvedPreset) -> None:
        """Asks from now on with another preset of the same model; the prefill is kept.

        Settings of the prefill have no effect on keys that are cached.

        Raises:
            PresetError: the method does not hold, or needs another fitted compressor.
        """
        resolved = resolve(preset)
        new = resolved.method
        check_fits_model(new, self.model)
        if self._ids:
            check_same_fit(self._read_by, new)
        for document in self._opened:
            check_reduced_keys(document, new)
        self.method = new
        self.attachment.use(new)
        self.cache.begin(QueryState(), new)
        self.preset = resolved.preset
        self.prompt = PromptTokens(self.tokenizer, self.preset.prompt)

    @torch.inference_mode()
    def ask(
        self,
        question: str,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        prime: str = "",
        top_p: float | None = None,
        history: Sequence[Turn] = (),
        on_text: Callable[[str], None] | None = None,
        trace: Callable[[ChunkTrace], None] | None = None,
    ) -> Answer:
        """Asks one question; afterwards the cache is as before, also after an interruption.

        Args:
            prime: the answer prefix, with which the model's answer begins; not in `Answer.text`.
            max_new_tokens, temperature, top_p: None takes the preset's. Temperature 0 is greedy.
            seed: for sampling. history: earlier turns. on_text: called with each piece of the
                answer. trace: called with the `ChunkTrace` of each chunk of each layer.

        Raises:
            UsageError: no document has been prefilled, or not to its end; the question is empty, or
                with its history longer than the model's window allows; a setting is out of range.
            PresetError: the method scores by another compressor than that of the prefill.
        """
        self._check_prefilled()
        tokens, heat, nucleus = chosen_generation(
            self.preset.generation, max_new_tokens, temperature, top_p
        )
        asked = EncodedQuestion.of(self.prompt, question, prime, history, len(self._ids))
        asked.check(self.method.window, self.preset.context, tokens)
        length, started = len(self._ids), time.perf_counter()
        streamer = Streamer(self.tokenizer, on_text)
        text = self.text.turn(self._ids, question)
        query = QueryState(Phase.QUESTION, turn_start=length, trace=trace, text=text)
        self._begin(query)
        try:
            self._process(asked.before)
            query.question = asked.span
            query.answer_start = length + len(asked.before) + len(asked.ids_before_answer)
            self._survey(asked, query)
            generate(
                self.model, self._ids + asked.before + asked.ids, self.cache,
                max_new_tokens=tokens, temperature=heat, top_p=nucleus, seed=seed,
                streamer=streamer,
            )  # fmt: skip
        finally:
            self.cache.truncate(length)
            self.cache.begin(QueryState())
        return Answer(
            text=streamer.text.strip(),
            question_tokens=len(asked.before) + len(asked.ids),
            answer_tokens=streamer.count,
            first_token_s=(streamer.first or time.perf_counter()) - started,
            total_s=time.perf_counter() - started,
            cut=streamer.count >= tokens and streamer.last not in end_ids(self.model),
        )

    def check(
        self,
        question: str,
        *,
        prime: str = "",
        max_new_tokens: int | None = None,
        history: Sequence[Turn] = (),
    ) -> None:
        """Checks that a question fits the model's window as `ask` does, also before a prefill.

        Raises:
            UsageError: the question is empty. LengthError: it does not fit.
        """
        asked = EncodedQuestion.of(self.prompt, question, prime, history, len(self._ids))
        asked.check(
            self.method.window,
            self.preset.context,
            longest_answer(self.preset.generation, max_new_tokens),
        )

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        """Tokens of a question with its earlier turns. Raises UsageError: it is empty."""
        asked = EncodedQuestion.of(self.prompt, question, "", history, 0)
        return len(asked.before) + len(asked.ids)

    def _check_prefilled(self) -> None:
        """Raises UsageError when there is no document, or only a part of one; PresetError when it
        was prefilled with another method, without the compressor that this one scores by."""
        if not self._ids:
            raise UsageError("no document has been read", "call read(text) first")
        if len(self._ids) < len(self._todo):
            raise UsageError(
                f"only {len(self._ids):,} of {len(self._todo):,} tokens have been read",
                "call resume() to read on, or read(text) with the part you want",
            )
        check_same_fit(self._read_by, self.method)

    def _begin(self, query: QueryState) -> None:
        """Begins a turn behind the document, also where a second Ctrl-C came while the rows of the
        turn before were taken back."""
        self.cache.truncate(len(self._ids))
        self.cache.begin(query, self.method)

    def _process(self, ids: list[int]) -> None:
        """Runs tokens through the model. Earlier turns have a forward call of their own, so that
        the question's last chunk selects for the answer."""
        if ids:
            batch = torch.tensor([ids], device=self.model.device)
            self.model.base_model(input_ids=batch, past_key_values=self.cache)

    def _survey(self, asked: EncodedQuestion, query: QueryState) -> None:
        """The survey pass, for selectors that have one: the question passes the model for the
        scores of all layers, and is cropped."""
        length, method = self.cache.get_seq_length(), self.method
        if asked.last(method.window.chunk) <= method.window.dense_below:
            return  # full attention: nothing is selected
        if not method.selector.surveys:
            return
        query.surveying = True
        with suppress(SurveyComplete):
            self._process(asked.ids_before_answer)
        self.cache.truncate(length)
        with blame_plugins(vars(method)):
            query.selector = method.selector.after_survey(query.selector)
        query.surveying = query.dense = False
