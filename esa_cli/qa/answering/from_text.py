"""Answers questions from passages that are found and read again as text.

    question -> PassageFinder -> PassageReader: log-odds, span -> the most probable span,
                                                 free text, or another model's words

Only finding uses a token index; the text of the passages is read anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from esa_cli.errors import LengthError
from esa_cli.models.generation import Streamer, end_ids, generate
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.answering.question_form import completed, referred_to, wants_free_text
from esa_cli.qa.answering.reply import NOT_TOLD, Evidence, Quotation, Reply, Turn, says_not_told
from esa_cli.qa.books import Book
from esa_cli.qa.collecting.collection import Collection, HowToCollect
from esa_cli.qa.collecting.told_spans import (
    LEAST,
    WHOLE,
    LogOddsDecision,
    WrittenDecision,
    chosen_passages,
)
from esa_cli.qa.finding.passage_finder import PassageFinder, PassageSearch, token_bounds
from esa_cli.qa.finding.windows import FoundPassage
from esa_cli.qa.finding.words import small_words
from esa_cli.qa.presets.adapter_files import adapter_folder
from esa_cli.qa.presets.preset import chosen_generation
from esa_cli.qa.reading.reader import PassagePrompt, PassageReader, clipped, one_line, read_passages
from esa_cli.qa.second_model.answer_reader import MOST_PASSAGES, AnswerReader, Sampling

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


class _Answer(NamedTuple):
    """An answer's text, whether a passage seems to tell it, its tokens, whether it ended at the
    longest allowed, and the quoted characters of the first passage's document."""

    text: str
    found: bool
    tokens: int
    cut: bool = False
    span: tuple[int, int] | None = None


class TextReplies:
    """Answers questions from passages of text, with one model and its preset.

    Args:
        lazy: the model, which is bare while it answers, and its preset. writer: another model that
            words the answers; None: this model quotes them. search: what finds the passages; None:
            by their words alone.

    Raises:
        PresetError, ModelError: the adapter is missing, cannot be read or is of another model.
    """

    def __init__(
        self,
        lazy: LazySession,
        writer: AnswerReader | None = None,
        search: PassageSearch | None = None,
    ) -> None:
        model, settings = lazy.text_model, lazy.preset.answer
        self._lazy, self._writer, self._settings = lazy, writer, settings
        self._search, self._small = search or PassageSearch(), small_words(lazy.tokenizer)
        adapter = None
        if settings.adapter is not None:
            adapter = LoraAdapter.load(adapter_folder(settings.adapter), model)
            adapter.to(next(model.parameters()))
        prompt = PassagePrompt(
            lazy.tokenizer, settings.prompt, settings.unanswered, settings.shown_examples
        )
        self.reader = PassageReader(model, prompt, adapter, lazy.window, fixed=True)

    def prepare(self, books: Sequence[Book]) -> None:
        """Makes the finder of these books, which the next question about them uses."""
        self._search.finder(books)

    def check(self, question: str, max_new_tokens: int) -> int:
        """Tokens of the question in the preset's prompt, checked to leave room for passages.

        Args:
            max_new_tokens: of free text; spans are short.

        Raises:
            UsageError: it is empty, or no text. LengthError: it is too long.
        """
        window = self._lazy.window
        tokens = len(self._lazy.prompt.question(question))
        need = max(tokens, len(self.reader.prompt.ids(question, ""))) + min(ROOM, window // 2)
        need += max_new_tokens if self._is_free(question) else 0
        if need > window:
            raise LengthError(
                f"the question, a passage and the answer take {need:,} tokens; the model's window "
                f"has {window:,}",
                "ask a shorter question, or for a shorter answer",
            )
        return tokens

    def _is_free(self, question: str) -> bool:
        form = self._settings.form
        return form == "text" or (form == "auto" and wants_free_text(question))

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        """Tokens of a question, and of the texts of the turns before it. Raises: as `check`."""
        texts, count = [text for turn in history for text in turn], self.check(question, 1)
        if texts:
            ids = self._lazy.tokenizer(texts, add_special_tokens=False, verbose=False)
            count += sum(map(len, ids["input_ids"]))
        return count

    def ask(
        self,
        question: str,
        books: Sequence[Book],
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

        Args:
            Those of `reply.Asker.ask`. max_new_tokens, temperature, top_p and seed are of free text
            and of another model's words; spans are always the most probable.

        Raises:
            UsageError: the question is empty, or a setting is out of range. LengthError: it is too
                long. ReaderError: the other model gives no answer.
        """
        started = time.perf_counter()
        tokens, heat, nucleus = chosen_generation(
            self._lazy.preset.generation, max_new_tokens, temperature, top_p
        )
        asked, timed = self.check(question, tokens), TimedText(on_text)
        whole = completed(question, history)
        with torch.inference_mode(), self._lazy.suspended():
            finder = self._search.finder(books)
            passages = self._read(whole, books, finder, referred_to(question, history))
            told = self._is_told(whole, passages, finder)
            if self._writer is not None and passages:
                shown = [_evidence(books, one) for one in passages[:MOST_PASSAGES]]
                sampling = Sampling(max_new_tokens, heat, nucleus, seed)
                words = self._writer.write(question, shown, history, sampling, timed)
                found = not says_not_told(words.text)
                answer = _Answer(words.text, found, words.tokens, words.cut)
            elif passages and self._is_free(whole):
                shown_text = "\n\n".join(_text(books, one) for one in passages[:FREE_PASSAGES])
                sampling = Sampling(tokens, heat, nucleus, seed)
                answer = self._free_text(whole, shown_text, told, sampling, timed)
            else:
                answer = self._quoted(books, passages) if told else _Answer(NOT_TOLD, False, 0)
                timed(answer.text)
        weights = torch.tensor([one.score for one in passages]).softmax(0).tolist()
        quotation = None
        if answer.span is not None:
            quotation = Quotation(books[passages[0].document].document.name, *answer.span)
        shown = [
            _evidence(books, one, weight)
            for one, weight in zip(passages[:evidence], weights, strict=False)
        ]
        reply = Reply(
            answer.text, tuple(shown), answer.found, asked, answer.tokens,
            (timed.first or started) - started, time.perf_counter() - started,
            answer.cut, "text", quotation, all(book.index is not None for book in books),
        )  # fmt: skip
        return reply, token_weights(passages, weights, books)

    def _read(
        self, question: str, books: Sequence[Book], finder: PassageFinder, earlier: str
    ) -> list[FoundPassage]:
        """The passages that were found and read, that of the best span first.

        Args:
            earlier: text of earlier turns that the question refers to.
        """
        settings = self._settings
        reduced = self._search.reduced(f"{earlier} {question}".strip(), books)
        found = finder.find(question, settings.passages, earlier=earlier, reduced=reduced)
        return read_passages(
            self.reader, question, found, [_text(books, one) for one in found],
            prior=settings.prior, spans=SPANS if self._writer is None else 0,
        )  # fmt: skip

    def _is_told(
        self, question: str, passages: Sequence[FoundPassage], finder: PassageFinder
    ) -> bool:
        """Whether the first passage seems to tell an answer."""
        if not passages or passages[0].span is None:
            return False
        threshold = self._settings.threshold
        doubt = UNMENTIONED * finder.unmentioned(question, self._small)
        return threshold is None or passages[0].log_odds - doubt >= threshold

    def _quoted(self, books: Sequence[Book], passages: Sequence[FoundPassage]) -> _Answer:
        """The span of the first passage."""
        best = passages[0]
        assert best.span is not None
        start, end = best.start + best.span.start, best.start + best.span.end
        quoted = books[best.document].document.text[start:end]
        tokens = len(self.reader.prompt.answer_ids(quoted)) - 1
        return _Answer(one_line(quoted), True, tokens, span=(start, end))

    def _free_text(
        self, question: str, passages: str, told: bool, sampling: Sampling,
        on_text: Callable[[str], None],
    ) -> _Answer:  # fmt: skip
        """An answer in the bare model's own words."""
        model, prompt, most = self._lazy.model, self._lazy.prompt, sampling.max_new_tokens or 0
        asked, streamer = prompt.question(question), Streamer(prompt.tokenizer, on_text)
        room = self._lazy.window - len(asked) - most
        passages = clipped(passages, room, lambda text: len(prompt.document(text)))
        generate(
            model, prompt.document(passages) + asked, None, max_new_tokens=most,
            temperature=sampling.temperature, top_p=sampling.top_p, seed=sampling.seed,
            streamer=streamer,
        )  # fmt: skip
        cut = streamer.count >= most and streamer.last not in end_ids(model)
        return _Answer(streamer.text.strip(), told, streamer.count, cut)

    def collect(
        self, question: str, books: Sequence[Book], **how: Unpack[HowToCollect]
    ) -> Collection:
        """The places of these books that fit a question; see `api.Esa.collect`."""
        lazy, writer = self._lazy, self._writer
        self.check(question, 1)
        minimum, every = how.get("minimum"), how.get("every", False)
        with lazy.suspended():
            chosen = chosen_passages(self._search, question, books, minimum, every)
        decision: LogOddsDecision | WrittenDecision
        if writer is None:
            least, few = how.get("least", LEAST), chosen.total <= WHOLE
            decision = LogOddsDecision(self.reader, question, least, few)
        else:
            _, heat, nucleus = chosen_generation(lazy.preset.generation, None, None, None)
            sampling = Sampling(None, heat, nucleus)
            decision = WrittenDecision(lambda one: writer.write(question, [one], (), sampling))
        return Collection(
            chosen, books, decision,
            alone=lazy.suspended, progress=how.get("progress"), after=how.get("after"),
        )  # fmt: skip


class TimedText:
    """Passes pieces of an answer on; `first` is the time of the first, None before."""

    def __init__(self, on_text: Callable[[str], None] | None) -> None:
        self.on_text = on_text
        self.first: float | None = None

    def __call__(self, piece: str) -> None:
        self.first = self.first or time.perf_counter()
        if self.on_text is not None:
            self.on_text(piece)


def token_weights(
    passages: Sequence[FoundPassage], weights: Sequence[float], books: Sequence[Book]
) -> Tensor:
    """(N,) of the cached tokens: each passage's weight, shared evenly by its tokens."""
    out = torch.zeros(max(book.rows.stop for book in books))
    for one, weight in zip(passages, weights, strict=True):
        book = books[one.document]
        first, last = token_bounds(book.spans, torch.tensor([(one.start, one.end)]))
        if count := int(last - first):
            start = book.rows.start + int(first)
            out[start : start + count] += weight / count
    return out


def _text(books: Sequence[Book], one: FoundPassage) -> str:
    return books[one.document].document.text[one.start : one.end]


def _evidence(books: Sequence[Book], one: FoundPassage, weight: float = 0.0) -> Evidence:
    return Evidence.of(books[one.document].document, one.start, one.end, weight)
