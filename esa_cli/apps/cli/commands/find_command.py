"""`esa find`: passages that fit a question; `esa collect`: every place that answers a question.

`find` reads no passage again, so the adapter is not loaded, and the model only where a document
has a token index.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.inputs import split_arguments
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output import terminal
from esa_cli.apps.cli.output.answer_output import list_documents
from esa_cli.documents.readers.text_builder import first_names
from esa_cli.documents.sources import source_files
from esa_cli.errors import NOT_FOUND, UsageError
from esa_cli.storage.library import Library
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.apps.cli.document_search import PassageBooks
    from esa_cli.apps.collected_file import CollectedFile
    from esa_cli.qa.api import Esa
    from esa_cli.qa.collecting import CollectedPlace, Coverage
    from esa_cli.qa.finding.books import Book
    from esa_cli.qa.finding.passage import Passage

FIELDS = (
    "document", "source", "page", "line", "chapter", "start", "end", "text", "sentence",
    "score", "log_odds", "answer",
)  # fmt: skip
"""Columns of the CSV of `esa collect`."""
Read = Annotated[
    Literal["first", "never"],
    option(
        "--read first|never",
        "Whether a new document is read for its token index before the search.",
    ),
]


@dataclass(frozen=True)
class FindOptions(options.DocumentOptions):
    """Options of `esa find` besides those of the model."""

    top: Annotated[int | None, option("--top N", "Passages to show; by default 8.", min=1)] = None
    minimum: Annotated[
        float | None,
        option(
            "--min SCORE",
            "Minimum score, in standard deviations above the mean, by default 0. With --all and "
            "--files, passages above the score are shown in place of those with the words.",
        ),
    ] = None
    shows_all: Annotated[
        bool, option("--all", "Show every place with the words, in document order.")
    ] = False
    files: Annotated[
        bool, option("--files", "Show only the names of all files with the words, best first.")
    ] = False
    read: Read = "never"

    @property
    def by_words(self) -> bool:
        """Whether exactly the passages with the words are wanted."""
        return (self.shows_all or self.files) and self.minimum is None

    def refuse_conflicts(self) -> None:
        """Raises UsageError where options exclude each other."""
        wide, reads = "--all" if self.shows_all else "--files", self.read == "first"
        options.refuse_both("--all", "--files", self.shows_all and self.files)
        options.refuse_both("--all", f"--top {self.top}", self.shows_all and self.top)
        options.refuse_both("--keep", "--read never", self.keep and not reads, "add --read first")
        hint = f"words are searched without reading; with --min 2 {wide} goes by the score"
        options.refuse_both(wide, "--read first", self.by_words and reads, hint)


@options.command
def find(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOC... WORDS",
            help="Files, folders or patterns, or - for standard input; then words or a question, "
            "in quotes.",
        ),
    ] = None,
    *,
    ways: FindOptions,
    model: options.ModelOptions,
) -> None:
    """Find passages in documents, without an answer.

    esa find book.txt "the white whale"
    """
    from esa_cli.apps.cli.document_search import PassageBooks, QuestionBooks
    from esa_cli.qa.presets.adapter_files import check_adapter, for_finding

    ways.refuse_conflicts()
    names, question = split_arguments(arguments or [], library=ways.library, verb="find")
    with terminal.Reporter(ways.quiet) as reporter, ExitStack() as stack:
        chosen = for_finding(model.load_preset(), ways.by_words)
        check_adapter(chosen.answer)
        library, reads = Library(), ways.read == "first"

        def load_esa() -> Esa:
            from esa_cli.apps.cli.open_esa import opened

            # Where nothing is read, a library that cannot be written is no matter.
            keep = ways.keep if reads or library.writable else False
            return stack.enter_context(opened(chosen, model, reporter, keep=keep, library=library))

        documents = QuestionBooks(
            source_files(names), library, reporter, stack,
            limit=chosen.answer.documents, in_library=ways.library, keep=ways.keep,
        )  # fmt: skip
        finder = PassageBooks(chosen, model, library, reporter, load_esa, read=reads)
        named = [finder.open(document) for document in documents.gathered.documents]
        documents.set_openers(named, finder.stored, finder.open)
        books = documents.open_books(question, having_words=ways.by_words)
        reporter.waiting("searching")
        passages = _find_passages(finder, question, books, ways, reporter)
        reporter.settle()
        files = list_files(passages)[: ways.top] if ways.files else []
        if ways.as_json:
            matches = files if ways.files else [passage.as_found() for passage in passages]
            terminal.print_json(
                {
                    "files" if ways.files else "passages": matches,
                    "read": all(book.read for book in books),
                    "documents": list_documents(books),
                    **({"searched": documents.searched} if documents.searched else {}),
                    "left_out": [file.as_dict() for file in documents.gathered.left_out],
                    "model": chosen.model if finder.is_loaded else None,
                    "preset": chosen.name,
                }
            )
        elif ways.files:
            for file in files:
                print(file_name(file["document"], file["source"]))
        else:
            print_passages(passages, question)
        unread = [book.document.name for book in books if not book.read]
        if unread and chosen.answer.has_index:
            which, them = first_names(unread), "it" if len(unread) == 1 else "them"
            note = f"not read, searched by words alone: {which}; --read first reads {them}"
            reporter.note(f"esa: {note}")
    if not passages:
        reporter.warn("esa: no passage fits")
        raise typer.Exit(NOT_FOUND)


def _find_passages(
    finder: PassageBooks,
    question: str,
    books: list[Book],
    ways: FindOptions,
    reporter: terminal.Reporter,
) -> Sequence[Passage]:
    """Finds passages: the best first, or with --all in document order."""
    from esa_cli.qa.finding.books import place_books
    from esa_cli.qa.finding.passage_finder import passages_with_words

    placed = place_books(books)
    passages: Sequence[Passage]
    if ways.by_words:
        result = passages_with_words(question, placed)
        passages = result.passages
        if 0 < result.most < result.words:
            part = f"{result.most} of the {result.words} words"
            reporter.note(f"esa: no passage has all of the words; these have {part}")
    else:
        count = None if ways.shows_all or ways.files else ways.top or 8
        passages = finder.passages(question, books, count, ways.minimum)
    if ways.shows_all:
        order = {book.document.name: number for number, book in enumerate(placed)}
        passages = sorted(passages, key=lambda one: (order[one.document], one.start))
    return passages


def list_files(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """Lists the documents of passages that are sorted best first: each with its name and path,
    its best score, and its number of passages."""
    files = dict[str, dict[str, Any]]()
    for one in passages:
        facts = {"document": one.document, "source": one.source, "score": round(one.score, 3)}
        file = files.setdefault(one.document, {**facts, "passages": 0})
        file["passages"] += 1
    return list(files.values())


def file_name(document: str, source: str) -> str:
    """Returns a document's path, or its name where it came from standard input."""
    return terminal.one_line(document if source == "-" else source)


def print_passages(passages: Sequence[Passage], question: str) -> None:
    """Prints each passage below its file and line, with the question's words in red on a
    terminal."""
    from rich.text import Text

    from esa_cli.qa.finding.words import matched_words

    console = terminal.make_console(sys.stdout)
    for number, passage in enumerate(passages):
        details = [] if passage.page is None else [f"page {passage.page}"]
        details += [terminal.one_line(passage.chapter)] if passage.chapter else []
        details += [f"characters {passage.start}-{passage.end}", f"score {passage.score:.1f}"]
        place = f"{file_name(passage.document, passage.source)}:{passage.line}"
        heading = Text.assemble((place, "bold"), ("  " + ", ".join(details), "dim"))
        console.print("\n" * bool(number), heading, sep="", soft_wrap=True)
        body = Text(terminal.clean(passage.text.strip()))
        for start, end in matched_words(body.plain, question):
            body.stylize("bold red", start, end)
        for line in body.split("\n", allow_blank=True):
            line.rstrip()
            console.print("  " * bool(line), line, sep="", soft_wrap=True)


@dataclass(frozen=True)
class CollectOptions(options.DocumentOptions):
    """Options of `esa collect` besides those of the model and the reader."""

    count: Annotated[bool, option("--count", "Print only how many places there are.")] = False
    form: Annotated[
        Literal["table", "csv", "jsonl"],
        option("--format table|csv|jsonl", "Format of standard output."),
    ] = "table"
    minimum: Annotated[
        float | None,
        option(
            "--min SCORE",
            "Minimum finder score of a passage that is read again, in standard deviations above "
            "the mean, by default 2, and passages nearly as good as the best. Of up to 200 "
            "passages all are read.",
        ),
    ] = None
    reads_all: Annotated[bool, option("--all", "Read all passages again.")] = False
    min_confidence: Annotated[
        float | None,
        option(
            "--least NUMBER",
            "Minimum confidence of a place, finder score and log-odds together, by default 2.5. "
            "Higher gives fewer, surer places.",
        ),
    ] = None
    distinct: Annotated[
        bool, option("--distinct", "Print only the first of places with the same words.")
    ] = False
    read: Read = "first"
    out: Annotated[
        Path | None,
        option(
            "--out -o FILE",
            "Write places as JSON lines, as they are found; an existing file is continued.",
        ),
    ] = None

    def refuse_conflicts(self) -> None:
        """Raises UsageError where options exclude each other."""
        form, is_table = f"--format {self.form}", self.form == "table"
        options.refuse_both("--all", "--min", self.reads_all and self.minimum is not None)
        options.refuse_both("--json", form, self.as_json and not is_table)
        options.refuse_both("--count", form, self.count and not is_table)
        options.refuse_both("--keep", "--read never", self.keep and self.read == "never")

    @property
    def selection(self) -> dict[str, Any]:
        """Keyword arguments of `Esa.collect` that choose passages and places."""
        least = {} if self.min_confidence is None else {"least": self.min_confidence}
        return {"minimum": self.minimum, "every": self.reads_all, **least}


@options.command
def collect(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOC... QUESTION",
            help="Files, folders or patterns, or - for standard input; then what to look for, as a "
            "question in quotes.",
        ),
    ] = None,
    *,
    ways: CollectOptions,
    model: options.ModelOptions,
    answer: options.ReaderOptions,
) -> None:
    """Collect every place in documents that answers a question.

    esa collect book.txt "How old is somebody?"
    """
    from esa_cli.apps.cli.document_search import QuestionBooks
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.apps.collected_file import CollectedFile
    from esa_cli.qa.collecting import FIT, NEAR, SIEVE, WHOLE, distinct_places
    from esa_cli.qa.opening import from_text
    from esa_cli.qa.presets.adapter_files import check_adapter
    from esa_cli.qa.presets.cache_key import text_settings_hash
    from esa_cli.system.text import text_digest

    ways.refuse_conflicts()
    names, question = split_arguments(arguments or [], library=ways.library, verb="collect")
    CollectedFile.check(ways.out)
    with terminal.Reporter(ways.quiet) as reporter, ExitStack() as stack:
        chosen = from_text(answer.load_preset(model))
        if ways.min_confidence is not None and chosen.answer.reader is not None:
            raise UsageError(
                f"--least is of the model that finds, and {chosen.answer.reader} decides by words",
                "leave out --least, or --model and --reader",
            )
        check_adapter(chosen.answer)
        files, library, reader = source_files(names), Library(), answer.reader_choice()
        output_paths.check("--out", ways.out, files.paths)
        documents = QuestionBooks(
            files, library, reporter, stack, limit=None, in_library=ways.library
        )
        esa = stack.enter_context(
            opened(chosen, model, reporter, keep=ways.keep, library=library, reader=reader)
        )
        open_book = esa.ingest if ways.read == "first" else esa.open
        named = [open_book(document) for document in documents.gathered.documents]
        documents.set_openers(named, esa.stored, open_book)
        books = documents.open_books(question)
        about = {"documents": [book.document.name for book in books], "preset": chosen.name}
        inputs = {
            "question": question,
            "documents": [(text_digest(b.document.text), b.index is not None) for b in books],
            "preset": text_settings_hash(chosen),
            "sieve": (WHOLE, SIEVE, NEAR, FIT),
            **ways.selection,
            **answer.answer_dependencies,
        }
        key = text_digest(json.dumps(inputs, sort_keys=True))[:16]
        file = stack.enter_context(CollectedFile(ways.out, question, key, about))
        places, coverage = _collect_places(esa, question, books, ways, file, reporter)
        caveat = f"{esa.reader.name if esa.reader else esa.name} misses places and adds wrong ones"
        different = distinct_places(places)
        if ways.as_json:
            terminal.print_json(
                {
                    "question": question,
                    "count": len(places),
                    "distinct": len(different),
                    "caveat": caveat,
                    "places": [p.as_row() for p in (different if ways.distinct else places)],
                    "coverage": coverage._asdict(),
                    "documents": list_documents(books),
                    "left_out": [file.as_dict() for file in documents.gathered.left_out],
                    "model": chosen.model,
                    "reader": None if esa.reader is None else esa.reader.name,
                    "preset": chosen.name,
                }
            )
        elif coverage.read and ways.count:
            count = terminal.count_text(len(places), "place")
            print(f"{count}, {len(different):,} distinct ({caveat})")
        elif coverage.read:
            reporter.note(f"esa: {caveat}: see docs/answers.md")
    if not places:
        raise typer.Exit(NOT_FOUND)


def _collect_places(
    esa: Esa,
    question: str,
    books: Sequence[Book],
    ways: CollectOptions,
    file: CollectedFile,
    reporter: terminal.Reporter,
) -> tuple[list[CollectedPlace], Coverage]:
    """Collects the places, those of earlier runs first, and prints what was found, even where the
    run is stopped. Returns the places, and how many passages were read."""
    progress: Progress | None = None  # its clock starts when passages have been found

    def show_progress(done: int, total: int) -> None:
        nonlocal progress
        file.reached(collection.settled, collection.coverage)
        progress = progress or reporter.token_progress("reading again", "passages")
        progress(done, total)

    reporter.waiting("finding passages")
    places = list(file.earlier.places)
    how = {**ways.selection, "progress": show_progress, "after": file.earlier}
    collection = esa.collect(question, books, **how)
    if places:
        reporter.note(f"esa: kept from an earlier run: {terminal.count_text(len(places), 'place')}")
    is_stopped = True
    try:
        try:
            for place in collection:
                file.add(place)
                places.append(place)
            is_stopped = False
        finally:
            file.reached(collection.settled, collection.coverage, stopped=True)
    finally:
        reporter.settle()
        _print_places(places, ways)
        coverage = collection.coverage
        share = f"{100 * coverage.share:.0f} %"
        text = f"{coverage.read:,} of {coverage.passages:,} passages ({share}) were read again"
        if is_stopped:
            reporter.warn(f"esa: stopped: {text}{'; the same command goes on' * bool(ways.out)}")
        elif coverage.read:
            lower = "; a lower --min may find more" if coverage.read < coverage.passages else ""
            reporter.note(f"esa: {text}{lower}")
        else:
            reporter.warn("esa: no passage has so high a score, so none was read; lower --min")
    return places, coverage


def _print_places(places: Sequence[CollectedPlace], ways: CollectOptions) -> None:
    """Prints the places, unless their number or one JSON object is wanted."""
    from esa_cli.qa.collecting import distinct_places

    if not places or ways.count or ways.as_json:
        return
    places = distinct_places(places) if ways.distinct else places
    if ways.form == "table":
        rows = []
        for place in places:
            page = "" if place.page is None else f", page {place.page}"
            words = place.answer or place.text
            cells = (f"{place.document}:{place.line}{page}", words, place.sentence)
            rows.append([terminal.one_line(" ".join(cell.split())) for cell in cells])
        terminal.print_table(("place", "words", "sentence"), rows)
    elif ways.form == "jsonl":
        for place in places:
            print(terminal.format_json(place.as_row()))
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(FIELDS)
        for row in (place.as_row() for place in places):
            writer.writerow(
                "" if row[name] is None else terminal.clean(str(row[name])) for name in FIELDS
            )
