"""The default reader: it answers with the most probable span of the passages that were found.

A question that asks for free text, such as a summary, is answered by the model without the LoRA
adapter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from esa_cli.errors import LengthError
from esa_cli.models import LoadedModel, parse_reference
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.answering.question_form import expand_ellipsis, validate_question, wants_free_text
from esa_cli.qa.answering.reply import NOT_TOLD, Quotation, Reply, Turn
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset import Preset, find_adapter_folder
from esa_cli.qa.reading.passage_reader import (
    PassagePrompt,
    PassageReader,
    clip_text,
    collapse_spaces,
)
from esa_cli.qa.reading.reader import SamplingParams, generate_reply, ignore_text

ROOM = 1024
"""The number of tokens that are reserved for passages and answer."""
FREE_PASSAGES = 4
"""The number of passages from which free text is written."""
UNMENTIONED = 4.5
"""The log-odds subtracted for a name that no document has: 33 of 41 questions are refused."""
SPAN_WEIGHT = 0.5
"""The weight of a span's log-probability beside the score of its passage."""


class SpanReader:
    """A reader that answers by quoting the most probable span of the best passage.

    Args:
        loaded: the models; `text_model` reads passages, and `model` writes free text.
        window: the maximum number of tokens in one input of the model.

    Raises PresetError, ModelError: the adapter is missing, damaged or of another model."""

    nbytes = 0

    def __init__(self, loaded: LoadedModel, preset: Preset, window: int) -> None:
        settings, model = preset.answer, loaded.text_model
        folder = None if settings.adapter is None else find_adapter_folder(settings.adapter)
        prompt = PassagePrompt(loaded.tokenizer, settings.prompt)
        self.name = parse_reference(preset.model).name
        self.passages = PassageReader.load(folder, model, prompt, window)
        self._loaded, self._preset, self._window = loaded, preset, window
        self._settings = settings

    @cached_property
    def _chat_prompt(self) -> PromptEncoder:
        """The chat prompt for free text, which the model writes without the adapter."""
        return PromptEncoder(self._loaded.tokenizer, self._preset.prompt)

    def check_length(self, question: str, max_new_tokens: int) -> int:
        """Counts a question's tokens in the longest prompt, and checks that they fit. Raises
        UsageError: the question is empty, or not UTF-8. LengthError: the question is too long."""
        validate_question(question)
        tokens, answer_tokens = len(self.passages.prompt.encode_prompt(question, "").ids), 0
        if self._should_write_free_text(question):
            tokens = max(tokens, len(self._chat_prompt.encode_question(question)))
            answer_tokens = max_new_tokens
        need = tokens + answer_tokens + min(ROOM, self._window // 2)
        if need > self._window:
            raise LengthError(
                f"the question, a passage and the answer take {need:,} tokens; the model's window "
                f"has {self._window:,} tokens",
                "ask a shorter question, or ask for a shorter answer",
            )
        return tokens

    @torch.inference_mode()
    def rank_passages(
        self, question: str, passages: Sequence[Passage], *, by_span: bool = True,
        unmentioned_share: float = 0.0,
    ) -> list[Passage]:  # fmt: skip
        """Reads passages, and sorts them by score.

        Args:
            by_span: whether the passage with the best span comes first.
            unmentioned_share: the share of a name that no document has; lowers all log-odds."""
        doubt, out = UNMENTIONED * unmentioned_share, list[tuple[float, Passage]]()
        readings = self.passages.read_passages(question, [one.text for one in passages])
        for one, (odds, span) in zip(passages, readings, strict=True):
            score = odds + self._settings.prior * one.score
            passage, total = replace(one, score=score, log_odds=odds - doubt), -math.inf
            if span is not None:
                quote = one.start + span.start, one.start + span.end
                passage = replace(passage, quote=quote)
                total = score + SPAN_WEIGHT * span.log_probability
            out.append((total, passage))
        ranked = [passage for _, passage in sorted(out, key=lambda pair: -pair[1].score)]
        if by_span and out:
            best = max(out, key=lambda pair: pair[0])[1]
            ranked.sort(key=lambda passage: passage is not best)
        return ranked

    @torch.inference_mode()
    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Answers as `Reader.answer` describes, from passages in the order of `rank_passages`."""
        question = expand_ellipsis(question, history)
        best, answered = passages[0] if passages else None, False
        if best is not None and best.quote is not None and best.log_odds is not None:
            threshold = self._settings.threshold
            answered = threshold is None or best.log_odds >= threshold
        if passages and self._should_write_free_text(question):
            text = "\n\n".join(one.text for one in passages[:FREE_PASSAGES])
            return replace(self._write_free_text(question, text, sampling, on_text), found=answered)
        if best is None or best.quote is None or not answered:
            on_text(NOT_TOLD)
            return Reply(NOT_TOLD, found=False)
        start, end = best.quote
        quoted = best.text[start - best.start : end - best.start]
        on_text(text := collapse_spaces(quoted))
        tokens = self.passages.prompt.count_answer_tokens(quoted)
        return Reply(text, answer_tokens=tokens, quotation=Quotation(best.document, start, end))

    def close(self) -> None:
        """Does nothing, as only readers on servers have connections."""

    def _should_write_free_text(self, question: str) -> bool:
        """Whether the answer to a question is to be free text instead of a quotation."""
        form = self._settings.form
        return form == "text" or (form == "auto" and wants_free_text(question))

    def _write_free_text(
        self, question: str, text: str, sampling: SamplingParams, on_text: Callable[[str], None]
    ) -> Reply:
        """Generates an answer without the adapter, from as much of `text` as fits the context."""
        prompt, limit = self._chat_prompt, sampling.max_new_tokens or 0
        asked = prompt.encode_question(question)
        room = self._window - len(asked) - limit
        text = clip_text(text, room, lambda text: len(prompt.encode_document(text)))
        ids = prompt.encode_document(text) + asked
        return generate_reply(self._loaded.model, prompt.tokenizer, ids, sampling, limit, on_text)
