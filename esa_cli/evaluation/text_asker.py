"""Answers questions of self-tests and benchmarks from passages that a search finds in a text."""

from __future__ import annotations

import sys
import time

from esa_cli.documents.document import Document
from esa_cli.models import LoadedModel
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.answering.session import Session
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage_finder import Book, add_token_ranges
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.progress import Progress


class TextAnswerer:
    """Answers questions from the relevant passages of one text, as `esa ask` does. Raises
    PresetError, ModelError: the preset's adapter or finder is missing or does not fit."""

    book: Book  # the text that was ingested last, with its index
    nbytes: int  # number of bytes of the token index of the text that was ingested last

    def __init__(self, loaded: LoadedModel, session: Session, preset: Preset) -> None:
        self.session, self.preset = session, preset
        session.empty_cache()
        session.use_preset(preset)
        self._esa = Esa(loaded, preset, session=session)

    def check_question_length(self, question: str) -> None:
        """Raises UsageError: the question is empty. LengthError: the question is too long."""
        assert self._esa.spans is not None
        self._esa.spans.count_question_tokens(question)

    def index_text(self, text: str, progress: Progress | None = None) -> float:
        """Indexes a text for later questions, and returns the seconds that this took."""
        started = time.perf_counter()
        self.session.empty_cache()
        self.session.use_preset(self.preset)
        book = self._esa.ingest(Document("", text, source="", encoding="", bytes=0), progress)
        self._esa.search.get_passage_finder(add_token_ranges([book]))
        if progress is not None and not book.read:
            progress(len(book.spans), len(book.spans))
        self.book, self.nbytes = book, 0 if book.index is None else book.index.nbytes
        return time.perf_counter() - started

    def ask(self, question: str) -> Reply:
        """Answers a question; all passages read are evidence. Raises LengthError, UsageError."""
        return self._esa.ask(question, [self.book], evidence=sys.maxsize)
