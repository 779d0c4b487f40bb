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
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions, ReaderOptions
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
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.collected_file import CollectedFile
    from esa_cli.qa.api import Esa
    from esa_cli.qa.collecting import CollectedPlace, Coverage
    from esa_cli.qa.finding.books import Book
    from esa_cli.qa.presets.preset import Preset

FIELDS = (
    "document", "source", "page", "line", "chapter", "start", "end", "text", "sentence",
    "score", "log_odds", "answer",
)  # fmt: skip
"""Columns of CSV."""


@dataclass(frozen=True)
class CollectOptions:
    """Options of `esa collect` besides those of the model and the reader."""

    count: Annotated[bool, option("--count", "Only how many places there are.")] = False
    form: Annotated[
        Literal["table", "csv", "jsonl"], option("--format table|csv|jsonl", "Of standard output.")
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
    ways: CollectOptions,
    model: ModelOptions,
    answer: ReaderOptions,
) -> None:
    """Collect every place in documents that answers a question.

    esa collect book.txt "How old is somebody?"
    """
    from esa_cli.apps.cli.document_search import QuestionBooks
    from esa_cli.apps.cli.inputs import split
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.collected_file import CollectedFile
    from esa_cli.qa.collecting import distinct_places
    from esa_cli.qa.presets.adapter_files import check_adapter

    ways.check()
    names, question = split(arguments or [], library=ways.library, verb="collect")
    output_paths.check("--out", ways.out)
    CollectedFile.check(ways.out)
    started = time.perf_counter()
    with Reporter(ways.quiet) as reporter, ExitStack() as stack:
        chosen = _preset(ways, model, answer)
        check_adapter(chosen.answer)
        files, library = source_files(names), Library()
        reader = answer.reader_choice()
        output_paths.spare("--out", ways.out, files.paths)
        documents = QuestionBooks(
            files, library, reporter, stack, most=None, in_library=ways.library
        )
        esa = stack.enter_context(
            opened(chosen, model, reporter, keep=ways.keep, library=library, reader=reader)
        )
        make = esa.ingest if ways.read == "first" else esa.open
        named = [make(document) for document in documents.gathered.documents]
        documents.open(named, esa.stored, make)
        books = documents.about(question)
        about = {"documents": [book.document.name for book in books], "preset": chosen.name}
        key = _key(question, chosen, books, {**ways.how, **answer.dependencies})
        file = stack.enter_context(CollectedFile(ways.out, question, key, about))
        places, coverage = _collect(esa, question, books, ways, file, reporter)
        caveat = f"{esa.reader.name if esa.reader else esa.name} misses places and adds wrong ones"
        different = distinct_places(places)
        if ways.as_json:
            print_json(
                {
                    "question": question,
                    "count": len(places) if coverage.read else None,
                    "distinct": len(different) if coverage.read else None,
                    "caveat": caveat,
                    "places": [p.as_row() for p in (different if ways.distinct else places)],
                    "coverage": coverage._asdict(),
                    "documents": asked_documents(books),
                    "left_out": [one.as_dict() for one in documents.gathered.left_out],
                    "model": chosen.model,
                    "reader": None if esa.reader is None else esa.reader.name,
                    "preset": chosen.name,
                    "seconds": round(time.perf_counter() - started, 3),
                }
            )
        elif coverage.read and ways.count:
            print(f"{_count(len(places))}, {len(different):,} distinct ({caveat})")
        elif coverage.read:
            reporter.note(f"esa: {caveat}: see docs/answers.md")
    if not places:
        raise typer.Exit(NOT_FOUND)


def _preset(ways: CollectOptions, model: ModelOptions, answer: ReaderOptions) -> Preset:
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


def _collect(
    esa: Esa,
    question: str,
    books: Sequence[Book],
    ways: CollectOptions,
    file: CollectedFile,
    reporter: Reporter,
) -> tuple[list[CollectedPlace], Coverage]:
    """All places, those of earlier runs first, and how much was read; prints them, also where the
    run is stopped."""
    progress: Progress | None = None  # its clock starts when passages have been found

    def show(done: int, total: int) -> None:
        nonlocal progress
        file.reached(collection.settled, collection.coverage)
        progress = progress or token_progress(reporter, "reading again", unit="passages")
        progress(done, total)

    reporter.waiting("finding passages")
    earlier = file.earlier
    collection = esa.collect(question, books, **ways.how, progress=show, after=earlier)
    places = list(earlier.places)
    if places:
        reporter.note(f"esa: kept from an earlier run: {_count(len(places))}")
    try:
        for place in collection:
            file.add(place)
            places.append(place)
    except BaseException:
        reporter.settle()
        _print(places, ways)
        goes_on = "; the same command goes on" if ways.out else ""
        reporter.warn(f"esa: stopped: {_read_text(collection.coverage)}{goes_on}")
        raise
    finally:
        file.reached(collection.settled, collection.coverage, stopped=True)
    reporter.settle()
    _print(places, ways)
    coverage = collection.coverage
    if coverage.read:
        more = "; a lower --min may find more" if coverage.read < coverage.passages else ""
        reporter.note(f"esa: {_read_text(coverage)}{more}")
    else:
        reporter.warn("esa: no passage has so high a score, so none was read; lower --min")
    return places, coverage


def _print(places: Sequence[CollectedPlace], ways: CollectOptions) -> None:
    """Writes the places to standard output, unless their number or one JSON object is wanted."""
    from esa_cli.qa.collecting import distinct_places

    if not places or ways.count or ways.as_json:
        return
    shown = distinct_places(places) if ways.distinct else places
    if ways.form == "table":
        rows = []
        for place in shown:
            page = "" if place.page is None else f", page {place.page}"
            words = place.answer or place.text
            cells = (f"{place.document}:{place.line}{page}", words, place.sentence)
            rows.append([one_line(" ".join(cell.split())) for cell in cells])
        print_table(("place", "words", "sentence"), rows)
    elif ways.form == "jsonl":
        for place in shown:
            print(as_json(place.as_row()))
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(FIELDS)
        for row in (place.as_row() for place in shown):
            writer.writerow("" if row[name] is None else clean(str(row[name])) for name in FIELDS)


def _count(places: int) -> str:
    return f"{places:,} place" + "s" * (places != 1)


def _read_text(coverage: Coverage) -> str:
    """`312 of 2,451 passages (13 %) were read again`."""
    share = f"{100 * coverage.share:.0f} %"
    return f"{coverage.read:,} of {coverage.passages:,} passages ({share}) were read again"
