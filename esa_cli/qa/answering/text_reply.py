"""A reply from passages that were read again as text: its evidence and the tokens it rests on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from esa_cli.qa.answering.answer_from_text import TextAnswer, TextAnswers
from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.answering.question_form import completed, referred_to
from esa_cli.qa.answering.reply import Evidence, Quotation, Reply, Turn
from esa_cli.qa.books import PlacedBook
from esa_cli.qa.collecting.collection import Collection, HowToCollect
from esa_cli.qa.collecting.passage_sieve import WHOLE, chosen_passages
from esa_cli.qa.collecting.told_spans import LEAST, LogOddsDecision, WrittenDecision
from esa_cli.qa.finding.passage_finder import token_bounds
from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.passage_search import PassageSearch
from esa_cli.qa.presets.generation_choice import chosen_generation
from esa_cli.qa.second_model.answer_reader import (
    MOST_PASSAGES,
    AnswerReader,
    Sampling,
    WrittenAnswer,
)


class TextReplies:
    """Replies from text of one model with its preset.

    Args:
        reader: another model that words the answers; None: this model does. search: what
            finds the passages; None: by their words alone.

    Raises:
        PresetError, ModelError: the adapter is missing, cannot be read or is of another model.
    """

    def __init__(
        self,
        lazy: LazySession,
        reader: AnswerReader | None = None,
        search: PassageSearch | None = None,
    ) -> None:
        self._lazy, self._reader = lazy, reader
        self._answers = TextAnswers(lazy, search)

    def prepare(self, books: Sequence[PlacedBook]) -> None:
        """Makes the finder of these books, which the next question about them uses."""
        self._answers.search.finder(books)

    def check(self, question: str, max_new_tokens: int) -> None:
        """Checks a question without a document. Raises UsageError, LengthError: as `ask`."""
        self._answers.check(question, max_new_tokens)

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        """Tokens of a question, and of the texts of the turns before it. Raises: as `check`."""
        texts, count = [text for turn in history for text in turn], self._answers.check(question, 1)
        if texts:
            ids = self._lazy.tokenizer(texts, add_special_tokens=False, verbose=False)
            count += sum(map(len, ids["input_ids"]))
        return count

    def ask(
        self,
        question: str,
        books: Sequence[PlacedBook],
        *,
        history: Sequence[Turn] = (),
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        evidence: int = 3,
        on_text: Callable[[str], None] | None = None,
    ) -> tuple[Reply, Tensor]:
        """The reply to one question, and the weights (N,) of the cached tokens.

        Args: those of `reply.Asker.ask`.

        Raises:
            UsageError: the question is empty, or a setting is out of range. LengthError: it is too
                long. ReaderError: the reader gives no answer.
        """
        lazy, started = self._lazy, time.perf_counter()
        tokens, heat, nucleus = chosen_generation(
            lazy.preset.generation, max_new_tokens, temperature, top_p
        )
        answers = self._answers
        asked = answers.check(question, tokens)
        told = TimedText(on_text)
        write = None
        if self._reader is not None:
            sampling = Sampling(max_new_tokens, heat, nucleus, seed)
            write = partial(self._write, question, books, history, sampling, told)
        whole = completed(question, history)
        votes = answers.search.votes(whole, books)
        read = all(one.index is not None for one in books)
        with lazy.suspended():
            found = answers.answer(
                whole, books, earlier=referred_to(question, history), votes=votes,
                max_new_tokens=tokens, temperature=heat, top_p=nucleus, seed=seed, on_text=told,
                write=write,
            )  # fmt: skip
        first, spent = (told.first or started) - started, time.perf_counter() - started
        reply = Reply(
            found.text, _evidence(found, books, evidence), found.found, asked, found.tokens, first,
            spent, found.cut, "text", _quotation(found, books), read,
        )  # fmt: skip
        return reply, token_weights(found, books)

    def collect(
        self, question: str, books: Sequence[PlacedBook], **how: Unpack[HowToCollect]
    ) -> Collection:
        """The places of these books that fit a question; see `api.Esa.collect`."""
        lazy, search = self._lazy, self._answers.search
        self.check(question, 1)
        minimum, every = how.get("minimum"), how.get("every", False)
        with lazy.suspended():
            chosen = chosen_passages(search, question, books, minimum, every)
        decision: LogOddsDecision | WrittenDecision
        if self._reader is None:
            least, few = how.get("least", LEAST), chosen.total <= WHOLE
            decision = LogOddsDecision(self._answers.reader, question, least, few)
        else:
            decision = WrittenDecision(partial(self._write_from, question))
        return Collection(
            chosen, books, decision,
            alone=lazy.suspended,
            progress=how.get("progress"), after=how.get("after"),
        )  # fmt: skip

    def _write_from(self, question: str, passage: Evidence) -> WrittenAnswer:
        """The reader's answer from one passage."""
        assert self._reader is not None
        _, heat, nucleus = chosen_generation(self._lazy.preset.generation, None, None, None)
        sampling = Sampling(None, heat, nucleus)
        return self._reader.write(question, [passage], (), sampling)

    def _write(
        self,
        question: str,
        books: Sequence[PlacedBook],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None],
        passages: Sequence[FoundPassage],
    ) -> WrittenAnswer:
        """The reader's answer from the best passages."""
        assert self._reader is not None
        shown = [
            Evidence.of(books[one.document].document, one.start, one.end, 0.0)
            for one in passages[:MOST_PASSAGES]
        ]
        return self._reader.write(question, shown, history, sampling, on_text)


class TimedText:
    """Passes pieces of an answer on; `first` is the time of the first, None before."""

    def __init__(self, on_text: Callable[[str], None] | None) -> None:
        self.on_text = on_text
        self.first: float | None = None

    def __call__(self, piece: str) -> None:
        self.first = self.first or time.perf_counter()
        if self.on_text is not None:
            self.on_text(piece)


def text_replies(
    lazy: LazySession, reader: AnswerReader | None = None, search: PassageSearch | None = None
) -> TextReplies | None:
    """Replies from text, where the preset answers so. Raises: as `TextReplies`."""
    return TextReplies(lazy, reader, search) if lazy.preset.answer.source == "text" else None


def token_weights(found: TextAnswer, books: Sequence[PlacedBook]) -> Tensor:
    """(N,) of the cached tokens: each passage's weight, shared evenly by its tokens."""
    out = torch.zeros(max(book.rows.stop for book in books))
    for one, weight in zip(found.passages, found.weights, strict=True):
        book = books[one.document]
        first, last = token_bounds(book.spans, torch.tensor([(one.start, one.end)]))
        if count := int(last - first):
            start = book.rows.start + int(first)
            out[start : start + count] += weight / count
    return out


def _evidence(found: TextAnswer, books: Sequence[PlacedBook], count: int) -> tuple[Evidence, ...]:
    return tuple(
        Evidence.of(books[one.document].document, one.start, one.end, weight)
        for one, weight in zip(found.passages[:count], found.weights, strict=False)
    )


def _quotation(found: TextAnswer, books: Sequence[PlacedBook]) -> Quotation | None:
    if found.span is None:
        return None
    return Quotation(books[found.passages[0].document].document.name, *found.span)
