"""`esa find`: the passages of documents that fit some words, with their places, without an answer.

Nothing is read again, so neither the adapter nor, where words alone are searched, the model is
loaded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli.commands.ask_command import InLibrary
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import NOT_FOUND, UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.passage_output import FoundPassages
    from esa_cli.apps.cli.output.terminal import Reporter

TOP = 8
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... WORDS",
        help="Files, folders or patterns, or - for standard input; then words or a question, in "
        "quotes.",
    ),
]
Top = Annotated[int | None, option("--top N", "Passages; 8.", min=1)]
Minimum = Annotated[
    float | None,
    option(
        "--min SCORE",
        "Minimum score, in standard deviations above the mean; 0. With --all and --files, "
        "passages above it are shown in place of those with the words.",
    ),
]
Every = Annotated[bool, option("--all", "Every place with the words, in document order.")]
Files = Annotated[
    bool, option("--files", "Only the names of all files with the words, best first.")
]
Read = Annotated[
    Literal["first", "never"],
    option("--read first|never", "Whether the finder reads a new document before it is searched."),
]


@dataclass(frozen=True)
class FindOptions:
    """Options of `esa find` besides those of the model."""

    top: Top = None
    minimum: Minimum = None
    every: Every = False
    files: Files = False
    library: InLibrary = False
    read: Read = "never"
    keep: options.Keep = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    @property
    def by_words(self) -> bool:
        """Whether every passage with the words is wanted, and none else."""
        return (self.every or self.files) and self.minimum is None

    def check(self) -> None:
        """Raises UsageError where options exclude each other, or --min is no number."""
        if self.every and (self.files or self.top is not None):
            other = "--files" if self.files else f"--top {self.top}"
            raise UsageError(f"--all and {other} exclude each other", "give one of them")
        if self.minimum is not None and math.isnan(self.minimum):
            raise UsageError("--min must be a number, got nan", "for example: --min 3")
        if self.keep and self.read == "never":
            raise UsageError("--keep needs --read first, or nothing is read", "add --read first")
        if self.by_words and self.read == "first":
            option = "--all" if self.every else "--files"
            raise UsageError(
                f"{option} goes by the words alone, for which nothing is read",
                f"leave out --read first, or add --min 2: {option} then goes by the score",
            )


@options.command
def find(arguments: Arguments = None, *, ways: FindOptions, model: ModelOptions) -> None:
    """Find passages in documents, without an answer.

    esa find book.txt "the white whale"
    """
    from esa_cli.apps.cli.output.passage_output import files_of, print_files, print_passages
    from esa_cli.apps.cli.output.terminal import Reporter, print_json
    from esa_cli.apps.cli.request import no_keep_hint, split

    ways.check()
    documents, question = split(arguments or [], library=ways.library, verb="find")
    reporter = Reporter(ways.quiet)
    try:
        with no_keep_hint(ways.keep), ExitStack() as stack:
            result = _find(documents, question, ways, model, reporter, stack)
            reporter.settle()
    finally:
        reporter.settle()
    passages = result.in_document_order() if ways.every else result.passages
    files = files_of(passages)[: ways.top] if ways.files else None
    if ways.as_json:
        print_json(result.as_dict(passages, files))
    elif files is None:
        print_passages(passages, question)
    else:
        print_files(files)
    if note := result.unread:
        reporter.note(f"esa: {note}")
    if not passages:
        reporter.warn("esa: no passage fits")
        raise typer.Exit(NOT_FOUND)


def _find(
    names: Sequence[str],
    question: str,
    ways: FindOptions,
    model: ModelOptions,
    reporter: Reporter,
    stack: ExitStack,
) -> FoundPassages:
    """Opens the documents, and finds passages. Raises EsaError."""
    from esa_cli.apps.cli.best_books import BestBooks
    from esa_cli.apps.cli.document_search import document_search, named_alone
    from esa_cli.apps.cli.inputs import library_books, read_files
    from esa_cli.apps.cli.output.passage_output import FoundPassages
    from esa_cli.apps.cli.passage_books import PassageBooks
    from esa_cli.documents.sources import source_files
    from esa_cli.qa.books import distinct, place_books
    from esa_cli.qa.finding.passage_finder import passages_with_words
    from esa_cli.qa.presets.adapter_files import check_adapter, for_finding
    from esa_cli.storage.library import Library

    started = time.perf_counter()
    chosen = for_finding(model.load_preset(), ways.by_words)
    check_adapter(chosen.answer)
    files, library = source_files(names), Library()
    opener = PassageBooks(
        chosen, model, library, reporter, stack, read=ways.read == "first", keep=ways.keep
    )
    search = stack.enter_context(
        document_search(
            files, library, reporter,
            most=chosen.answer.documents, in_library=ways.library, keep=ways.keep,
        )
    )  # fmt: skip
    gathered = read_files(files if search is None else named_alone(files), reporter)
    books, searched = [opener.open(one) for one in gathered.documents], 0
    if search is not None:
        if ways.by_words:
            search.open_all_with_words(question)
        best = BestBooks(search, opener.stored, library, opener.open, reporter)
        books += best.books(question)
        searched = best.searched
    elif ways.library:
        books += library_books(opener.stored, library, reporter, opener.open)
    books, opened = distinct(books), time.perf_counter()
    reporter.waiting("searching")
    if ways.by_words:
        result = passages_with_words(question, place_books(books))
        passages = result.passages
        if 0 < result.most < result.words:
            part = f"{result.most} of the {result.words} words"
            reporter.note(f"esa: no passage has all of the words; these have {part}")
    else:
        most = None if ways.every or ways.files else ways.top or TOP
        passages = opener.passages(question, books, most, ways.minimum)
    timing = {"open_s": opened - started, "find_s": time.perf_counter() - opened}
    return FoundPassages(
        passages, books, gathered.left_out, searched, chosen, opener.loaded, timing
    )
