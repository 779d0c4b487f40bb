"""`esa chat`: a conversation about documents, on a terminal or line by line through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli import inputs
from esa_cli.apps.cli.commands.ask_command import Top
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import GenerationOptions, ModelOptions, ReaderOptions
from esa_cli.apps.cli.output.answer_output import passage_count
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.conversation import Conversation, edit_lines
from esa_cli.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.qa.api import Esa


@options.command
def chat(
    documents: Annotated[
        list[str], typer.Argument(metavar="DOC...", help="The documents to talk about.")
    ],
    keep: options.Keep = None,
    method: options.Method = None,
    top: Top = None,
    *,
    model: ModelOptions,
    generation: GenerationOptions,
    answer: ReaderOptions,
    quiet: options.Quiet = False,
) -> None:
    """Talk about documents: questions that know the ones before.

    Without a terminal, each line of standard input is a question. Exit code 7 then: some lines got
    an error in place of an answer.
    """
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.qa.opening import answerable

    if "-" in documents:
        raise UsageError(
            "standard input (-) must be a document or the questions, got both",
            "save the document to a file, and name that",
        )
    chosen = answer.load_preset(model, method)
    reader = answer.reader_choice()
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with Reporter(quiet) as reporter:
        gathered = inputs.read(documents, reporter).documents
        chosen = chosen if method else answerable(chosen, reporter)
        with opened(chosen, model, reporter, keep=keep, reader=reader) as asker:
            shown, asking = passage_count(top, quiet), generation.arguments()
            run(asker, gathered, reporter, asking, shown, on_terminal=on_terminal)


def run(
    asker: Esa,
    documents: Sequence[Document],
    reporter: Reporter,
    asking: dict[str, Any],
    shown: int,
    *,
    on_terminal: bool,
) -> None:
    """Has the documents read, then answers until there are no more questions.

    Raises:
        ResourceError: they do not fit. LibraryError: what is stored of one is damaged.
        typer.Exit: through a pipe, some lines got an error.
    """
    books = [asker.ingest(document) for document in documents]
    reporter.settle()
    names = [document.source for document in documents]
    talk = Conversation(
        asker, books, names, reporter, asking, passages=shown, stoppable=on_terminal
    )
    if on_terminal:
        many = f"{len(documents)} document" + "s" * (len(documents) != 1)
        reporter.note(f"{many}, {asker.name}; /help lists the commands, Ctrl-D ends")
        edit_lines(talk)
        return
    for _, line in inputs.numbered_lines(sys.stdin):
        if not talk.take_line(line):
            break
    if talk.failed:
        raise typer.Exit(PARTIAL)
