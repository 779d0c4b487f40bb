"""`esa collect`: every place of documents that fits a question, in order, without doubles."""

from __future__ import annotations

import csv
import json
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.commands.ask_command import InLibrary
from esa_cli.apps.cli.commands.find_command import Read
from esa_cli.apps.cli.options import answer_options, options
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import NOT_FOUND, UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.collected_file import CollectedFile
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book
    from esa_cli.qa.collecting import CollectedPlace, Collection, Coverage
    from esa_cli.qa.presets.preset import Preset

EDGE = 0.5
"""Standard deviations above the minimum score: places of such passages are at the edge."""
FIELDS = (
    "document", "source", "page", "line", "chapter", "start", "end", "text", "sentence",
    "score", "log_odds", "answer",
)  # fmt: skip
"""Columns of CSV."""
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... QUESTION",
        help="Files, folders or patterns, or - for standard input; then what to look for, as a "
        "question in quotes.",
    ),
]
Counted = Annotated[bool, option("--count", "Only how many places there are.")]
Form = Annotated[
    Literal["table", "csv", "jsonl"],
    option("--format table|csv|jsonl", "Of standard output; csv and jsonl come as they are found."),
]
Minimum = Annotated[
    float | None,
    option(
        "--min SCORE",
        "Minimum score in finding of a passage that is read again, in standard deviations "
        "above the mean; 2, and those nearly as good as the best. Of up to 200 passages all are.",
    ),
]
Every = Annotated[bool, option("--all", "Read all passages again.")]
Least = Annotated[
    float | None,
    option(
        "--least NUMBER",
        "Minimum confidence of a place: finder score and log-odds; 2.5. Higher gives fewer, "
        "surer places.",
    ),
]
Distinct = Annotated[
    bool, option("--distinct", "Places with the same words once, the first of them.")
]
Out = Annotated[
    Path | None,
    option(
        "--out -o FILE", "Places as JSON lines, as they are found; an existing file is continued."
    ),
]


@dataclass(frozen=True)
class CollectOptions:
    """Options of `esa collect` besides those of the model."""

    count: Counted = False
    form: Form = "table"
    minimum: Minimum = None
    every: Every = False
    least: Least = None
    distinct: Distinct = False
    library: InLibrary = False
    read: Read = "first"
    keep: options.Keep = None
    out: Out = None
    reader: answer_options.ReaderName = None
    reader_model: answer_options.ReaderModel = None
    reader_timeout: answer_options.ReaderTimeout = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    def check(self) -> None:
        """Raises UsageError where options exclude each other, or a number is none."""
        if self.every and self.minimum is not None:
            raise UsageError("--all and --min exclude each other", "give one of them")
        if self.form != "table" and (self.as_json or self.count):
            other = "--json" if self.as_json else "--count"
            raise UsageError(f"{other} and --format {self.form} exclude each other", "give one")
        for name, value in {"--min": self.minimum, "--least": self.least}.items():
            if value is not None and math.isnan(value):
                raise UsageError(f"{name} must be a number, got nan", f"for example: {name} 1")
        if self.keep and self.read == "never":
            raise UsageError("--read never has nothing to keep", "give --read never or --keep")

    @property
    def answer(self) -> AnswerOptions:
        """What reads the passages."""
        return AnswerOptions(
            reader=self.reader, reader_model=self.reader_model, reader_timeout=self.reader_timeout
        )

    @property
    def how(self) -> dict[str, Any]:
        """Keyword arguments of `Esa.collect`."""
        least = {} if self.least is None else {"least": self.least}
        return {"minimum": self.minimum, "every": self.every, **least}


@options.command
def collect(arguments: Arguments = None, *, ways: CollectOptions, model: ModelOptions) -> None:
    """Collect every place in documents that answers a question.

    esa collect book.txt "How old is somebody?"
    """
    from esa_cli.apps.cli.options.output_paths import check
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.cli.request import no_keep_hint, split
    from esa_cli.apps.collected_file import CollectedFile

    ways.check()
    documents, question = split(arguments or [], library=ways.library, verb="collect")
    run = CollectRun(documents, question, ways, model, Reporter(ways.quiet))
    check("--out", ways.out)
    CollectedFile.check(ways.out)
    try:
        with no_keep_hint(ways.keep), ExitStack() as stack:
            run.run(stack)
    finally:
        run.reporter.settle()
    if not run.places:
        raise typer.Exit(NOT_FOUND)


@dataclass
class CollectRun:
    """One `esa collect`: what was asked for, and the places so far."""

    documents: Sequence[str]
    question: str
    ways: CollectOptions
    model: ModelOptions
    reporter: Reporter
    places: list[CollectedPlace] = field(default_factory=list)
    _words: set[str] = field(default_factory=set)

    def run(self, stack: ExitStack) -> None:
        """Collects, and says on standard error how much was read. Raises EsaError."""
        from esa_cli.apps.cli.inputs import library_books, read_files
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.apps.cli.options.output_paths import spare
        from esa_cli.apps.cli.output.answer_output import asked_documents
        from esa_cli.apps.cli.output.terminal import print_json
        from esa_cli.apps.collected_file import CollectedFile
        from esa_cli.documents.sources import source_files
        from esa_cli.qa.books import distinct
        from esa_cli.qa.collecting import distinct_places
        from esa_cli.qa.presets.adapter_files import check_adapter
        from esa_cli.storage.library import Library

        ways, started = self.ways, time.perf_counter()
        chosen = self._load_preset()
        check_adapter(chosen.answer)
        files, library = source_files(self.documents), Library()
        reader = ways.answer.reader_choice()
        spare("--out", ways.out, files.paths)
        gathered = read_files(files, self.reporter)
        esa = stack.enter_context(
            opened(
                chosen, self.model, self.reporter, keep=ways.keep, library=library, reader=reader
            )
        )
        make = esa.ingest if ways.read == "first" else esa.open
        books = [make(one) for one in gathered.documents]
        if ways.library:
            books += library_books(esa.stored, library, self.reporter, make)
        books = distinct(books)
        about = {"documents": [one.document.name for one in books], "preset": chosen.name}
        file = CollectedFile(ways.out, self.question, self._key(chosen, books), about)
        coverage = self._follow(esa, books, stack.enter_context(file))
        by = esa.reader.name if esa.reader else esa.name
        caveat = f"{by} misses places and adds wrong ones"
        different = distinct_places(self.places)
        if ways.as_json:
            shown = different if ways.distinct else self.places
            print_json(
                {
                    "question": self.question,
                    "count": len(self.places) if coverage.read else None,
                    "distinct": len(different) if coverage.read else None,
                    "caveat": caveat,
                    "places": [one.as_row() for one in shown],
                    "coverage": {
                        "passages": coverage.passages,
                        "chosen": coverage.chosen,
                        "read": coverage.read,
                    },
                    "documents": asked_documents(books),
                    "left_out": [one.as_dict() for one in gathered.left_out],
                    "model": chosen.model,
                    "reader": None if esa.reader is None else esa.reader.name,
                    "preset": chosen.name,
                    "seconds": round(time.perf_counter() - started, 3),
                }
            )
        elif coverage.read and ways.count:
            print(f"{places_text(len(self.places))}, {len(different):,} distinct ({caveat})")
        elif coverage.read:
            self.reporter.note(f"esa: {caveat}: see docs/answers.md")

    def _load_preset(self) -> Preset:
        """The preset with answers from text, which are its own or those that `from` leaves open.

        Raises:
            UsageError: it says that its answers come from rows. Others as
                `AnswerOptions.load_preset`.
        """
        from esa_cli.qa.opening import from_text

        chosen = self.ways.answer.load_preset(self.model)
        if self.ways.least is not None and chosen.answer.reader is not None:
            raise UsageError(
                f"--least is of the model that finds, and {chosen.answer.reader} decides by its "
                "words",
                "leave out --least, or --model and --reader",
            )
        if chosen.answer.source == "text":
            return chosen
        if chosen.answer.says_source:
            raise UsageError(
                f"places are collected from text, and preset {chosen.name} answers from rows",
                "add --set answer.from=text",
            )
        return from_text(chosen)

    def _key(self, chosen: Preset, books: Sequence[Book]) -> str:
        """A digest of all that the places depend on."""
        from esa_cli.qa.collecting import FIT, NEAR, SIEVE, WHOLE
        from esa_cli.qa.presets.cache_key import text_settings_hash
        from esa_cli.system.text import text_digest

        facts = {
            "question": self.question,
            "documents": [(text_digest(b.document.text), b.index is not None) for b in books],
            "preset": text_settings_hash(chosen),
            "sieve": (WHOLE, SIEVE, NEAR, FIT),
            **self.ways.how,
            **self.ways.answer.dependencies,
        }
        return text_digest(json.dumps(facts, sort_keys=True))[:16]

    def _follow(self, esa: Esa, books: Sequence[Book], file: CollectedFile) -> Coverage:
        """Takes all places, those of earlier runs first; how much was read."""
        reporter, earlier = self.reporter, file.earlier.places
        progress = PassageProgress(reporter)
        places: Collection

        def show(done: int, total: int) -> None:
            file.reached(places.settled, places.coverage)
            progress.show(done, total, len(self.places))

        places = esa.collect(
            self.question, books, **self.ways.how, progress=show, after=file.earlier
        )
        if earlier:
            reporter.note(f"esa: kept from an earlier run: {places_text(len(earlier))}")
        for one in earlier:
            self._add(one)
        try:
            for one in places:
                file.add(one)
                reporter.settle()
                self._add(one)
                progress.show_again(len(self.places))
        except BaseException:
            reporter.settle()
            self._end()
            goes_on = "; the same command goes on" if self.ways.out else ""
            reporter.warn(f"esa: stopped: {coverage_text(places.coverage)}{goes_on}")
            raise
        finally:
            file.reached(places.settled, places.coverage, stopped=True)
        reporter.settle()
        self._end()
        self._say(places.coverage)
        return places.coverage

    def _add(self, place: CollectedPlace) -> None:
        """Takes a place in its turn; CSV and JSON lines are written at once."""
        from esa_cli.apps.cli.output.terminal import as_json, clean

        self.places.append(place)
        if self.ways.distinct and place.words in self._words:
            return
        self._words.add(place.words)
        row = place.as_row()
        if self.ways.form == "jsonl":
            print(as_json(row), flush=True)
        elif self.ways.form == "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            if len(self.places) == 1:
                writer.writerow(FIELDS)
            writer.writerow("" if row[name] is None else clean(str(row[name])) for name in FIELDS)
            sys.stdout.flush()

    def _end(self) -> None:
        """Writes the table of the places so far."""
        from esa_cli.apps.cli.output.terminal import one_line, print_table
        from esa_cli.qa.collecting import distinct_places

        shown = distinct_places(self.places) if self.ways.distinct else self.places
        if not shown or self.ways.count or self.ways.as_json or self.ways.form != "table":
            return
        rows = []
        for one in shown:
            page = "" if one.page is None else f", page {one.page}"
            cells = (f"{one.document}:{one.line}{page}", one.answer or one.text, one.sentence)
            rows.append([one_line(" ".join(cell.split())) for cell in cells])
        print_table(("place", "words", "sentence"), rows)

    def _say(self, coverage: Coverage) -> None:
        """How much was read, and where that ends."""
        from esa_cli.qa.collecting import SIEVE

        if not coverage.read:
            self.reporter.warn("esa: no passage has so high a score, so none was read; lower --min")
            return
        text = coverage_text(coverage)
        if coverage.read < coverage.passages:
            least = SIEVE if self.ways.minimum is None else self.ways.minimum
            best = " and those nearly as good as the best" * (self.ways.minimum is None)
            text += f", those with a score of {least:g} or more{best}"
            edge = sum(one.score < least + EDGE for one in self.places)
            some = f", as {edge} of the places scored below {least + EDGE:g}" if edge else ""
            self.reporter.note(f"esa: {text}")
            text = f"a lower --min may find more{some}"
        self.reporter.note(f"esa: {text}")


class PassageProgress:
    """A spinner on a terminal, from the finding of passages on; elsewhere a line now and then."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._note = reporter.waiting if reporter.live else reporter.throttled()
        self._started, self._first = 0.0, -1
        self._passages = (0, 0)
        reporter.waiting("finding passages")

    def show(self, done: int, total: int, places: int) -> None:
        """Shows passages read, those to be read, and places found."""
        from esa_cli.system.machine import time_text

        self._passages = (done, total)
        if self._first < 0:
            self._started, self._first = time.monotonic(), done
        each = (time.monotonic() - self._started) / max(1, done - self._first)
        left = f", {time_text(each * (total - done))} left" if done > self._first else ""
        self._note(f"{done:,} of {total:,} passages, {places_text(places)}{left}")

    def show_again(self, places: int) -> None:
        """Brings the spinner back, which what was printed has taken away."""
        if self._reporter.live:
            self.show(*self._passages, places)


def places_text(count: int) -> str:
    """`1 place`, `2,451 places`."""
    return f"{count:,} place" + "s" * (count != 1)


def coverage_text(coverage: Coverage) -> str:
    """`312 of 2,451 passages (13 %) were read again`."""
    share = f"{100 * coverage.share:.0f} %"
    return f"{coverage.read:,} of {coverage.passages:,} passages ({share}) were read again"
