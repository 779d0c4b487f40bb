"""`esa count`: how many places of documents fit a question."""

from __future__ import annotations

from typing import Annotated

import typer

from esa_cli.apps.cli.commands.collect_command import Arguments
from esa_cli.apps.cli.commands.collect_request import (
    AS_COLLECTED,
    CollectOptions,
    CollectRequest,
)
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import NOT_FOUND

EXAMPLE = 'for example: esa count book.txt "How old is somebody?"'
Listed = Annotated[bool, typer.Option("--list", help="Show the places, too.")]


@options.command
def count(
    arguments: Arguments = None,
    listed: Listed = False,
    ways: CollectOptions = AS_COLLECTED,
    model: ModelOptions = options.DEFAULTS,
) -> None:
    """Count the places in documents that answer a question.

    esa count book.txt "How old is somebody?"
    """
    from esa_cli.apps.cli.collect_run import run_collect
    from esa_cli.apps.cli.output.place_output import PlaceOutput, count_text
    from esa_cli.apps.cli.request import check_characters, split

    ways.check()
    documents, question = split(arguments or [], library=ways.library, example=EXAMPLE)
    check_characters(question)
    request = CollectRequest(documents, question, ways, model)
    output = PlaceOutput("table" if listed and not ways.as_json else "none", ways.distinct)
    found = run_collect(request, output.add, output.end)
    if ways.as_json:
        found.print_json(places=listed)
    elif found.coverage.read:
        print(f"{count_text(found.every)} ({found.caveat})")
    if not found.places:
        raise typer.Exit(NOT_FOUND)
