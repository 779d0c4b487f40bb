"""Reads passages again as plain text, each alone with the question, to quote the answer.

Every passage gets the log-odds that it tells the answer: of any answer against `unanswered`, by the
first tokens of this, as many as tell it from words of the passage. The passages with the highest
ones are asked for their most probable span.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import FusedForward, can_be_fused
from esa_cli.models.text_passes.text_forward import PromptBatch, TextForward, plain_forward
from esa_cli.qa.finding.passages_apart import Span
from esa_cli.qa.reading.passage_prompt import PassagePrompt
from esa_cli.qa.reading.span_search import LONGEST, PATIENCE, most_probable_span
from esa_cli.qa.reading.token_bytes import token_bytes


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
        said, behind = self._reader.piece(ids[0]), None
        for before, token in pairwise(ids):
            if said.strip() not in passage:
                break
            behind = behind or self._batch.continuation(number)
            out = out + behind.append([0], [before])[0].log_softmax(-1)[token]
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
