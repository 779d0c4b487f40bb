"""Reads passages as plain text, each alone with the question, to quote the answer.

Every passage gets the log-odds that it contains the answer: of any answer against `unanswered`, by
as many first tokens of this as distinguish it from words of the passage. The passages with the
highest ones are asked for their most probable span. The best of these is the answer; requests such
as "Summarise ..." are answered in the bare model's own words."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import LengthError
from esa_cli.models import DeferredModel, LoadedModel, parse_reference
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import FusedForward, can_be_fused
from esa_cli.models.text_passes.text_forward import PromptBatch, TextForward, plain_forward
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.question_form import completed, wants_free_text
from esa_cli.qa.answering.reply import NOT_TOLD, Quotation, Reply, Turn
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.adapter_files import adapter_folder
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.reading.chat import written
from esa_cli.qa.reading.reader import Sampling, unheard
from esa_cli.qa.reading.spans import LONGEST, PATIENCE, Span, most_probable_span, token_bytes


def one_line(text: str) -> str:
    """The text with each run of white space as one space: line breaks of a page mean nothing."""
    return " ".join(text.split())


def clipped(text: str, most: int, tokens: Callable[[str], int]) -> str:
    """The beginning of `text` that has at most `most` of `tokens`; empty if there is none."""
    least = tokens("")
    while text and (over := tokens(text) - most) > 0:
        own = over + most - least
        keep = max(0, min(len(text) - 1, len(text) * (own - over) // max(1, own)))
        space = max(text.rfind(" ", 0, keep), text.rfind("\n", 0, keep))
        text = text[: space if 2 * space > keep else keep]
    return text


class PassagePrompt:
    """Token ids of a passage with a question, and of the answers that may follow.

    Args:
        tokenizer: of transformers. template: text with {passage} and {question}, up to where the
            answer begins. unanswered: what the model answers when the passage does not say.
    """

    def __init__(self, tokenizer: Any, template: str, unanswered: str) -> None:
        self.tokenizer, self.template, self.unanswered = tokenizer, template, unanswered
        self.unanswered_ids = self.answer_ids(unanswered)
        self.line_end = self._encode("\n")[-1]

    def ids(self, question: str, passage: str) -> list[int]:
        """The prompt up to where the answer begins."""
        pieces = {"{passage}": one_line(passage), "{question}": one_line(question)}
        parts = re.split(r"(\{passage\}|\{question\})", self.template)
        return self._encode("".join(pieces.get(part, part) for part in parts))

    def answer_ids(self, answer: str) -> list[int]:
        """An answer as the model gives it: after a space, ended by a line end."""
        return self._encode(f" {one_line(answer)}\n")

    def _encode(self, text: str) -> list[int]:
        out = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return list(out["input_ids"])


class PassageReading:
    """Passages that have been read with one question; `log_odds`, one number a passage: how much
    likelier it contains the answer than not."""

    def __init__(self, reader: PassageReader, passages: Sequence[str], question: str) -> None:
        prompt, longest = reader.prompt, reader.longest
        if longest is not None:
            passages = [
                clipped(passage, longest, lambda text: len(prompt.ids(question, text)))
                for passage in passages
            ]
        self._reader, self._lines = reader, [_OneLine(passage) for passage in passages]
        ids = [prompt.ids(question, passage) for passage in passages]
        self._batch = PromptBatch(reader.forward, ids)
        self.log_odds: list[float] = []
        if passages:
            none = torch.stack([self._unanswered(number) for number in range(len(passages))])
            self.log_odds = (torch.log1p(-none.exp().clamp(max=1 - 1e-7)) - none).tolist()

    def _unanswered(self, number: int) -> Tensor:
        """Log-probability () that a passage is answered by `unanswered`: of its first token, and of
        the next ones while a quotation of the passage may begin so, as one of `(1867)` does."""
        prompt, passage = self._reader.prompt, self._lines[number].text.encode()
        ids = prompt.unanswered_ids
        out = self._batch.logits[number].log_softmax(-1)[ids[0]]
        said, continuation = self._reader.piece(ids[0]), None
        for before, token in pairwise(ids):
            if said.strip() not in passage:
                break
            continuation = continuation or self._batch.continuation(number)
            out = out + continuation.append([0], [before])[0].log_softmax(-1)[token]
            said += self._reader.piece(token)
        return out

    def span(self, number: int, above: float = -math.inf) -> Span | None:
        """The most probable span of a passage, in its own characters; None: the model has none that
        is likelier than the log-probability `above`."""
        line, reader = self._lines[number], self._reader
        found = most_probable_span(
            line.text, self._batch.logits[number], self._batch.continuation(number),
            reader.piece, reader.prompt.line_end, above,
        )  # fmt: skip
        if found is None:
            return None
        start, end = line.original(found.start), line.original(found.end - 1) + 1
        return Span(start, end, found.log_probability)


class PassageReader:
    """A model with a prompt for passages, and the adapter that was trained for it, if any.

    Args:
        model: a causal language model of transformers; nothing is attached while it reads.
        context: the model's window in tokens; the ends of passages that exceed it are not read.
        fixed: neither model nor adapter is trained any more, so fused weights are kept.
    """

    def __init__(
        self, model: Any, prompt: PassagePrompt, adapter: LoraAdapter | None,
        context: int | None = None, *, fixed: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.prompt = model, prompt
        self.longest = None if context is None else context - LONGEST * PATIENCE
        self._adapter, self._fuses = adapter, fixed and can_be_fused(model)
        self.piece = token_bytes(prompt.tokenizer)

    @cached_property
    def forward(self) -> TextForward:
        """The model's forward pass, within `reading`."""
        if self._fuses:
            return FusedForward(self.model, adapter=self._adapter)
        return plain_forward(self.model)

    def reading(self) -> AbstractContextManager[None]:
        """Context in which `read` and the spans of its result are computed."""
        return nullcontext() if self._adapter is None or self._fuses else self._adapter.active()

    def read(self, question: str, passages: Sequence[str]) -> PassageReading:
        """Reads each passage with the question; all in few forward calls."""
        return PassageReading(self, passages, question)


class _OneLine:
    """A passage in one line, with the place of each of its characters in the original."""

    def __init__(self, passage: str) -> None:
        words = list(re.finditer(r"\S+", passage))
        self.text = " ".join(word[0] for word in words)
        self._starts: list[tuple[int, int]] = []
        at = 0
        for word in words:
            self._starts.append((at, word.start()))
            at += len(word[0]) + 1

    def original(self, at: int) -> int:
        """The place in the passage of character `at` of the line, which is not a space."""
        word = bisect_right(self._starts, at, key=lambda start: start[0]) - 1
        line, passage = self._starts[word]
        return passage + at - line


ROOM = 1024
"""Tokens for the passages and the answer."""
SPANS = 3
"""Passages whose most probable span is looked for."""
FREE_PASSAGES = 4
"""Passages that free text is written from."""
UNMENTIONED = 4.5
"""Log-odds that a name costs which no document mentions. Of 41 questions that the chronicle does
not answer 28 are noticed with 3, 32 with 4, 33 with 4.5 and 5, and 34 where nothing outweighs it;
none of the 56 others is lost with any. The reader's own log-odds are below 3 for all 41."""


class SpanReader:
    """A `Reader` that quotes the most probable span of the best passage.

    Args:
        loaded: its `text_model` reads passages; its `model` writes free text. Nothing is attached
            to them while it does. chat: the preset's prompt, of free text. window: tokens that the
            model is given at once.

    Raises PresetError, ModelError: the adapter is missing, cannot be read or is of another model.
    """

    nbytes = 0

    def __init__(
        self, loaded: LoadedModel | DeferredModel, preset: Preset, chat: PromptTokens, window: int
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
        """Tokens of the question in the preset's prompt, checked to leave room for passages and for
        free text of `max_new_tokens`. Raises UsageError: it is empty, or no text. LengthError: it
        is too long."""
        tokens = len(self._chat.question(question))
        passage = len(self.passages.prompt.ids(question, ""))
        need = max(tokens, passage) + min(ROOM, self._window // 2)
        need += max_new_tokens if self._is_free(question) else 0
        if need > self._window:
            raise LengthError(
                f"the question, a passage and the answer take {need:,} tokens; the model's window "
                f"has {self._window:,}",
                "ask a shorter question, or for a shorter answer",
            )
        return tokens

    @torch.inference_mode()
    def rank(
        self,
        question: str,
        passages: Sequence[Passage],
        spans: int = SPANS,
        unmentioned: float = 0.0,
    ) -> list[Passage]:
        """The passages as read, by score, but that of the best span first: the one with the highest
        log-probability plus its passage's score.

        Args:
            spans: passages with the highest scores whose most probable span is looked for.
            unmentioned: share of the question's names that no document mentions, which lowers all
                log-odds and no score.
        """
        doubt = UNMENTIONED * unmentioned
        with self.passages.reading():
            reading = self.passages.read(question, [one.text for one in passages])
            out = [
                replace(one, score=odds + self._settings.prior * one.score, log_odds=odds - doubt)
                for one, odds in zip(passages, reading.log_odds, strict=True)
            ]
            order = sorted(range(len(out)), key=lambda n: -out[n].score)
            best, highest = -1, -math.inf
            for n in order[:spans]:
                if span := reading.span(n, highest - out[n].score):
                    start = out[n].start
                    out[n] = replace(out[n], quote=(start + span.start, start + span.end))
                    best, highest = n, span.log_probability + out[n].score
        return [out[n] for n in sorted(order, key=lambda n: n != best)]

    @torch.inference_mode()
    def answer(
        self,
        question: str,
        passages: Sequence[Passage],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None] = unheard,
    ) -> Reply:
        """See `Reader.answer`; `passages`: of `rank`."""
        question = completed(question, history)
        told = bool(passages) and self._is_told(passages[0])
        if passages and self._is_free(question):
            text = "\n\n".join(one.text for one in passages[:FREE_PASSAGES])
            return replace(self._free_text(question, text, sampling, on_text), found=told)
        if not told:
            on_text(NOT_TOLD)
            return Reply(NOT_TOLD, found=False)
        best = passages[0]
        assert best.quote is not None
        start, end = best.quote
        quoted = best.text[start - best.start : end - best.start]
        on_text(text := one_line(quoted))
        tokens = len(self.passages.prompt.answer_ids(quoted)) - 1
        return Reply(text, answer_tokens=tokens, quotation=Quotation(best.document, start, end))

    def close(self) -> None:
        """See `Reader.close`."""

    def _is_free(self, question: str) -> bool:
        form = self._settings.form
        return form == "text" or (form == "auto" and wants_free_text(question))

    def _is_told(self, best: Passage) -> bool:
        """Whether the best passage seems to tell an answer."""
        if best.quote is None or best.log_odds is None:
            return False
        threshold = self._settings.threshold
        return threshold is None or best.log_odds >= threshold

    def _free_text(
        self, question: str, text: str, sampling: Sampling, on_text: Callable[[str], None]
    ) -> Reply:
        """An answer in the bare model's own words."""
        prompt, most = self._chat, sampling.max_new_tokens or 0
        asked = prompt.question(question)
        room = self._window - len(asked) - most
        text = clipped(text, room, lambda text: len(prompt.document(text)))
        ids = prompt.document(text) + asked
        return written(self._loaded.model, prompt.tokenizer, ids, sampling, most, on_text)
