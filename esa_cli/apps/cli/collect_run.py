"""A run of `esa collect` or `esa count`: documents, places as they are found, and what is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esa_cli.apps.cli.output.answer_output import asked_documents
from esa_cli.apps.cli.output.passage_progress import PassageProgress, places_text
from esa_cli.apps.cli.output.terminal import Reporter, print_json
from esa_cli.apps.collect.collected_file import CollectedFile, place_row
from esa_cli.qa.collecting.collection import CollectedPlace, Coverage, distinct_places

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.collect_request import CollectRequest
    from esa_cli.documents.document import LeftOut
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book
    from esa_cli.qa.collecting.collection import Collection

EDGE = 0.5
"""Standard deviations above the least score: places of such passages are at the edge."""


@dataclass(frozen=True)
class CollectedPlaces:
    """The places of one run: `every` one, and `places`, those that are shown; by: which model's
    they are."""

    request: CollectRequest
    every: Sequence[CollectedPlace]
    coverage: Coverage
    books: Sequence[Book]
    left_out: Sequence[LeftOut]
    model: str
    by: str
    preset: str
    seconds: float

    @property
    def caveat(self) -> str:
        """What a reader of the places must know."""
        return f"{self.by} misses places and adds wrong ones"

    @property
    def places(self) -> Sequence[CollectedPlace]:
        return distinct_places(self.every) if self.request.options.distinct else self.every

    def print_json(self, places: bool = True) -> None:
        """One JSON object on standard output."""
        shown = {"places": [place_row(one) for one in self.places]} if places else {}
        ways = self.request.options
        print_json(
            {
                "question": self.request.question,
                "count": len(self.every) if self.coverage.read else None,
                "distinct": len(distinct_places(self.every)) if self.coverage.read else None,
                "caveat": self.caveat,
                **shown,
                "coverage": {
                    "passages": self.coverage.passages,
                    "chosen": self.coverage.chosen,
                    "read": self.coverage.read,
                },
                "documents": asked_documents(self.books),
                "left_out": [one.as_dict() for one in self.left_out],
                "model": self.model,
                "reader": ways.reader_model or ways.reader,
                "preset": self.preset,
                "seconds": round(self.seconds, 3),
            }
        )


def run_collect(
    request: CollectRequest, add: Callable[[CollectedPlace], None], end: Callable[[], None]
) -> CollectedPlaces:
    """Collects, and says on standard error how much was read.

    Args:
        add: called with each place in its turn. end: called after the last, and where Ctrl-C or an
            error ends the run.

    Raises:
        EsaError.
    """
    from esa_cli.apps.cli.options.output_paths import check
    from esa_cli.apps.cli.request import no_keep_hint

    reporter = Reporter(request.options.quiet)
    check("--out", request.options.out)
    CollectedFile.check(request.options.out)
    try:
        with no_keep_hint(request.options.keep), ExitStack() as stack:
            return _collected(request, add, end, reporter, stack)
    finally:
        reporter.settle()


def _collected(
    request: CollectRequest,
    add: Callable[[CollectedPlace], None],
    end: Callable[[], None],
    reporter: Reporter,
    stack: ExitStack,
) -> CollectedPlaces:
    from esa_cli.apps.cli.inputs import library_books, read_files
    from esa_cli.apps.cli.model_choice.open_esa import opened
    from esa_cli.apps.cli.options.output_paths import spare
    from esa_cli.documents.sources import source_files
    from esa_cli.qa.books import distinct
    from esa_cli.qa.presets.adapter_files import check_adapter
    from esa_cli.storage.library import Library

    ways, started = request.options, time.perf_counter()
    chosen = request.load_preset()
    check_adapter(chosen.answer)
    files, library, reader = source_files(request.documents), Library(), ways.answer.reader_choice()
    spare("--out", ways.out, files.paths)
    given = read_files(files, reporter)
    esa = stack.enter_context(
        opened(chosen, request.model, reporter, keep=ways.keep, library=library, reader=reader)
    )
    make = esa.ingest if ways.read == "first" else esa.open
    books = [make(one) for one in given.documents]
    if ways.library:
        books += library_books(esa.stored, library, reporter, make)
    books = distinct(books)
    about = {"documents": [one.document.name for one in books], "preset": chosen.name}
    kept = CollectedFile(ways.out, request.question, request.key(chosen, books), about)
    every, coverage = _follow(esa, books, stack.enter_context(kept), request, add, end, reporter)
    by = esa.reader.name if esa.reader else esa.name
    return CollectedPlaces(
        request, every, coverage, books, given.left_out, chosen.model, by, chosen.name,
        time.perf_counter() - started,
    )  # fmt: skip


def _follow(
    esa: Esa,
    books: Sequence[Book],
    kept: CollectedFile,
    request: CollectRequest,
    add: Callable[[CollectedPlace], None],
    end: Callable[[], None],
    reporter: Reporter,
) -> tuple[list[CollectedPlace], Coverage]:
    """All places, those of earlier runs first, and how much was read."""
    every, waits = list(kept.earlier.places), PassageProgress(reporter)
    places: Collection

    def progress(done: int, total: int) -> None:
        kept.reached(places.settled, places.coverage)
        waits.show(done, total, len(every))

    places = esa.collect(
        request.question, books, **request.options.how, progress=progress, after=kept.earlier
    )
    if every:
        reporter.note(f"esa: kept from an earlier run: {places_text(len(every))}")
    for one in every:
        add(one)
    try:
        for one in places:
            kept.add(one)
            every.append(one)
            reporter.settle()
            add(one)
            waits.show_again(len(every))
    except BaseException:
        reporter.settle()
        end()
        goes_on = "; the same command goes on" if request.options.out else ""
        reporter.warn(f"esa: stopped: {coverage_text(places.coverage)}{goes_on}")
        raise
    finally:
        kept.reached(places.settled, places.coverage, stopped=True)
    reporter.settle()
    end()
    _say(places.coverage, every, request, reporter)
    return every, places.coverage


def coverage_text(coverage: Coverage) -> str:
    """`312 of 2,451 passages (13 %) were read again`."""
    share = f"{100 * coverage.share:.0f} %"
    return f"{coverage.read:,} of {coverage.passages:,} passages ({share}) were read again"


def _say(
    coverage: Coverage,
    every: Sequence[CollectedPlace],
    request: CollectRequest,
    reporter: Reporter,
) -> None:
    """How much was read, and where that ends."""
    from esa_cli.qa.collecting.told_spans import SIEVE

    if not coverage.read:
        reporter.warn("esa: no passage was read: none has so high a score; give a lower --min")
        return
    text = coverage_text(coverage)
    if coverage.read < coverage.passages:
        least = SIEVE if request.options.minimum is None else request.options.minimum
        best = " and those nearly as good as the best" * (request.options.minimum is None)
        text += f", those with a score of {least:g} or more{best}"
        edge = sum(one.score < least + EDGE for one in every)
        some = f", as {edge} of the places scored below {least + EDGE:g}" if edge else ""
        reporter.note(f"esa: {text}")
        text = f"a lower --min may find more{some}"
    reporter.note(f"esa: {text}")
