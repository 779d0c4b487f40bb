"""Answers a question from passages that are found and read again as text.

    question -> PassageFinder -> PassageReader: log-odds, span -> answer, or "does not say"

The documents' rows are used for votes only, where the preset gives these a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import LengthError
from esa_cli.models.generation import generate
from esa_cli.models.lora_adapter import LoraAdapter
from esa_cli.qa.adapter_files import adapter_folder
from esa_cli.qa.books import PlacedBook
from esa_cli.qa.finding.passage_finder import FoundPassage, PassageFinder
from esa_cli.qa.preset import Preset
from esa_cli.qa.prompt import PromptTokens
from esa_cli.qa.question_form import wants_free_text
from esa_cli.qa.reading.passage_prompt import PassagePrompt
from esa_cli.qa.reading.passage_reader import PassageReader, PassageReading, QuotedSpan
from esa_cli.qa.reply import NOT_TOLD

ROOM = 1024
"""Tokens for the passages and the answer."""
SPANS = 3
"""Passages whose most probable span is looked for."""
FREE_PASSAGES = 4
"""Passages that free text is written from."""


@dataclass(frozen=True)
class TextAnswer:
    """An answer, the passages it rests on, best first, with shares of the weight that sum to 1.

    `found`: whether a passage seems to tell it. `span`: the answer's characters in the document of
    the first passage. `tokens`: of the answer.
    """

    text: str
    passages: tuple[FoundPassage, ...]
    weights: tuple[float, ...]
    found: bool
    tokens: int
    span: tuple[int, int] | None = None


class TextAnswers:
    """Answers from text with one model and the settings of its preset.

    Args:
        model, tokenizer: of transformers; the model is bare while it answers. preset: its settings
            `answer`, and its window. prompt: for free text.

    Raises:
        ModelError: the adapter cannot be read, or is of another model.
    """

    def __init__(self, model: Any, tokenizer: Any, preset: Preset, prompt: PromptTokens) -> None:
        settings = preset.answer
        self.model, self.settings, self._prompt = model, settings, prompt
        self._context = preset.context
        adapter = None
        if settings.adapter is not None:
            adapter = LoraAdapter.load(adapter_folder(settings.adapter), model)
            adapter.to(next(model.parameters()))
        passages = PassagePrompt(tokenizer, settings.prompt, settings.unanswered)
        self._reader = PassageReader(model, passages, adapter)
        self._texts: list[str] = []
        self._finder: PassageFinder | None = None

    def finder(self, books: Sequence[PlacedBook]) -> PassageFinder:
        """The finder of these books; that of the last ones is kept."""
        texts = [book.document.text for book in books]
        if self._finder is None or texts != self._texts:
            self._finder = PassageFinder(texts, [book.spans for book in books])
            self._texts = texts
        return self._finder

    def check(self, question: str) -> int:
        """Tokens of the question in the preset's prompt, checked to leave room for passages.

        Raises:
            UsageError: it is empty, or no text. LengthError: it is too long.
        """
        tokens = len(self._prompt.question(question))
        if (need := 2 * tokens + ROOM) > self._context:
            raise LengthError(
                f"the question, a passage and the answer take {need:,} tokens; the model's window "
                f"has {self._context:,}",
                "ask a shorter question",
            )
        return tokens

    @torch.inference_mode()
    def answer(
        self,
        question: str,
        books: Sequence[PlacedBook],
        *,
        earlier: str = "",
        votes: Sequence[Tensor] = (),
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
    ) -> TextAnswer:
        """Answers one question about the books.

        Args:
            earlier: text of earlier turns that the question refers to. votes: for each book (n,).
            max_new_tokens, temperature, top_p: of free text; spans are always the most probable.
        """
        settings = self.settings
        found = self.finder(books).find(
            question, settings.passages, earlier=earlier, votes=votes, weight=settings.votes
        )
        texts = [books[one.document].document.text[one.start : one.end] for one in found]
        with self._reader.reading():
            reading = self._reader.read(question, texts)
            scores = [
                odds + settings.prior * one.score
                for odds, one in zip(reading.log_odds, found, strict=True)
            ]
            order = sorted(range(len(found)), key=lambda n: -scores[n])
            span = _best_span(reading, order[:SPANS], scores)
        if span is not None:
            order.remove(span.passage)
            order.insert(0, span.passage)
        weights = torch.tensor([scores[n] for n in order]).softmax(0).tolist()
        passages = tuple(found[n] for n in order)
        threshold = settings.threshold
        told = span is not None and (threshold is None or max(reading.log_odds) >= threshold)
        if settings.form == "text" or (settings.form == "auto" and wants_free_text(question)):
            shown = [texts[n] for n in order[:FREE_PASSAGES]]
            text, tokens = self._free_text(question, shown, max_new_tokens, temperature, top_p)
            return TextAnswer(text, passages, tuple(weights), told, tokens)
        if span is None or not told:
            return TextAnswer(NOT_TOLD, passages, tuple(weights), False, 0)
        quoted = texts[span.passage][span.start : span.end]
        first = passages[0].start
        return TextAnswer(
            " ".join(quoted.split()), passages, tuple(weights), True,
            len(self._reader.prompt.answer_ids(quoted)) - 1,
            (first + span.start, first + span.end),
        )  # fmt: skip

    def _free_text(
        self, question: str, passages: Sequence[str], most: int, temperature: float, top_p: float
    ) -> tuple[str, int]:
        """An answer in the bare model's own words, and its tokens."""
        prompt = self._prompt
        ids = prompt.document("\n\n".join(passages)) + prompt.question(question)
        new = generate(
            self.model, ids, None, max_new_tokens=most, temperature=temperature, top_p=top_p
        )
        text: str = prompt.tokenizer.decode(new, skip_special_tokens=True)
        return text.strip(), len(new)


def _best_span(
    reading: PassageReading, passages: Sequence[int], scores: Sequence[float]
) -> QuotedSpan | None:
    """The span with the highest sum of its log-probability and its passage's score."""
    spans = [span for n in passages if (span := reading.span(n)) is not None]
    return max(spans, key=lambda span: span.log_probability + scores[span.passage], default=None)
