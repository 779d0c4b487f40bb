"""`esa find`: the passages of documents that fit some words, with their places, without an answer.

Nothing is read again, so neither the adapter nor, where words alone are searched, the model is
loaded.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.commands.ask_command import InLibrary
from esa_cli.apps.cli.inputs import no_keep_hint, read_files, split
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.answer_output import asked_documents
from esa_cli.apps.cli.output.terminal import Reporter, print_json
from esa_cli.documents.sources import source_files
from esa_cli.documents.text_builder import first_names
from esa_cli.errors import NOT_FOUND
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esa_cli.qa.answering.reply import Passage
    from esa_cli.qa.books import Book

TOP = 8
Read = Annotated[
    Literal["first", "never"],
    option("--read first|never", "Whether the finder reads a new document before it is searched."),
]


@dataclass(frozen=True)
class FindOptions:
    """Options of `esa find` besides those of the model."""

    top: Annotated[int | None, option("--top N", "Passages; 8.", min=1)] = None
    minimum: Annotated[
        float | None,
        option(
            "--min SCORE",
            "Minimum score, in standard deviations above the mean; 0. With --all and --files, "
            "passages above it are shown in place of those with the words.",
        ),
    ] = None
    every: Annotated[bool, option("--all", "Every place with the words, in document order.")] = (
        False
    )
    files: Annotated[
        bool, option("--files", "Only the names of all files with the words, best first.")
    ] = False
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
        """Raises UsageError where options exclude each other."""
        goes_by, reads = "--all" if self.every else "--files", self.read == "first"
        options.exclusive("--all", "--files", self.every and self.files)
        options.exclusive("--all", f"--top {self.top}", self.every and self.top)
        options.exclusive("--keep", "--read never", self.keep and not reads, "add --read first")
        hint = f"the words alone need no reading; with --min 2 {goes_by} goes by the score"
        options.exclusive(goes_by, "--read first", self.by_words and reads, hint)


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
    ways: Annotated[FindOptions, options.Hidden("keep")],
    model: ModelOptions,
) -> None:
    """Find passages in documents, without an answer.

    esa find book.txt "the white whale"
    """
    ways.check()
    documents, question = split(arguments or [], library=ways.library, verb="find")
    with Reporter(ways.quiet) as reporter, no_keep_hint(ways.keep), ExitStack() as stack:
        passages = _find(documents, question, ways, model, reporter, stack)
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
) -> Sequence[Passage]:
    """Opens the documents, finds passages and prints them. Raises EsaError."""
    from esa_cli.apps.cli import document_search as searching
    from esa_cli.apps.cli.output import passage_output as output
    from esa_cli.apps.cli.passage_books import PassageBooks
    from esa_cli.qa.books import distinct, place_books
    from esa_cli.qa.presets.adapter_files import check_adapter, for_finding

    started = time.perf_counter()
    chosen = for_finding(model.load_preset(), ways.by_words)
    check_adapter(chosen.answer)
    files, library = source_files(names), Library()
    opener = PassageBooks(
        chosen, model, library, reporter, stack, read=ways.read == "first", keep=ways.keep
    )
    search = stack.enter_context(
        searching.document_search(
            files, library, reporter,
            most=chosen.answer.documents, in_library=ways.library, keep=ways.keep,
        )
    )  # fmt: skip
    gathered = read_files(files if search is None else searching.named_alone(files), reporter)
    books, searched = [opener.open(document) for document in gathered.documents], 0
    if search is not None:
        if ways.by_words:
            search.open_all_with_words(question)
        best = searching.BestBooks(search, opener.stored, opener.open, reporter)
        books += best.books(question)
        searched = best.searched
    elif ways.library:
        books += searching.library_books(opener.stored, library, reporter, opener.open)
    books, opened = distinct(books), time.perf_counter()
    reporter.waiting("searching")
    passages = _passages(question, books, ways, opener, reporter)
    seconds = time.perf_counter() - opened
    reporter.settle()
    if ways.every:
        order = {book.document.name: number for number, book in enumerate(place_books(books))}
        passages = sorted(passages, key=lambda one: (order[one.document], one.start))
    matches = output.files_of(passages)[: ways.top] if ways.files else passages
    if ways.as_json:
        documents = asked_documents(books)
        for facts in documents:
            del facts["tokens"]  # not counted where there is no tokenizer
        print_json(
            {
                "files" if ways.files else "passages": [output.match_facts(m) for m in matches],
                "read": all(book.read for book in books),
                "documents": documents,
                **({"searched": searched} if searched else {}),
                "left_out": [one.as_dict() for one in gathered.left_out],
                "model": chosen.model if opener.loaded else None,
                "preset": chosen.name,
                "timing": {"open_s": round(opened - started, 3), "find_s": round(seconds, 3)},
            }
        )
    elif ways.files:
        for match in matches:
            print(output.file_of(match))
    else:
        output.print_passages(passages, question)
    unread = [book.document.name for book in books if not book.read]
    if unread and chosen.answer.has_index:
        which, them = first_names(unread), "it" if len(unread) == 1 else "them"
        note = f"not read, searched by words alone: {which}; --read first reads {them}"
        reporter.note(f"esa: {note}")
    return passages


def _passages(
    question: str, books: list[Book], ways: FindOptions, opener: Any, reporter: Reporter
) -> Sequence[Passage]:
    """The passages, best first."""
    from esa_cli.qa.books import place_books
    from esa_cli.qa.finding.passage_finder import passages_with_words

    if not ways.by_words:
        most = None if ways.every or ways.files else ways.top or TOP
        passages: Sequence[Passage] = opener.passages(question, books, most, ways.minimum)
        return passages
    result = passages_with_words(question, place_books(books))
    if 0 < result.most < result.words:
        part = f"{result.most} of the {result.words} words"
        reporter.note(f"esa: no passage has all of the words; these have {part}")
    return result.passages
