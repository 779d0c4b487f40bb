"""An `Esa` without a model that quotes the sentence with most of the question's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fake_asker import FakeAsker

from esa_cli.qa.answering.reply import (
    NOT_TOLD,
    Certainty,
    HeatMap,
    Quotation,
    Reply,
    ShadedSpan,
    Turn,
)
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.words import find_sentence_spans


class QuotingAsker(FakeAsker):
    """Its evidence has true places, so that a page can show them."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._evidence: tuple[Passage, ...] = ()
        self._asked: list[Any] = []
        self.certainty: Certainty | None = None

    def ask(
        self,
        question: str,
        books: Sequence[Any],
        *,
        history: Sequence[Turn] = (),
        evidence: int = 3,
        on_text: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Reply:
        self._asked = list(books)
        super().ask(question, books, history=history, evidence=0, on_text=None, **options)
        words = set(re.findall(r"\w{3,}", question.lower()))
        found = [one for book in books for one in _sentences(book.document, words)]
        found.sort(key=lambda one: -one.weight)
        best, total = found[: max(1, evidence)], sum(one.weight for one in found[:8]) or 1.0
        self._evidence = tuple(
            replace(one, weight=one.weight / total) for one in best if one.weight
        )
        first = self._evidence[0] if self._evidence else None
        text = " ".join(first.text.split()) if first else NOT_TOLD
        self._say(
            [word if i == 0 else f" {word}" for i, word in enumerate(text.split(" "))], on_text
        )
        quoted = (Quotation(first.document, first.start, first.end),) if first else ()
        return Reply(
            text, self._evidence[:evidence], first is not None, len(words), len(text.split()),
            0.1, 0.2, answered_from="text", quotations=quoted, sentences=self.sentences,
            certainty=self.certainty,
        )  # fmt: skip

    def heat_maps(self) -> list[HeatMap]:
        spans: dict[str, list[ShadedSpan]] = {book.document.name: [] for book in self._asked}
        for one in sorted(self._evidence, key=lambda one: one.start):
            spans[one.document].append(
                ShadedSpan(one.start, one.end, max(1, round(8 * one.weight**0.5)))
            )
        return [HeatMap(name, tuple(shaded)) for name, shaded in spans.items()]


def _sentences(document: Any, words: set[str]) -> list[Passage]:
    out = []
    for start, end in find_sentence_spans(document.text):
        same = words & set(re.findall(r"\w{3,}", document.text[start:end].lower()))
        out.append(Passage.cut_from(document, start, end, weight=float(len(same))))
    return out
