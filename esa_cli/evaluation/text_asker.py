"""Answers questions of self-tests and benchmarks from passages that a search finds in a text."""

from __future__ import annotations

import sys
from typing import Any

from esa_cli.documents.document import Document
from esa_cli.models import LoadedModel
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.answering.session import Session
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage_finder import Book, add_token_ranges
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.progress import Progress


class TextAnswerer:
    """Answers questions from the relevant passages of one text, as `esa ask` does, by methods that
    are called as those of a `Session`. Raises PresetError, ModelError: the preset's adapter or
    finder is missing or does not fit."""

    book: Book  # the text that was read last, with its index

    def __init__(self, loaded: LoadedModel, session: Session, preset: Preset) -> None:
        self.session = session
        self._esa = Esa(loaded, preset, session=session)

    @property
    def document_tokens(self) -> int:
        return len(self.book.spans)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the text's token index."""
        return 0 if self.book.index is None else self.book.index.nbytes

    def check_length(self, question: str, prime: str, max_new_tokens: int | None) -> None:
        """Raises UsageError: the question is empty. LengthError: the question is too long."""
        assert self._esa.spans is not None
        self._esa.spans.count_question_tokens(question)

    def read(self, text: str, progress: Progress | None = None, method: object = None) -> None:
        """Indexes a text for later questions."""
        self.session.empty_cache()
        book = self._esa.ingest(Document("", text, source="", encoding="", bytes=0), progress)
        self._esa.search.get_passage_finder(add_token_ranges([book]))
        if progress is not None and not book.read:
            progress(len(book.spans), len(book.spans))
        self.book = book

    def ask(self, question: str, **session_options: Any) -> Reply:
        """Answers a question; all passages read are evidence. Raises LengthError, UsageError."""
        return self._esa.ask(question, [self.book], evidence=sys.maxsize)
