"""`esa collect`: every place of documents that fits a question, in order, without doubles."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from esa_cli.apps.cli.commands.collect_request import (
    AS_COLLECTED,
    CollectOptions,
    CollectRequest,
)
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import NOT_FOUND, UsageError

EXAMPLE = 'for example: esa collect book.txt "How old is somebody?"'
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... QUESTION",
        help="Files, folders or patterns, or - for standard input; then what to look for, as a "
        "question in quotes.",
    ),
]
Form = Annotated[
    Literal["table", "csv", "jsonl"],
    typer.Option(
        "--format",
        metavar="table|csv|jsonl",
        help="Of standard output; csv and jsonl come as they are found.",
    ),
]


@options.command
def collect(
    arguments: Arguments = None,
    form: Form = "table",
    ways: CollectOptions = AS_COLLECTED,
    model: ModelOptions = options.DEFAULTS,
) -> None:
    """Collect every place in documents that answers a question.

    esa collect book.txt "How old is somebody?"
    """
    from esa_cli.apps.cli.collect_run import run_collect
    from esa_cli.apps.cli.output.place_output import PlaceOutput
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.cli.request import check_characters, split

    ways.check()
    if ways.as_json and form != "table":
        raise UsageError(f"--json and --format {form} exclude each other", "give one of them")
    documents, question = split(arguments or [], library=ways.library, example=EXAMPLE)
    check_characters(question)
    request = CollectRequest(documents, question, ways, model)
    output = PlaceOutput("none" if ways.as_json else form, ways.distinct)
    found = run_collect(request, output.add, output.end)
    if ways.as_json:
        found.print_json()
    elif found.coverage.read:
        Reporter(ways.quiet).note(f"esa: {found.caveat}: see docs/answers.md")
    if not found.places:
        raise typer.Exit(NOT_FOUND)
