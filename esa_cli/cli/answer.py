"""What `ask` does: documents, found or read; then a question, its answer, and what it rests on.

Everything that can be wrong without the model is found out before it is loaded.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import models, preset
from ..document import Document, join, read_documents
from ..errors import UsageError
from . import files, shown
from .known import Known, Place, look
from .open import opened
from .render import Reporter, print_json
from .run import Request

if TYPE_CHECKING:
    from ..api import Esa
    from ..book import Book
    from ..library import Library


@dataclass(frozen=True)
class Ways:
    """How to ask and what to show.

    Args:
        keep: put documents that are not in the library there. shelf: ask about all that is there.
        evidence: passages below the answer. report: a page to write. lines: questions come one a
            line on standard input.
    """

    keep: bool = False
    shelf: bool = False
    evidence: int = 3
    report: Path | None = None
    lines: bool = False
    rows: str = "int8"


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
    documents = read_documents(request.documents, say=reporter.note) if request.documents else []
    documents = _once(documents, reporter)
    from ..library import Library

    library = Library()
    known = _known(request, chosen, documents, library, ways, reporter)
    from ..api import distinct

    with opened(
        request.preset, request.overrides, request.device, request.dtype, reporter,
        keep=ways.keep, rows=ways.rows, library=library, known=known,
    ) as esa:  # fmt: skip
        timing.load_s = timing.lap()
        books = [esa.ingest(document) for document in documents]
        if ways.shelf:
            books += _shelf(esa, library, reporter)
        timing.ingest_s = timing.lap()
        read = [book for book in books if book.read_s]
        if read:
            seconds = sum(book.read_s for book in read)
            timing.ingest_tokens_per_s = sum(book.tokens for book in read) / seconds
        books = distinct(books)
        if ways.lines:
            return _lines(esa, books, request, ways, reporter, as_json)
        _ask(esa, books, request, ways, reporter, timing, as_json)
    return 0


def _once(documents: Sequence[Document], reporter: Reporter) -> list[Document]:
    """The documents, each text once: a copy would be read, and asked, for nothing."""
    out: dict[str, Document] = {}
    for document in documents:
        if out.setdefault(document.text, document) is not document:
            reporter.note(f"esa: {document.source}: the same text again, asked once", dim=False)
    return list(out.values())


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
    from .. import build

    build.method(chosen)
    known = look(chosen, Place.of(request.device, request.dtype), reporter)
    there = {entry.text_sha256 for entry in library.entries()}
    new = [one for one in documents if _sha256(one.text) not in there]
    if new and not ways.keep:
        known.plan(chosen, known.tokens(join(new))).check()
    return known


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _shelf(esa: Esa, library: Library, reporter: Reporter) -> list[Book]:
    """Every book of the library that this model and method can ask about.

    Raises:
        UsageError: there is none.
    """
    from ..library import LibraryError

    books = []
    for entry in library.entries():
        try:
            books.append(esa.stored(entry))
        except (UsageError, LibraryError) as error:
            reporter.note(f"esa: left out: {error.message}", dim=False)
    if not books:
        raise UsageError("the library has no document for this preset", "`esa ingest` reads one")
    return books


def _lines(
    esa: Esa,
    books: Sequence[Book],
    request: Request,
    ways: Ways,
    reporter: Reporter,
    as_json: bool,
) -> int:
    from .ask_lines import PARTIAL, ask_lines
    from .stdin_lines import numbered

    wrong = ask_lines(
        esa, books, numbered(sys.stdin), sys.stdout, as_json, reporter=reporter,
        options=_options(request), shown=ways.evidence,
    )  # fmt: skip
    return PARTIAL if wrong else 0


def _options(request: Request) -> dict[str, Any]:
    return {
        "max_new_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
    }


def _ask(
    esa: Esa,
    books: Sequence[Book],
    request: Request,
    ways: Ways,
    reporter: Reporter,
    timing: shown.Timing,
    as_json: bool,
) -> None:
    reporter.waiting("answering")
    reply = esa.ask(
        request.question,
        books,
        evidence=ways.evidence,
        on_text=None if as_json else shown.without_margin(reporter),
        **_options(request),
    )
    timing.answer_s = timing.lap()
    reporter.settle()
    if ways.report is not None:
        page = esa.report(reply, request.question, books)
        with files.writing(ways.report):
            ways.report.write_text(page, "utf-8")
    result = shown.as_dict(esa, books, reply, timing)
    if as_json:
        print_json(result)
        return
    print(flush=True)
    from .quoted import under

    for line in under(reply, ways.evidence, reporter.live):
        reporter.note(line, dim=False)
    reporter.note(shown.summary(result))
    if ways.report is not None:
        reporter.note(f"esa: wrote {ways.report}")
