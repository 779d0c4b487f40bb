"""The Python interface: read documents once, ask as often as you like, see what answers rest on.

    with Esa.load() as esa:
        book = esa.ingest("book.pdf")
        reply = esa.ask("Who is Ahab?", [book])
        print(reply.text, reply.evidence[0].page)

A book is read on its own: with a library once for ever; without one it stays in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Unpack

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.errors import UsageError
from esa_cli.models.text_passes.layer_calls import before_each_layer
from esa_cli.qa.answering.from_text import TextReplies
from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.answering.reply import HeatMap, Reply, Turn
from esa_cli.qa.books import Book, distinct, place_books
from esa_cli.qa.collecting.collection import Collection, HowToCollect
from esa_cli.qa.evidence.evidence import heat_maps, reply_from_rows
from esa_cli.qa.finding.finder import load_finder
from esa_cli.qa.finding.passage_finder import COUNT, Passage, PassageSearch
from esa_cli.qa.ingestion.index_ingest import IndexIngest
from esa_cli.qa.ingestion.ingest import Ingest, IngestEvents, ProgressEvents, Source
from esa_cli.qa.ingestion.row_ingest import RowIngest
from esa_cli.qa.model_opening import open_model
from esa_cli.qa.planning.plan import Planner
from esa_cli.qa.presets.preset import DEFAULT, Preset
from esa_cli.qa.presets.resolved_preset import ResolvedPreset, resolve
from esa_cli.qa.second_model.answer_reader import AnswerReader
from esa_cli.qa.second_model.reader_choice import ReaderChoice, check_passages_for
from esa_cli.storage.library import Entry, Library
from esa_cli.system.progress import Progress

if TYPE_CHECKING:  # it imports transformers' models
    from torch import Tensor

    from esa_cli.qa.answering.session import Session


class Esa:
    """A model with a method, and the documents it has read. Not thread-safe.

    Args:
        loaded: of `models.load`. preset: the method, the prompt, the model's window.
        library: where documents are looked for; None: nowhere. keep: put those there that are not.
        rows: how: `int8`, or `native` bit for bit. See docs/library.md for what it loses.
        events: the observer of ingests. planner: what is read must fit its memory; None: nobody
            looks. reader: another model that words the answers.

    Raises:
        ModelError: the model cannot be supported, or adapter or finder not be read. PresetError:
            the method does not hold, or there is no such adapter or finder. UsageError: there is a
            reader, and the preset answers from rows.
    """

    def __init__(
        self,
        loaded: models.LoadedModel | models.DeferredModel,
        preset: Preset | ResolvedPreset,
        *,
        library: Library | None = None,
        keep: bool = True,
        rows: str = "int8",
        events: IngestEvents | None = None,
        planner: Planner | None = None,
        reader: AnswerReader | None = None,
    ) -> None:
        resolved = resolve(preset)
        check_passages_for(reader, resolved.preset)
        self.preset, self.loaded = resolved.preset, loaded
        self._lazy = LazySession.of(loaded, resolved)
        self.reader = reader
        self._last: tuple[Sequence[Book], Tensor] | None = None
        try:
            lazy, answer = self._lazy, self.preset.answer
            encoder = load_finder(answer, lazy.text_model, lazy.tokenizer)
            self._search, self._text = PassageSearch(encoder, answer.words), None
            if answer.source == "text":
                self._text = TextReplies(lazy, reader, self._search)
            given = lazy, library, keep, events, planner
            self.documents: Ingest = RowIngest(rows, *given)
            if encoder is not None:
                self.documents = IndexIngest(encoder, *given)
        except BaseException:
            self._lazy.close()
            raise

    @classmethod
    def load(
        cls, name: str = DEFAULT, overrides: Sequence[str] = (), *, method: str | None = None,
        model: str | None = None, length: int = 0, device: str = "auto", dtype: str = "auto",
        cache: str = "auto",
        library: Library | None = None, keep: bool = True, rows: str = "int8",
        reader: str | None = None, reader_model: str | None = None,
        progress: Progress | None = None,
    ) -> Esa:  # fmt: skip
        """Loads a preset and its model, fetching the model if need be. Each document is held to the
        memory there is now before it is read; see `plan`.

        Args:
            name: a preset's name or path. overrides: `key.path=value` texts.
            method: a whole method over the preset, by its name in `esa methods`.
            model: words the answers from the passages that the preset finds, or runs its method.
            length: tokens of the documents, for methods made for one. cache: as --cache.
            library: `Library()` is the user's own; None keeps what is read in memory.
            reader: another model that words the answers, as --reader; `reader_model`: on a server.

        Raises UsageError: no such device, dtype or method, or it needs a length. PresetError,
        ModelError, ResourceError. ReaderError: the server cannot be used."""
        if model is not None:
            overrides = [f"model={json.dumps(model)}", *overrides]
        choice = None if reader is None else ReaderChoice(reader, reader_model)
        loaded, resolved, planner, other = open_model(
            name, overrides, method, length, device, dtype, choice, cache
        )
        return cls(
            loaded, resolved, library=library, keep=keep, rows=rows,
            events=ProgressEvents(progress), planner=planner, reader=other,
        )  # fmt: skip

    def __enter__(self) -> Esa:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Restores the model, and ends the connections of the reader."""
        self._lazy.close()
        if self.reader is not None:
            self.reader.close()

    @property
    def session(self) -> Session:
        """Runs the method; made, with the model of transformers, when it is first needed."""
        return self._lazy.session

    @property
    def cached_tokens(self) -> int:
        """Tokens of the documents whose rows were asked last; 0: their text was."""
        return self._lazy.document_tokens

    @property
    def name(self) -> str:
        """The model's name, as a person knows it."""
        return models.parse_reference(self.preset.model).name

    @property
    def answers_unread(self) -> bool:
        """Whether a document can be asked before it is read."""
        return not self.preset.answer.needs_rows

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        """Tokens of a question with its earlier turns; see `reply.Asker`."""
        return (self._text or self.session).question_tokens(question, history)

    def interruptible(self, on_step: Callable[[], None]) -> AbstractContextManager[None]:
        """Calls `on_step` while the model computes; see `reply.Asker`."""
        return before_each_layer(self.loaded.text_model, on_step)

    def find(self, document: Document) -> Book | None:
        """The document's book, if it is in the library. Raises LibraryError: it is damaged."""
        return self.documents.find(document)

    def stored(self, entry: Entry) -> Book:
        """A book of the library, whatever became of its file. Raises UsageError: it was read by
        another model or method. LibraryError: it is damaged."""
        return self.documents.stored(entry)

    def open(self, source: Source) -> Book:
        """A book that can be asked at once: found in the library, else with its text alone, to be
        read by `ingest` later. Where answers need rows, it is read now. Raises: as `ingest`."""
        self._lazy.forget()
        return self.documents.open(source)

    def ingest(self, source: Source, progress: Progress | None = None) -> Book:
        """A book: found in the library, or read now; and put there, where `keep` says so. Where
        answers come from text and there is no token index, only what is stored is read.

        Args:
            source: a path, - for standard input, a document, or one that is tokenised already.
            progress: called while it is read, after the one that all readings have; with 0 every
                half second while another process reads the same document into the library. What it
                raises ends reading or waiting and passes through; the library keeps what was read.

        Raises DocumentError: it cannot be read. ResourceError: memory or disk lacks room.
        LibraryError: it is in the library, and damaged."""
        self._lazy.forget()
        return self.documents.ingest(source, progress)

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
    ) -> Reply:
        """Answers one question about some books, all at once; see `reply.Asker`."""
        if not (books := distinct(books)):
            raise UsageError("no document to ask about", "ingest one first")
        if len(books) > 1:
            self._lazy.check_asked_together()
        asking: dict[str, Any] = {
            "max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p,
            "seed": seed, "history": history, "on_text": on_text,
        }  # fmt: skip
        if self._text is None:
            self._lazy.use(books)
            reply, weights = reply_from_rows(
                self.session, question, self.placed(books), evidence, **asking
            )
        else:
            reply, weights = self._text.ask(
                question, self.placed(books), evidence=evidence, **asking
            )
        self._last = books, weights
        return reply

    def find_passages(
        self, question: str, books: Sequence[Book], count: int | None = COUNT,
        minimum: float | None = None,
    ) -> list[Passage]:  # fmt: skip
        """The passages of some books that fit a question; see `PassageSearch.passages`.
        Raises UsageError: there is no book, or the question is empty or too long."""
        self.question_tokens(question)  # checks it
        with self._lazy.suspended():
            return self._search.passages(question, self.placed(distinct(books)), count, minimum)

    def collect(
        self, question: str, books: Sequence[Book], **how: Unpack[HowToCollect]
    ) -> Collection:
        """An iterator of every place of some books that fits a question; see `HowToCollect`.
        Raises UsageError: there is no book, the question is empty or too long, or the preset
        answers from rows."""
        if self._text is None:
            raise UsageError("places are collected from text", "use the setting answer.from=text")
        return self._text.collect(question, self.placed(distinct(books)), **how)

    def report(self, reply: Reply, question: str, books: Sequence[Book]) -> str:
        """The last answer as an HTML page: the documents with a heat map of attention."""
        from esa_cli.qa.evidence.evidence_page import evidence_page

        return evidence_page(reply, question, *self._weighed(books))

    def heat_maps(self, books: Sequence[Book]) -> list[HeatMap]:
        """The heat maps of the last answer; see `reply.Asker`."""
        return heat_maps(*self._weighed(books))

    def _weighed(self, books: Sequence[Book]) -> tuple[list[Book], Tensor]:
        """The placed books of the last answer, and the weights (N,) of their tokens. Raises
        UsageError: it was not about these books."""
        books = distinct(books)
        if self._last is None or list(map(id, books)) != list(map(id, self._last[0])):
            raise UsageError("a report is of the last answer", "ask about these books first")
        return self.placed(books), self._last[1]

    def placed(self, books: Sequence[Book]) -> list[Book]:
        """These books, each with its place in the cache of a question about them."""
        return place_books(books)
