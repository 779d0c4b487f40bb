"""`esa collect`: every place of documents that fits a question, in order, without doubles."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.commands.ask_command import InLibrary
from esa_cli.apps.cli.commands.find_command import Read
from esa_cli.apps.cli.inputs import no_keep_hint, read_files, split
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.answer_output import asked_documents
from esa_cli.apps.cli.output.progress_display import token_progress
from esa_cli.apps.cli.output.terminal import (
    Reporter,
    as_json,
    clean,
    one_line,
    print_json,
    print_table,
)
from esa_cli.documents.sources import source_files
from esa_cli.errors import NOT_FOUND, UsageError
from esa_cli.storage.library import Library
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.apps.collect.collected_file import CollectedFile
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book
    from esa_cli.qa.collecting import CollectedPlace, Coverage
    from esa_cli.qa.presets.preset import Preset

FIELDS = (
    "document", "source", "page", "line", "chapter", "start", "end", "text", "sentence",
    "score", "log_odds", "answer",
)  # fmt: skip
"""Columns of CSV."""


@dataclass(frozen=True)
class CollectOptions:
    """Options of `esa collect` besides those of the model and of what words answers."""

    count: Annotated[bool, option("--count", "Only how many places there are.")] = False
    form: Annotated[
        Literal["table", "csv", "jsonl"],
        option(
            "--format table|csv|jsonl", "Of standard output; csv and jsonl come as they are found."
        ),
    ] = "table"
    minimum: Annotated[
        float | None,
        option(
            "--min SCORE",
            "Minimum score in finding of a passage that is read again, in standard deviations "
            "above the mean; 2, and those nearly as good as the best. Of up to 200 passages all "
            "are.",
        ),
    ] = None
    every: Annotated[bool, option("--all", "Read all passages again.")] = False
    least: Annotated[
        float | None,
        option(
            "--least NUMBER",
            "Minimum confidence of a place: finder score and log-odds; 2.5. Higher gives fewer, "
            "surer places.",
        ),
    ] = None
    distinct: Annotated[
        bool, option("--distinct", "Places with the same words once, the first of them.")
    ] = False
    library: InLibrary = False
    read: Read = "first"
    keep: options.Keep = None
    out: Annotated[
        Path | None,
        option(
            "--out -o FILE",
            "Places as JSON lines, as they are found; an existing file is continued.",
        ),
    ] = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    def check(self) -> None:
        """Raises UsageError where options exclude each other."""
        form, is_table = f"--format {self.form}", self.form == "table"
        options.exclusive("--all", "--min", self.every and self.minimum is not None)
        options.exclusive("--json", form, self.as_json and not is_table)
        options.exclusive("--count", form, self.count and not is_table)
        options.exclusive("--keep", "--read never", self.keep and self.read == "never")

    @property
    def how(self) -> dict[str, Any]:
        """Keyword arguments of `Esa.collect`."""
        least = {} if self.least is None else {"least": self.least}
        return {"minimum": self.minimum, "every": self.every, **least}


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
    ways: Annotated[CollectOptions, options.Hidden("keep")],
    model: ModelOptions,
    answer: Annotated[AnswerOptions, options.Hidden("answer")],
) -> None:
    """Collect every place in documents that answers a question.

    esa collect book.txt "How old is somebody?"
    """
    from esa_cli.apps.cli.options.output_paths import check
    from esa_cli.apps.collect.collected_file import CollectedFile

    ways.check()
    documents, question = split(arguments or [], library=ways.library, verb="collect")
    check("--out", ways.out)
    CollectedFile.check(ways.out)
    with Reporter(ways.quiet) as reporter, no_keep_hint(ways.keep), ExitStack() as stack:
        places = _Places(ways, reporter)
        _collect(documents, question, ways, model, answer, places, stack)
    if not places.all:
        raise typer.Exit(NOT_FOUND)


def _collect(
    names: Sequence[str],
    question: str,
    ways: CollectOptions,
    model: ModelOptions,
    answer: AnswerOptions,
    places: _Places,
    stack: ExitStack,
) -> None:
    """Collects, and says on standard error how much was read. Raises EsaError."""
    from esa_cli.apps.cli.document_search import library_books
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.apps.cli.options.output_paths import spare
    from esa_cli.apps.collect.collected_file import CollectedFile
    from esa_cli.qa.books import distinct
    from esa_cli.qa.collecting import distinct_places
    from esa_cli.qa.presets.adapter_files import check_adapter

    started, reporter = time.perf_counter(), places.reporter
    chosen = _preset(ways, model, answer)
    check_adapter(chosen.answer)
    files, library = source_files(names), Library()
    reader = answer.reader_choice()
    spare("--out", ways.out, files.paths)
    gathered = read_files(files, reporter)
    esa = stack.enter_context(
        opened(chosen, model, reporter, keep=ways.keep, library=library, reader=reader)
    )
    make = esa.ingest if ways.read == "first" else esa.open
    books = [make(document) for document in gathered.documents]
    if ways.library:
        books += library_books(esa.stored, library, reporter, make)
    books = distinct(books)
    about = {"documents": [book.document.name for book in books], "preset": chosen.name}
    key = _key(question, chosen, books, {**ways.how, **answer.dependencies})
    file = stack.enter_context(CollectedFile(ways.out, question, key, about))
    coverage = places.follow(esa, question, books, file)
    wording = esa.reader.name if esa.reader else esa.name
    caveat = f"{wording} misses places and adds wrong ones"
    different = distinct_places(places.all)
    if ways.as_json:
        print_json(
            {
                "question": question,
                "count": len(places.all) if coverage.read else None,
                "distinct": len(different) if coverage.read else None,
                "caveat": caveat,
                "places": [p.as_row() for p in (different if ways.distinct else places.all)],
                "coverage": coverage._asdict(),
                "documents": asked_documents(books),
                "left_out": [one.as_dict() for one in gathered.left_out],
                "model": chosen.model,
                "reader": None if esa.reader is None else esa.reader.name,
                "preset": chosen.name,
                "seconds": round(time.perf_counter() - started, 3),
            }
        )
    elif coverage.read and ways.count:
        print(f"{_count(len(places.all))}, {len(different):,} distinct ({caveat})")
    elif coverage.read:
        reporter.note(f"esa: {caveat}: see docs/answers.md")


def _preset(ways: CollectOptions, model: ModelOptions, answer: AnswerOptions) -> Preset:
    """The preset with answers from text, which are its own or those that `from` leaves open."""
    from esa_cli.qa.opening import from_text

    chosen = answer.load_preset(model)
    if ways.least is not None and chosen.answer.reader is not None:
        raise UsageError(
            f"--least is of the model that finds, and {chosen.answer.reader} decides by its words",
            "leave out --least, or --model and --reader",
        )
    if chosen.answer.source != "text" and chosen.answer.says_source:
        raise UsageError(
            f"places are collected from text, and preset {chosen.name} answers from rows",
            "add --set answer.from=text",
        )
    return from_text(chosen)


def _key(question: str, chosen: Preset, books: Sequence[Book], how: dict[str, Any]) -> str:
    """A digest of all that the places depend on."""
    from esa_cli.qa.collecting import FIT, NEAR, SIEVE, WHOLE
    from esa_cli.qa.presets.cache_key import text_settings_hash
    from esa_cli.system.text import text_digest

    facts = {
        "question": question,
        "documents": [(text_digest(b.document.text), b.index is not None) for b in books],
        "preset": text_settings_hash(chosen),
        "sieve": (WHOLE, SIEVE, NEAR, FIT),
        **how,
    }
    return text_digest(json.dumps(facts, sort_keys=True))[:16]


class _Places:
    """The places so far, and how they are shown."""

    def __init__(self, ways: CollectOptions, reporter: Reporter) -> None:
        self.ways, self.reporter = ways, reporter
        self.all: list[CollectedPlace] = []
        self._words: set[str] = set()

    def follow(
        self, esa: Esa, question: str, books: Sequence[Book], file: CollectedFile
    ) -> Coverage:
        """Takes all places, those of earlier runs first; how much was read."""
        reporter, earlier = self.reporter, file.earlier.places
        progress: Progress | None = None  # its clock starts when passages have been found

        def show(done: int, total: int) -> None:
            nonlocal progress
            file.reached(places.settled, places.coverage)
            progress = progress or token_progress(reporter, "reading again", unit="passages")
            progress(done, total)

        reporter.waiting("finding passages")
        places = esa.collect(question, books, **self.ways.how, progress=show, after=file.earlier)
        if earlier:
            reporter.note(f"esa: kept from an earlier run: {_count(len(earlier))}")
        for place in earlier:
            self._add(place)
        try:
            for place in places:
                file.add(place)
                reporter.settle()
                self._add(place)
        except BaseException:
            reporter.settle()
            self._print_table()
            goes_on = "; the same command goes on" if self.ways.out else ""
            reporter.warn(f"esa: stopped: {_read_text(places.coverage)}{goes_on}")
            raise
        finally:
            file.reached(places.settled, places.coverage, stopped=True)
        reporter.settle()
        self._print_table()
        coverage = places.coverage
        if coverage.read:
            more = "; a lower --min may find more" if coverage.read < coverage.passages else ""
            reporter.note(f"esa: {_read_text(coverage)}{more}")
        else:
            reporter.warn("esa: no passage has so high a score, so none was read; lower --min")
        return coverage

    def _add(self, place: CollectedPlace) -> None:
        """Takes a place in its turn; CSV and JSON lines are written at once."""
        self.all.append(place)
        if self.ways.distinct and place.words in self._words:
            return
        self._words.add(place.words)
        row = place.as_row()
        if self.ways.form == "jsonl":
            print(as_json(row), flush=True)
        elif self.ways.form == "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            if len(self.all) == 1:
                writer.writerow(FIELDS)
            writer.writerow("" if row[name] is None else clean(str(row[name])) for name in FIELDS)
            sys.stdout.flush()

    def _print_table(self) -> None:
        """Writes the places so far, unless they go out in another form."""
        from esa_cli.qa.collecting import distinct_places

        ways = self.ways
        if not self.all or ways.count or ways.as_json or ways.form != "table":
            return
        rows = []
        for place in distinct_places(self.all) if ways.distinct else self.all:
            page = "" if place.page is None else f", page {place.page}"
            words = place.answer or place.text
            cells = (f"{place.document}:{place.line}{page}", words, place.sentence)
            rows.append([one_line(" ".join(cell.split())) for cell in cells])
        print_table(("place", "words", "sentence"), rows)


def _count(places: int) -> str:
    return f"{places:,} place" + "s" * (places != 1)


def _read_text(coverage: Coverage) -> str:
    """`312 of 2,451 passages (13 %) were read again`."""
    share = f"{100 * coverage.share:.0f} %"
    return f"{coverage.read:,} of {coverage.passages:,} passages ({share}) were read again"
