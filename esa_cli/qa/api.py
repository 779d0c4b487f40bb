"""The Python interface, which ingests documents once and answers any number of questions.

Importing this module does not import torch, which the class `Esa` imports when it is used."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from esa_cli import models
from esa_cli.documents.document import Document, read_document, read_documents
from esa_cli.documents.outline import Section, find_sections
from esa_cli.errors import DocumentError, UsageError
from esa_cli.qa.answering.reply import HeatMap, Reply, Turn
from esa_cli.qa.finding.passage import Passage

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from esa_cli.models.cross_encoder import CrossEncoder
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.collecting import Collection, EarlierRun
    from esa_cli.qa.finding.passage_finder import Book
    from esa_cli.qa.ingestion.ingest import DocumentIngester, IngestEvents, Source
    from esa_cli.qa.opening import CheckedPreset, LoadingObserver
    from esa_cli.qa.planning.plan import IngestPlanner
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset
    from esa_cli.qa.reading.reader import Reader
    from esa_cli.qa.reading.reader_choice import ReaderChoice
    from esa_cli.storage.library import Library, LibraryEntry
    from esa_cli.system.progress import Progress

AskedDocuments: TypeAlias = "Book | Source | Sequence[Book | Source]"
"""One or several documents of a question; see `Esa.ask`."""


class Esa(AbstractContextManager["Esa"]):
    """Answers questions about documents with a preset's finder and model. It is not thread-safe.

    Args:
        loaded: the model from `models.load`.
        preset: the method, the prompt, the model's window.
        library: where ingested documents are looked up. keep: whether new ones are stored there.
        rows: the format of stored KV caches: `int8`, or `native` for exact copies.
        events: observes each ingest. planner: checks that documents fit into memory.
        reader: another model that writes the answers. session: an open session of the model.

    Raises ModelError, PresetError: model, method, adapter or finder cannot be used. UsageError: a
    reader is set, but the preset answers from the KV cache."""

    def __init__(
        self, loaded: models.LoadedModel, preset: Preset | ResolvedPreset, *,
        library: Library | None = None, keep: bool = True, rows: str = "int8",
        events: IngestEvents | None = None, planner: IngestPlanner | None = None,
        reader: Reader | None = None, session: Session | None = None,
    ) -> None:  # fmt: skip
        from esa_cli.qa.finding.finder_choice import load_finder, load_ranking
        from esa_cli.qa.finding.passage_finder import PassageSearch
        from esa_cli.qa.ingestion.ingest import TokenIndexIngester
        from esa_cli.qa.ingestion.kv_cache_ingest import KvCacheIngester
        from esa_cli.qa.passage_answers import PassageAnswerer
        from esa_cli.qa.presets.resolved_preset import resolve_preset
        from esa_cli.qa.reading.reader_choice import check_reader_gets_passages
        from esa_cli.qa.reading.span import SpanReader

        resolved = resolve_preset(preset)
        check_reader_gets_passages(reader, resolved.preset)
        self.preset, self.resolved = resolved.preset, resolved
        self.loaded, self.tokenizer, self.reader = loaded, loaded.tokenizer, reader
        self.name = models.parse_reference(self.preset.model).name  # of the model, for display
        answer, model = self.preset.answer, loaded.text_model
        encoder = load_finder(answer, model, self.tokenizer)
        self.search = PassageSearch(encoder, load_ranking(answer))
        self.spans = None if answer.needs_kv_cache else SpanReader(loaded, self.preset)
        # Whether questions can be asked about a document that is not ingested yet.
        self.answers_unread = not answer.needs_kv_cache
        self.answerer = PassageAnswerer(self)
        host = self, library, keep, events, planner
        self.documents: DocumentIngester = (
            KvCacheIngester(rows, *host) if encoder is None else TokenIndexIngester(encoder, *host)
        )
        self._reranker: CrossEncoder | None = None
        self._last: tuple[Sequence[Book], Tensor] | None = None  # of the last answer, with weights
        self._session = session
        if answer.needs_kv_cache:
            self._session = self.session

    @classmethod
    def load(
        cls, name: str = "default", overrides: Sequence[str] = (), *, method: str | None = None,
        model: str | None = None, length: int = 0, device: str = "auto", dtype: str = "auto",
        cache: str = "auto", library: Library | bool | None = True, keep: bool | None = None,
        rows: str = "int8", reader: str | None = None, reader_model: str | None = None,
        finder: str | None = None, progress: Progress | None = None,
    ) -> Esa:  # fmt: skip
        """Loads the model of a preset, which is downloaded if it is not on this machine.

        Args:
            name: the name or path of a preset. overrides: settings such as `window.selected=1024`.
            method: the name in `esa methods` of a method that replaces the preset's.
            model: writes the answers from the passages that the preset finds, or runs its method.
            length: tokens of the documents, for methods that depend on it. cache: as --cache.
            library: True is the user's own; with False or None documents stay in memory.
            keep: None means True, but in the user's own library no KV caches are stored.
            reader: another model that writes the answers, as --reader: `ollama`, or a hub id.
            reader_model: its name on a server. finder: of passages, as --finder.
            progress: called with (tokens done, all tokens).

        Raises UsageError: the device, dtype or method is unknown, or a length is missing.
        PresetError, ModelError, ResourceError. ReaderError: the server cannot be used."""
        from esa_cli.qa.ingestion.ingest import IngestProgressRelay
        from esa_cli.qa.opening import ModelPlacement, check_before_loading, choose_answer_source
        from esa_cli.qa.presets.preset import load_preset, replace_finder
        from esa_cli.qa.reading.reader_choice import ReaderChoice
        from esa_cli.storage.library import Library

        if isinstance(overrides, str):
            raise UsageError("overrides must be a list of texts", f"write [{overrides!r}]")
        given = [] if model is None else [f"model={json.dumps(model)}"]
        choice = None if reader is None else ReaderChoice.parse(reader, reader_model)
        events = IngestProgressRelay(progress, must_store=keep is True)
        if reader is not None or finder is not None:
            given.append("answer.from=text")
        place = ModelPlacement.choose_device_and_dtype(device, dtype, cache)
        chosen = load_preset(name, [*given, *overrides])
        chosen = chosen if finder is None else replace_finder(chosen, finder)
        if method is None:
            chosen = choose_answer_source(chosen)
        checked = check_before_loading(chosen, place, method=method, document_tokens=length)
        if library is True:
            library = Library()
            keep = checked.choose_storing(library, keep)
        return cls.from_checked_preset(
            checked, library=library or None, keep=keep is not False, rows=rows, reader=choice,
            events=events,
        )  # fmt: skip

    @classmethod
    def from_checked_preset(
        cls, checked_preset: CheckedPreset, *, reader: ReaderChoice | None = None,
        observer: LoadingObserver | None = None, **esa_arguments: Any,
    ) -> Esa:  # fmt: skip
        """Loads the models of a checked preset, and builds an `Esa` with `esa_arguments`. The model
        `reader` replaces the preset's reader model. Raises the errors of `load`."""
        loaded, other = checked_preset.load_models(reader, observer)
        options = {"planner": checked_preset.ingest_planner, "reader": other, **esa_arguments}
        return cls(loaded, checked_preset.resolved, **options)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Restores the original model, and closes the reader's connections."""
        for opened in (self._session, self.reader):
            if opened is not None:
                opened.close()

    @property
    def session(self) -> Session:
        """The session that runs the method, opened on first use. Raises as `Session` does."""
        if self._session is None:
            from esa_cli.qa.answering.session import Session

            loaded = self.loaded
            self._session = Session(loaded.model, self.tokenizer, self.resolved, loaded.cache)
        return self._session

    def run_without_method(self) -> AbstractContextManager[None]:
        """A `with` context in which the model computes its own attention without ESA's method."""
        return nullcontext() if self._session is None else self._session.attachment.suspend_method()

    @property
    def cached_document_tokens(self) -> int:
        """The number of document tokens in the session's KV cache; 0 if answers come from text."""
        return 0 if self._session is None else self._session.document_tokens

    def question_tokens(self, question: str, history: Sequence[Turn] = ()) -> int:
        """Counts the tokens of a question and of earlier turns. Raises UsageError, LengthError."""
        if self.spans is None:
            return self.session.question_tokens(question, history)
        tokens = self.spans.count_question_tokens(question)
        encode = partial(self.tokenizer, add_special_tokens=False, verbose=False)
        return tokens + sum(len(encode(text)["input_ids"]) for turn in history for text in turn)

    def interruptible(self, on_step: Callable[[], None]) -> AbstractContextManager[None]:
        """A `with` context in which `on_step` is called before each layer of the model. An
        exception in `on_step` ends the ingest or the answer, and is raised to the caller."""
        from esa_cli.models.text_passes.text_forward import call_before_each_layer

        return call_before_each_layer(self.loaded.text_model, on_step)

    def find(self, document: Document) -> Book | None:
        """Opens a document if the library has it of this model, else None. Raises LibraryError."""
        return self.documents.open_document_if_stored(document)

    def stored(self, entry: LibraryEntry) -> Book:
        """Opens the document of a library entry, even if the document's file is gone. Raises
        UsageError: another model or method stored it. LibraryError: it is damaged."""
        return self.documents.open_stored_entry(entry)

    def open(self, source: Source) -> Book:
        """Opens a stored document. A document that is not stored is ingested if the preset answers
        from the KV cache; else only its words are searched. Raises the errors of `ingest`."""
        return self.documents.open_for_questions(source)

    def ingest(
        self, source: Source, progress: Progress | None = None, *, keep: bool | None = None
    ) -> Book:
        """Returns a document with a token index or KV cache, from the library or newly computed.

        Args:
            source: a path, - for standard input, or a `Document`.
            progress: called while it is ingested, and with 0 while another process does so. Its
                exceptions pass through; the library keeps what was stored until then.
            keep: whether a new index or KV cache is stored; None means as this `Esa` was made.

        Raises DocumentError: it cannot be parsed. ResourceError: no room. LibraryError: damaged."""
        return self.documents.ingest(source, progress, keep)

    def ask(
        self, question: str, books: AskedDocuments = (), *, history: Sequence[Turn] = (),
        max_new_tokens: int | None = None, temperature: float | None = None,
        top_p: float | None = None, seed: int | None = None, evidence: int = 3,
        on_text: Callable[[str], None] | None = None, thorough: bool = False,
        progress: Progress | None = None,
    ) -> Reply:  # fmt: skip
        """Answers one question about one or more documents.

        Args:
            question: in any words. books: a `Book` of `ingest`, a path, a folder, a pattern or a
                `Document`, or a list of these; without one, the documents of the library whose
                words fit best. What is no `Book` is opened as by `open`: a document that is not in
                the library is searched by its words alone.
            history: earlier turns, oldest first.
            evidence: passages in the reply; more if another model's answer cites later ones.
            max_new_tokens, temperature, top_p: None takes the preset's; like `seed` they do not
                change quotations, which are always the most probable.
            on_text: called with each piece of the answer; its exceptions end the answer and pass
                through, and the model stays usable.
            thorough: at least 32 passages are read instead of the preset's number; with
                `answer.reranker`, those that it scores highest out of all.
            progress: called as `on_text`, with (passages read, passages found), or while a reader
                summarises a long section with (parts read, all parts).

        Raises UsageError: a document, the question or a setting is wrong. LengthError: the question
        is too long; HistoryError: with its history. ReaderError: the reader gives no answer."""
        from esa_cli.qa.attention_evidence import answer_from_kv_cache
        from esa_cli.qa.presets.preset import choose_sampling_options
        from esa_cli.qa.reading.reader import SamplingParams

        if not all(isinstance(turn, Turn) for turn in history):
            hint = 'for example: history=[Turn("Who is Ahab?", "A captain.")]'
            raise UsageError("history must be a list of Turn", hint)
        if not isinstance(evidence, int) or evidence < 0:
            wrong = f"evidence must be a number of passages, got {evidence!r}"
            raise UsageError(wrong, "for example: evidence=5")
        started = time.perf_counter()
        books = self._open_books(question, books, [turn.question for turn in history[-1:]])
        if self.spans is None:  # the paper: selected rows of every layer
            if thorough:
                hint = "use the setting answer.from=text"
                raise UsageError("answer.from must be text for thorough answers", hint)
            prefilled = [book.prefilled for book in books if book.prefilled]
            if len(prefilled) < len(books):
                raise UsageError("a document has not been ingested", "ingest the document first")
            self.session.open(prefilled)
            reply, weights = answer_from_kv_cache(
                self.session, question, books, evidence,
                max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed,
                history=history, on_text=on_text,
            )  # fmt: skip
        else:
            given = max_new_tokens, temperature, top_p
            limits = choose_sampling_options(self.preset.generation, *given)
            reply, weights = self.answerer.answer(
                question, books, history, SamplingParams(max_new_tokens, *limits[1:], seed),
                evidence=evidence, on_text=on_text, thorough=thorough, progress=progress,
                started=started,
            )  # fmt: skip
        self._last = books, weights
        return reply

    def load_reranker(self) -> CrossEncoder | None:
        """Loads the preset's reranker, if any, once. Raises ModelError, PresetError."""
        if self._reranker is None and self.preset.answer.reranker is not None:
            from esa_cli.models.cross_encoder import CrossEncoder
            from esa_cli.qa.finding.finder_choice import locate_and_fetch_reranker

            folder = locate_and_fetch_reranker(self.preset.answer.reranker)
            self._reranker = CrossEncoder(folder, self.loaded.text_model.device)
        return self._reranker

    def find_passages(
        self, question: str, books: AskedDocuments = (), count: int | None = 8,
        minimum: float | None = None,
    ) -> list[Passage]:  # fmt: skip
        """Finds the best passages for a question in documents, which are given as to `ask`; see
        `PassageSearch.search_passages`. Raises UsageError: a document or the question is wrong."""
        books = self._open_books(question, books)
        self.question_tokens(question)  # raises
        with self.run_without_method():
            return self.search.search_passages(question, books, count, minimum)

    def collect(
        self, question: str, books: AskedDocuments = (), *, minimum: float | None = None,
        every: bool = False, least: float | None = None, progress: Progress | None = None,
        after: EarlierRun | None = None,
    ) -> Collection:  # fmt: skip
        """Returns an iterator over all places in documents that answer a question.

        Args:
            books: as for `ask`. minimum, every: see `collecting.choose_passages_to_read`.
            least: the minimum confidence of a place without `reader`; see `collecting.LEAST`.
            progress: called with (passages read, passages chosen). after: a run to continue.

        Raises UsageError: document or question is wrong, or answers come from the KV cache."""
        from esa_cli.qa import collecting
        from esa_cli.qa.reading.reader import SamplingParams

        if self.spans is None:
            hint = "use the setting answer.from=text"
            raise UsageError("answer.from must be text to collect places", hint)
        books = self._open_books(question, books)
        self.spans.count_question_tokens(question)
        with self.run_without_method():
            limits = minimum, every
            chosen = collecting.choose_passages_to_read(self.search, question, books, *limits)
        batch, settings = collecting.BATCH, self.preset.generation
        if self.reader is None:
            whole, spans = chosen.total <= collecting.WHOLE, self.spans.passages
            decide = collecting.make_log_odds_span_finder(spans, question, least, whole)
        else:
            batch, sampling = 1, SamplingParams(None, settings.temperature, settings.top_p)
            decide = collecting.make_reply_span_finder(self.reader, question, sampling)
        return collecting.Collection(
            chosen, books, decide, batch=batch, alone=self.run_without_method, progress=progress,
            after=after,
        )  # fmt: skip

    def outline(self, source: Book | Document | str | os.PathLike[str]) -> list[Section]:
        """Lists the chapters and sections of a document. Raises DocumentError: it has no text."""
        if isinstance(source, str | os.PathLike):
            source = read_document(source)
        return list(find_sections(source if isinstance(source, Document) else source.document))

    def report(self, reply: Reply, question: str) -> str:
        """Returns an HTML page of the last answer and its documents. Raises UsageError."""
        from esa_cli.qa.evidence import make_evidence_page

        return make_evidence_page(reply, question, self._get_last_answer()[0])

    def heat_maps(self) -> list[HeatMap]:
        """Returns a heat map of each document of the last answer. Raises UsageError."""
        from esa_cli.qa.evidence import make_heat_maps

        return make_heat_maps(*self._get_last_answer())

    def _get_last_answer(self) -> tuple[Sequence[Book], Tensor]:
        if self._last is None:
            raise UsageError("there is no answer to report on", "ask a question first")
        return self._last

    def _open_books(
        self, question: str, documents: AskedDocuments, earlier_questions: Sequence[str] = ()
    ) -> list[Book]:
        """Returns books without duplicate texts, with their ranges among all tokens; see `ask`."""
        from esa_cli.qa.finding.passage_finder import Book, add_token_ranges, drop_duplicate_books

        is_path = isinstance(documents, str | os.PathLike)  # else a server would tell what exists
        if not isinstance(question, str) or (is_path and os.path.exists(question)):
            given = f"the file {question}" if isinstance(question, str) else type(question).__name__
            wrong = f"the question must be a text and come first, got {given}"
            raise UsageError(wrong, 'for example: esa.ask("Who is Ahab?", "book.txt")')
        is_one = is_path or not isinstance(documents, Iterable)
        books, several = list[Book](), cast("Iterable[Any]", [documents] if is_one else documents)
        for one in several:
            if isinstance(one, str | os.PathLike):
                books += map(self.open, read_documents([one]))
            else:
                books.append(one if isinstance(one, Book) else self.open(one))
        if not books and documents == ():
            books = self._open_library_documents("\n".join([*earlier_questions, question]))
        if not books:
            hint = "give a document, or add documents to the library with `esa ingest`"
            raise UsageError("there is no document for the question", hint)
        return add_token_ranges(drop_duplicate_books(books))

    def _open_library_documents(self, question: str) -> list[Book]:
        """Opens the library's documents that fit a question best, at most `answer.documents`, or
        all if answers come from the KV cache. Warns of documents that cannot be read."""
        from esa_cli.qa.ingestion.library_texts import rank_texts_for_question

        answer, library = self.preset.answer, self.documents.library
        books: list[Book] = []
        for text in [] if library is None else rank_texts_for_question(library, question):
            if len(books) == answer.documents and not answer.needs_kv_cache:
                break
            open_sources = [partial(self.stored, entry) for entry in text.entries]
            if text.path and self.answers_unread:  # if no entry has a usable index
                open_sources.append(partial(self.open, text.path))
            for open_source in open_sources:
                try:
                    books.append(open_source())
                    break
                except UsageError:  # another model or method stored it
                    continue
                except DocumentError as error:
                    warnings.warn(f"left out: {error.message}", stacklevel=4)
        return books
