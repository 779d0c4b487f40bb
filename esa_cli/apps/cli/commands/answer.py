"""What `ask` does: documents, found or read; then a question, its answer, and what it rests on.

Everything that can be wrong without the model is found out before it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli import models
from esa_cli.apps.cli import answer_output as shown
from esa_cli.apps.cli import inputs as named
from esa_cli.apps.cli import output_paths as files
from esa_cli.apps.cli.by_method import of_documents
from esa_cli.apps.cli.open_esa import opened
from esa_cli.apps.cli.preflight import Known, Place, look
from esa_cli.apps.cli.request import Request
from esa_cli.apps.cli.terminal import Reporter, print_json
from esa_cli.documents.document import Document, Gathered, join
from esa_cli.errors import PARTIAL
from esa_cli.qa import preset
from esa_cli.system.digest import text_digest

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.ingest import Book
    from esa_cli.storage.library import Library


@dataclass(frozen=True)
class Ways:
    """How to ask and what to show.

    Args:
        keep: put documents that are not in the library there. shelf: ask about all that is there.
        evidence: passages below the answer; None: 3, or none where it is to be quiet.
        report: a page to write. lines: questions come one a line on standard input.
        method: a whole method over the preset.
    """

    keep: bool = False
    shelf: bool = False
    evidence: int | None = None
    report: Path | None = None
    lines: bool = False
    rows: str = "int8"
    method: str | None = None


def run(request: Request, ways: Ways, *, as_json: bool, quiet: bool) -> int:
    """Answers the question, on standard output; the exit code.

    Raises:
        EsaError: whatever was wrong, before or while answering.
    """
    reporter, timing = Reporter(quiet), shown.Timing()
    try:
        files.check("--report", ways.report)
        return _run(request, ways, reporter, timing, as_json)
    finally:
        reporter.settle()


def _run(
    request: Request, ways: Ways, reporter: Reporter, timing: shown.Timing, as_json: bool
) -> int:
    chosen = preset.load(request.preset, request.overrides)
    models.parse_reference(chosen.model)
    found = named.read(request.documents, reporter)
    documents = found.documents
    files.spare("--report", ways.report, [document.source for document in documents])
    if ways.method is not None:
        request = of_documents(request, ways.method, documents, reporter, shelf=ways.shelf)
        chosen = preset.load(request.preset, request.overrides)
    from esa_cli.storage.library import Library

    library = Library()
    known = _known(request, chosen, documents, library, ways, reporter)
    from esa_cli.qa.books import distinct

    with opened(
        request.preset, request.overrides, request.device, request.dtype, reporter,
        keep=ways.keep, rows=ways.rows, library=library, known=known,
    ) as esa:  # fmt: skip
        timing.load_s = timing.lap()
        books = [esa.ingest(document) for document in documents]
        if ways.shelf:
            books += named.library_books(esa, library, reporter)
        timing.ingested(books)
        books = distinct(books)
        if ways.lines:
            return _lines(esa, books, found, request, ways, reporter, as_json)
        _ask(esa, books, found, request, ways, reporter, timing, as_json)
    return 0


def _known(
    request: Request,
    chosen: preset.Preset,
    documents: Sequence[Document],
    library: Library,
    ways: Ways,
    reporter: Reporter,
) -> Known:
    """The model's small files, once what must be read anew is known to fit.

    Raises:
        ResourceError: it does not. ModelError, PresetError.
    """
    reporter.stage("import", 0, None)
    from esa_cli.qa import build_method as build

    build.method(chosen)
    known = look(chosen, Place.of(request.device, request.dtype), reporter)
    there = {entry.text_sha256 for entry in library.entries()}
    new = [one for one in documents if text_digest(one.text) not in there]
    if new and not ways.keep:
        known.plan(chosen, known.tokens(join(new))).check()
    return known


def _lines(
    esa: Esa,
    books: Sequence[Book],
    found: Gathered,
    request: Request,
    ways: Ways,
    reporter: Reporter,
    as_json: bool,
) -> int:
    from esa_cli.apps.cli.commands.ask_lines import ask_lines

    wrong = ask_lines(
        esa, books, named.numbered_lines(sys.stdin), sys.stdout, as_json, reporter=reporter,
        options=_options(request), shown=_passages(ways, reporter, as_json),
        left_out=found.left_out,
    )  # fmt: skip
    return PARTIAL if wrong else 0


def _options(request: Request) -> dict[str, Any]:
    return {
        "max_new_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
    }


def _passages(ways: Ways, reporter: Reporter, as_json: bool) -> int:
    return shown.passage_count(ways.evidence, reporter.quiet and not as_json)


def _ask(
    esa: Esa,
    books: Sequence[Book],
    found: Gathered,
    request: Request,
    ways: Ways,
    reporter: Reporter,
    timing: shown.Timing,
    as_json: bool,
) -> None:
    reporter.waiting("answering")
    count = _passages(ways, reporter, as_json)
    reply = esa.ask(
        request.question,
        books,
        evidence=count,
        on_text=None if as_json else shown.AnswerStream(sys.stdout, reporter),
        **_options(request),
    )
    timing.answer_s = timing.lap()
    reporter.settle()
    result = shown.as_dict(esa, books, reply, timing, found.left_out)
    if as_json:
        print_json(result)
    else:
        print(flush=True)
        shown.show_under(reply, count, reporter)
        reporter.note(shown.summary(result))
    if ways.report is not None:  # last: where it cannot be written, the answer is there
        files.write(ways.report, esa.report(reply, request.question, books))
        if not as_json:
            reporter.note(f"esa: wrote {ways.report}")
