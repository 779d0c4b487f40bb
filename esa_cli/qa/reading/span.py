"""The reader that quotes: each passage is read as plain text, together with the question only.

The reader estimates the log-odds that a passage contains the answer, and quotes the most probable
span of the best passages. The model without its adapter answers requests for free text, such as a
summary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import LengthError
from esa_cli.models import LoadedModel, parse_reference
from esa_cli.models.text_passes.model_forward import make_plain_forward
from esa_cli.models.text_passes.text_forward import (
    FusedForward,
    LoraAdapter,
    PromptBatch,
    TextForward,
    can_be_fused,
)
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.question_form import complete_question, wants_free_text
from esa_cli.qa.answering.reply import NOT_TOLD, Quotation, Reply, Turn
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.adapter_files import adapter_folder
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.reading.reader import Sampling, generate_reply, ignore_text
from esa_cli.qa.reading.span_search import (
    MAX_TOKENS,
    PATIENCE,
    Span,
    most_probable_span,
    token_bytes,
)

ROOM = 1024
"""The number of tokens that are reserved for passages and answer."""
SPANS = 3
"""The number of passages whose most probable span is searched for."""
FREE_PASSAGES = 4
"""The number of passages from which free text is written."""
UNMENTIONED = 4.5
"""The log-odds subtracted for a name that no document has: 33 of 41 questions are refused."""


def one_line(text: str) -> str:
    """Returns the text in one line, with each run of white space replaced by one space."""
    return " ".join(text.split())


def clip_text(text: str, limit: int, count_tokens: Callable[[str], int]) -> str:
    """Returns the beginning of a text, with at most `limit` tokens; it may be empty."""
    least = count_tokens("")
    while text and (over := count_tokens(text) - limit) > 0:
        own = over + limit - least
        keep = max(0, min(len(text) - 1, len(text) * (own - over) // max(1, own)))
        space = max(text.rfind(" ", 0, keep), text.rfind("\n", 0, keep))
        text = text[: space if 2 * space > keep else keep]
    return text


class PassagePrompt:
    """Encodes prompts of a passage and a question, and possible answers.

    Args:
        template: text with {passage} and {question}, up to where the answer begins.
        unanswered: the answer where the passage does not contain one."""

    def __init__(self, tokenizer: Any, template: str, unanswered: str) -> None:
        self.tokenizer, self.template, self.unanswered = tokenizer, template, unanswered
        self.unanswered_ids = self.answer_ids(unanswered)
        self.line_end = self._encode("\n")[-1]

    def ids(self, question: str, passage: str) -> list[int]:
        """Returns the token ids of a passage prompt, up to the beginning of the answer."""
        pieces = {"{passage}": one_line(passage), "{question}": one_line(question)}
        parts = re.split(r"(\{passage\}|\{question\})", self.template)
        return self._encode("".join(pieces.get(part, part) for part in parts))

    def answer_ids(self, answer: str) -> list[int]:
        """Returns the token ids of an answer as the model writes it, with space and line end."""
        return self._encode(f" {one_line(answer)}\n")

    def _encode(self, text: str) -> list[int]:
        out = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return list(out["input_ids"])


class PassageReader:
    """A causal transformers model with a prompt for passages, and with an adapter if there is one.

    Args:
        context: the model's window in tokens; the ends of longer passages are not read.
        fixed: model and adapter are not trained any more, so that fused weights are kept."""

    def __init__(
        self, model: Any, prompt: PassagePrompt, adapter: LoraAdapter | None,
        context: int | None = None, *, fixed: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.prompt = model, prompt
        self.max_tokens = None if context is None else context - MAX_TOKENS * PATIENCE
        self._adapter, self._fuses = adapter, fixed and can_be_fused(model)
        self.bytes_of = token_bytes(prompt.tokenizer)

    @cached_property
    def forward(self) -> TextForward:
        """The forward pass of the model, for use within the context of `reading`."""
        if self._fuses:
            return FusedForward(self.model, adapter=self._adapter)
        return make_plain_forward(self.model)

    def reading(self) -> AbstractContextManager[None]:
        """Returns the context in which passages are read and spans are searched."""
        return nullcontext() if self._adapter is None or self._fuses else self._adapter.active()

    def read(self, question: str, passages: Sequence[str]) -> PassageReading:
        """Reads all passages, each with the question, in a few forward calls."""
        return PassageReading(self, passages, question)


class PassageReading:
    """Passages that were read with a question, and the log-odds that each has the answer."""

    def __init__(self, reader: PassageReader, passages: Sequence[str], question: str) -> None:
        prompt, limit = reader.prompt, reader.max_tokens
        if limit is not None:
            passages = [
                clip_text(passage, limit, lambda text: len(prompt.ids(question, text)))
                for passage in passages
            ]
        self._reader, self._passages = reader, passages
        ids = [prompt.ids(question, passage) for passage in passages]
        self._batch = PromptBatch(reader.forward, ids)
        self.log_odds: list[float] = []
        if passages:
            numbers = range(len(passages))
            none = torch.stack([self._unanswered_log_probability(one) for one in numbers])
            self.log_odds = (torch.log1p(-none.exp().clamp(max=1 - 1e-7)) - none).tolist()

    def _unanswered_log_probability(self, number: int) -> Tensor:
        """Returns the log-probability () that the answer to a passage is `unanswered`. The
        probability covers as many tokens as are needed to rule out a quotation: ` (` may also begin
        a quotation of `(1867)`."""
        reader, ids = self._reader, self._reader.prompt.unanswered_ids
        passage = one_line(self._passages[number]).encode()
        out = self._batch.logits[number].log_softmax(-1)[ids[0]]
        text, continuation = reader.bytes_of(ids[0]), None
        for before, token in pairwise(ids):
            if text.strip() not in passage:
                break
            continuation = continuation or self._batch.start_continuation(number)
            out = out + continuation.append([0], [before])[0].log_softmax(-1)[token]
            text += reader.bytes_of(token)
        return out

    def span(self, number: int, above: float = -math.inf) -> Span | None:
        """Returns a passage's most probable span; None if its log-probability is not over
        `above`."""
        passage, reader = self._passages[number], self._reader
        found = most_probable_span(
            one_line(passage), self._batch.logits[number], self._batch.start_continuation(number),
            reader.bytes_of, reader.prompt.line_end, above,
        )  # fmt: skip
        if found is None:
            return None
        places = _passage_offsets(passage)
        return Span(places[found.start], places[found.end - 1] + 1, found.log_probability)


def _passage_offsets(passage: str) -> list[int]:
    """Returns the offset in `passage` of each character of `one_line(passage)`."""
    places: list[int] = []
    for word in re.finditer(r"\S+", passage):
        places += range(word.start() - bool(places), word.end())  # with the space before it
    return places


class SpanReader:
    """A reader that quotes the most probable span of the best passage.

    Args:
        loaded: its `text_model` reads passages, its `model` writes free text.
        chat: the prompt of free text. window: the most tokens that the model is given at once.

    Raises PresetError, ModelError: the adapter is missing, damaged or of another model."""

    nbytes = 0

    def __init__(
        self, loaded: LoadedModel, preset: Preset, chat: PromptTokens, window: int
    ) -> None:
        settings, model = preset.answer, loaded.text_model
        adapter = None
        if settings.adapter is not None:
            adapter = LoraAdapter.load(adapter_folder(settings.adapter), model)
            adapter.to(next(model.parameters()))
        prompt = PassagePrompt(loaded.tokenizer, settings.prompt, settings.unanswered)
        self.name = parse_reference(preset.model).name
        self.passages = PassageReader(model, prompt, adapter, window, fixed=True)
        self._loaded, self._settings, self._chat, self._window = loaded, settings, chat, window

    def check(self, question: str, max_new_tokens: int) -> int:
        """Counts a question's tokens. Raises UsageError, LengthError: it is empty or too long."""
        tokens = len(self._chat.question(question))
        passage = len(self.passages.prompt.ids(question, ""))
        need = max(tokens, passage) + min(ROOM, self._window // 2)
        need += max_new_tokens if self._wants_free_text(question) else 0
        if need > self._window:
            raise LengthError(
                f"the question, a passage and the answer take {need:,} tokens; the model's window "
                f"has {self._window:,} tokens",
                "ask a shorter question, or ask for a shorter answer",
            )
        return tokens

    @torch.inference_mode()
    def rank_passages(
        self, question: str, passages: Sequence[Passage], span_count: int = SPANS,
        unmentioned_share: float = 0.0,
    ) -> list[Passage]:  # fmt: skip
        """Reads passages, and returns them by descending score, after the passage with the best
        span. The best span has the highest sum of log-probability and score of its passage.

        Args:
            span_count: passages whose most probable span is looked for, by the highest scores.
            unmentioned_share: share of a name that no document has; lowers all log-odds."""
        doubt = UNMENTIONED * unmentioned_share
        with self.passages.reading():
            reading = self.passages.read(question, [one.text for one in passages])
            out = [
                replace(one, score=odds + self._settings.prior * one.score, log_odds=odds - doubt)
                for one, odds in zip(passages, reading.log_odds, strict=True)
            ]
            order = sorted(range(len(out)), key=lambda n: -out[n].score)
            best, highest = -1, -math.inf
            for n in order[:span_count]:
                if span := reading.span(n, highest - out[n].score):
                    start = out[n].start
                    out[n] = replace(out[n], quote=(start + span.start, start + span.end))
                    best, highest = n, span.log_probability + out[n].score
        return [out[n] for n in sorted(order, key=lambda n: n != best)]

    @torch.inference_mode()
    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: Sampling, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Answers as `Reader.answer` describes, from the passages that `rank_passages` returned."""
        question = complete_question(question, history)
        best, answered = passages[0] if passages else None, False
        if best is not None and best.quote is not None and best.log_odds is not None:
            threshold = self._settings.threshold
            answered = threshold is None or best.log_odds >= threshold
        if passages and self._wants_free_text(question):
            text = "\n\n".join(one.text for one in passages[:FREE_PASSAGES])
            return replace(self._write_text(question, text, sampling, on_text), found=answered)
        if best is None or best.quote is None or not answered:
            on_text(NOT_TOLD)
            return Reply(NOT_TOLD, found=False)
        start, end = best.quote
        quoted = best.text[start - best.start : end - best.start]
        on_text(text := one_line(quoted))
        tokens = len(self.passages.prompt.answer_ids(quoted)) - 1
        return Reply(text, answer_tokens=tokens, quotation=Quotation(best.document, start, end))

    def close(self) -> None:
        """Closes nothing, as this reader has no connections."""

    def _wants_free_text(self, question: str) -> bool:
        """Whether the answer to a question is free text instead of a quotation."""
        form = self._settings.form
        return form == "text" or (form == "auto" and wants_free_text(question))

    def _write_text(
        self, question: str, text: str, sampling: Sampling, on_text: Callable[[str], None]
    ) -> Reply:
        """Writes an answer with the model without adapter, from as much of `text` as fits."""
        prompt, limit = self._chat, sampling.max_new_tokens or 0
        asked = prompt.question(question)
        room = self._window - len(asked) - limit
        text = clip_text(text, room, lambda text: len(prompt.document(text)))
        ids = prompt.document(text) + asked
        return generate_reply(self._loaded.model, prompt.tokenizer, ids, sampling, limit, on_text)
