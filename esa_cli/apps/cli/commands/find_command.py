"""`esa find`: the passages of documents that fit some words, with their places, without an answer.

Nothing is read again, so neither the adapter nor, where words alone are searched, the model is
loaded.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli.commands.ask_command import InLibrary
from esa_cli.apps.cli.inputs import split
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.answer_output import asked_documents
from esa_cli.apps.cli.output.terminal import Reporter, print_json
from esa_cli.documents.readers.text_builder import first_names
from esa_cli.documents.sources import source_files
from esa_cli.errors import NOT_FOUND
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.passage import Passage

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
    ways: FindOptions,
    model: ModelOptions,
) -> None:
    """Find passages in documents, without an answer.

    esa find book.txt "the white whale"
    """
    from esa_cli.apps.cli.document_search import QuestionBooks
    from esa_cli.apps.cli.output.passage_output import file_name, files_of, print_passages
    from esa_cli.apps.cli.passage_books import PassageBooks
    from esa_cli.qa.finding.books import place_books
    from esa_cli.qa.finding.passage_finder import passages_with_words
    from esa_cli.qa.presets.adapter_files import check_adapter, for_finding

    ways.check()
    names, question = split(arguments or [], library=ways.library, verb="find")
    started = time.perf_counter()
    with Reporter(ways.quiet) as reporter, ExitStack() as stack:
        chosen = for_finding(model.load_preset(), ways.by_words)
        check_adapter(chosen.answer)
        files, library = source_files(names), Library()
        reads = ways.read == "first"

        def load() -> Esa:
            from esa_cli.apps.cli.open_esa import opened

            # Where nothing is read, a library that cannot be written is no matter.
            keep = ways.keep if reads or library.writable else False
            return stack.enter_context(opened(chosen, model, reporter, keep=keep, library=library))

        opener = PassageBooks(chosen, model, library, reporter, load, read=reads)
        documents = QuestionBooks(
            files, library, reporter, stack,
            most=chosen.answer.documents, in_library=ways.library, keep=ways.keep,
        )  # fmt: skip
        named = [opener.open(document) for document in documents.gathered.documents]
        documents.open(named, opener.stored, opener.open)
        books = documents.about(question, having_words=ways.by_words)
        began = time.perf_counter()
        reporter.waiting("searching")
        passages: Sequence[Passage]
        if ways.by_words:
            result = passages_with_words(question, place_books(books))
            passages = result.passages
            if 0 < result.most < result.words:
                part = f"{result.most} of the {result.words} words"
                reporter.note(f"esa: no passage has all of the words; these have {part}")
        else:
            most = None if ways.every or ways.files else ways.top or TOP
            passages = opener.passages(question, books, most, ways.minimum)
        seconds = time.perf_counter() - began
        reporter.settle()
        if ways.every:
            order = {book.document.name: number for number, book in enumerate(place_books(books))}
            passages = sorted(passages, key=lambda one: (order[one.document], one.start))
        matching = files_of(passages)[: ways.top] if ways.files else []
        if ways.as_json:
            listed = asked_documents(books)
            for one in listed:
                del one["tokens"]  # not counted where there is no tokenizer
            matches = matching if ways.files else [passage.as_found() for passage in passages]
            print_json(
                {
                    "files" if ways.files else "passages": matches,
                    "read": all(book.read for book in books),
                    "documents": listed,
                    **({"searched": documents.searched} if documents.searched else {}),
                    "left_out": [file.as_dict() for file in documents.gathered.left_out],
                    "model": chosen.model if opener.loaded else None,
                    "preset": chosen.name,
                    "timing": {"open_s": round(began - started, 3), "find_s": round(seconds, 3)},
                }
            )
        elif ways.files:
            for one in matching:
                print(file_name(one["document"], one["source"]))
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
