"""An `Esa` without a model: says what it was asked, word by word, as slowly as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import HistoryError, UsageError
from esa_cli.qa.answering.reply import CheckedSentence, Reply, Turn
from esa_cli.qa.finding.passage import Passage


class FakeBook(str):
    """A document's text, with the document."""

    document: Document


def fake_book(text: str, document: Document | None = None) -> FakeBook:
    """A book of words, of this document or of one with the text alone."""
    book = FakeBook(text)
    book.document = document or Document("", text, source=text, encoding="", bytes=0)
    return book


class FakeAsker:
    """Answers `You asked: <question>`, or what `answers` has for the question.

    Args:
        room: words of history and question that fit.
        delay: seconds before each word, said or read. A document has `words` of them.

    `question_delay`: seconds for each word of a question.
    """

    name = "fake-model"
    reader, spans = None, None
    answers_unread = False
    reader: object = None

    def __init__(self, room: int = 1000, delay: float = 0.0) -> None:
        self.room, self.delay = room, delay
        self.answers: dict[str, str] = {}
        self.failures: dict[str, BaseException] = {}
        self.found = True
        self.sentences: tuple[CheckedSentence, ...] = ()
        self.ingested: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.spoken: list[str] = []
        self.words, self.read = 0, 0
        self.stopped = 0
        self.on_step: Callable[[], None] = lambda: None
        self.question_delay = 0.0
        self.running = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        return sum(len(f"{a} {b}".split()) for a, b in history) + len(question.split())

    @contextmanager
    def interruptible(self, on_step: Callable[[], None]) -> Iterator[None]:
        self.on_step = on_step
        try:
            yield
        finally:
            self.on_step = lambda: None

    def open(self, source: str | Document) -> str:
        document = source if isinstance(source, Document) else read_document(source)
        return fake_book(document.text, document)

    def ingest(
        self,
        source: str | Document,
        progress: Callable[[int, int], None] | None = None,
        *,
        keep: bool | None = None,
    ) -> str:
        document = source if isinstance(source, Document) else read_document(source)
        self.ingested.append(document.source)
        try:
            for done in range(1, self.words + 1):
                time.sleep(self.delay)
                if progress is not None:
                    progress(done, self.words)
                self.read += 1
        except BaseException:
            self.stopped += 1
            raise
        return fake_book(document.text, document)

    def ask(
        self,
        question: str,
        books: Sequence[Any],
        *,
        history: Sequence[Turn] = (),
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        evidence: int = 3,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        self.calls.append(
            {
                "question": question, "books": list(books), "history": list(history),
                "max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p,
                "seed": seed, "evidence": evidence,
            }
        )  # fmt: skip
        if not books or not question.strip():
            raise UsageError("nothing to ask")
        words = self.question_tokens(question, history)
        if words > self.room:
            raise HistoryError("with its history") if history else UsageError("it is too long")
        if question in self.failures:
            raise self.failures[question]
        self.running.set()
        self._read_question(question)
        text = self.answers.get(question, f"You asked: {question}")
        said = [word if i == 0 else f" {word}" for i, word in enumerate(text.split(" "))]
        whole = said[: max_new_tokens or len(said)]
        self._say(whole, on_text)
        return Reply(
            "".join(whole), passages(books, evidence), self.found, words, len(whole), 0.1, 0.2,
            cut=len(whole) < len(said), sentences=self.sentences,
        )  # fmt: skip

    def _read_question(self, question: str) -> None:
        try:
            for _ in question.split():
                time.sleep(self.question_delay)
                self.on_step()
        except BaseException:
            self.stopped += 1
            raise

    def _wait(self) -> None:
        """In short steps: a signal just before a long wait would be heard after it only."""
        until = time.monotonic() + 20
        while not self.gate.wait(0.02) and time.monotonic() < until:
            pass

    def _say(self, pieces: Sequence[str], on_text: Callable[[str], None] | None) -> None:
        try:
            for piece in pieces:
                time.sleep(self.delay)
                self._wait()
                if on_text is not None:
                    on_text(piece)
                self.spoken.append(piece)
        except BaseException:
            self.stopped += 1
            raise


def passages(books: Sequence[Any], count: int) -> tuple[Passage, ...]:
    made = []
    for rank, book in zip(range(count), list(books) * count, strict=False):
        name, text = f"book{rank}.txt", f"passage {rank}\nof {book}"
        made.append(Passage(name, name, rank + 1, 10 * rank + 1, "One", 0, 9, text, weight=0.5))
    return tuple(made)
