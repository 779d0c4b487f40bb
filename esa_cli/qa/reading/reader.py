"""Reads passages as plain text, each alone with the question, to quote the answer.

Every passage gets the log-odds that it tells the answer: of any answer against `unanswered`, by the
first tokens of this, as many as tell it from words of the passage. The passages with the highest
ones are asked for their most probable span."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import PresetError
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import FusedForward, can_be_fused
from esa_cli.models.text_passes.text_forward import PromptBatch, TextForward, plain_forward
from esa_cli.qa.finding.windows import FoundPassage, Span
from esa_cli.qa.presets.preset import FIELDS, WorkedExample
from esa_cli.qa.reading.spans import LONGEST, PATIENCE, most_probable_span, token_bytes


def one_line(text: str) -> str:
    """The text with each run of white space as one space: line breaks of a page mean nothing."""
    return " ".join(text.split())


def clipped(text: str, most: int, tokens: Callable[[str], int]) -> str:
    """The beginning of `text` that has at most `most` of `tokens`; empty if there is none."""
    least = None
    while text and (over := tokens(text) - most) > 0:
        least = tokens("") if least is None else least
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
        examples: worked ones, which come first in the same form.

    Raises:
        PresetError: the template lacks a field.
    """

    def __init__(
        self, tokenizer: Any, template: str, unanswered: str, examples: Sequence[WorkedExample] = ()
    ) -> None:
        for field in FIELDS:
            if field not in template:
                raise PresetError(
                    f"answer.prompt must have {field}, got {template!r}", "see `esa presets show`"
                )
        self.tokenizer, self.template, self.unanswered = tokenizer, template, unanswered
        self.unanswered_ids = self.answer_ids(unanswered)
        self.line_end = self._encode("\n")[-1]
        self._examples = "".join(
            f"{self._filled(one.question, one.passage)} {one_line(one.answer or unanswered)}\n"
            for one in examples
        )
        self._example_ids = self._encode(self._examples)

    def ids(self, question: str, passage: str) -> list[int]:
        """The prompt up to where the answer begins."""
        return self._encode(self._examples + self._filled(question, passage))

    def shared(self, prompts: Sequence[Sequence[int]]) -> int:
        """The first tokens of these prompts that are those of the examples."""
        tokens = zip(self._example_ids, *prompts, strict=False)
        return sum(1 for _ in takewhile(lambda at: len(set(at)) == 1, tokens))

    def _filled(self, question: str, passage: str) -> str:
        pieces = {"{passage}": one_line(passage), "{question}": one_line(question)}
        parts = re.split(r"(\{passage\}|\{question\})", self.template)
        return "".join(pieces.get(part, part) for part in parts)

    def answer_ids(self, answer: str) -> list[int]:
        """An answer as the model gives it: after a space, ended by a line end."""
        return self._encode(f" {one_line(answer)}\n")

    def clipped(self, question: str, passage: str, most: int) -> str:
        """The beginning of the passage with which the prompt has at most `most` tokens."""
        return clipped(passage, most, lambda text: len(self.ids(question, text)))

    def texts(self, ids: Sequence[int]) -> str:
        """The text of some token ids."""
        return str(self.tokenizer.decode(list(ids)))

    def _encode(self, text: str) -> list[int]:
        out = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return list(out["input_ids"])


class PassageReading:
    """Passages that have been read with one question.

    `log_odds` has one number a passage: how much likelier it tells the answer than not.
    """

    def __init__(self, reader: PassageReader, passages: Sequence[str], question: str) -> None:
        prompt, most = reader.prompt, reader.longest
        if most is not None:
            passages = [prompt.clipped(question, passage, most) for passage in passages]
        self._reader, self._lines = reader, [_Line(passage) for passage in passages]
        ids = [prompt.ids(question, passage) for passage in passages]
        self._batch = PromptBatch(reader.forward, ids, prompt.shared(ids))
        if not passages:
            self.log_odds: list[float] = []
            return
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
        fixed: neither model nor adapter is trained any more, so their fused weights are kept, where
            there are any for this model.
    """

    def __init__(
        self,
        model: Any,
        prompt: PassagePrompt,
        adapter: LoraAdapter | None,
        context: int | None = None,
        *,
        fixed: bool = False,
    ) -> None:
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


class _Line:
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


def read_passages(
    reader: PassageReader,
    question: str,
    found: Sequence[FoundPassage],
    texts: Sequence[str],
    *,
    prior: float,
    spans: int,
) -> list[FoundPassage]:
    """The passages as read, by score, but that of the best span first. A span's rank is its
    log-probability plus its passage's score; the search for one that cannot be the best ends early.

    Args:
        texts: of the passages. prior: weight of their scores in finding. spans: passages with the
            highest scores whose most probable span is looked for.
    """
    with reader.reading():
        reading = reader.read(question, texts)
        passages = [
            replace(one, score=odds + prior * one.score, log_odds=odds)
            for one, odds in zip(found, reading.log_odds, strict=True)
        ]
        order = sorted(range(len(found)), key=lambda n: -passages[n].score)
        best, highest = -1, -math.inf
        for n in order[:spans]:
            if span := reading.span(n, highest - passages[n].score):
                passages[n] = replace(passages[n], span=span)
                best, highest = n, span.log_probability + passages[n].score
    return [passages[n] for n in sorted(order, key=lambda n: n != best)]
