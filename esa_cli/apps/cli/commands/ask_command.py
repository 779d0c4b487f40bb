"""`esa ask`: reads documents and answers one question about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli import by_method, options
from esa_cli.apps.cli.options import DEFAULT_PRESET

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... QUESTION",
        help="Files, folders or patterns, or - for standard input; then the question, in quotes.",
    ),
]
SelectorName = Annotated[str | None, typer.Option("--selector", help="The selector, by name.")]
ScoreName = Annotated[str | None, typer.Option("--score", help="The score, by name.")]
PositionName = Annotated[
    str | None, typer.Option("--position", help="The position encoding, by name.")
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-new-tokens", min=1, help="The longest answer, in tokens.")
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0.0, help="0: always the likeliest word.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, max=2**63 - 1, help="Makes a sampled answer repeatable."),
]
Shelf = Annotated[
    bool, typer.Option("--library", help="Ask about all documents of the library, too.")
]
Shown = Annotated[
    int | None, typer.Option("--evidence", min=0, max=50, help="Passages below the answer; 3.")
]
Report = Annotated[
    Path | None, typer.Option("--report", help="Write a page with the text and what was looked at.")
]
Lines = Annotated[bool, typer.Option("--stdin", help="Every line of standard input is a question.")]


def ask(
    arguments: Arguments = None,
    keep: options.Keep = False,
    library: Shelf = False,
    evidence: Shown = None,
    report: Report = None,
    stdin: Lines = False,
    preset: options.Preset = DEFAULT_PRESET,
    model: options.Model = None,
    method: by_method.Method = None,
    selector: SelectorName = None,
    score: ScoreName = None,
    position: PositionName = None,
    settings: options.Set = None,
    plugins: options.Plugin = None,
    max_new_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer a question about documents of any length.

    esa ask book.txt "Who is Ahab?"
    """
    from esa_cli.apps.cli.commands.answer import Ways, run
    from esa_cli.apps.cli.request import Request, split
    from esa_cli.errors import UsageError
    from esa_cli.system.surrogates import has_lone_surrogate

    if stdin and report is not None:
        raise UsageError("--report is of one question", "ask it without --stdin")
    ways = Ways(keep, library, evidence, report, stdin, method=method)
    documents, question = split(arguments or [], library=library, lines=stdin)
    if has_lone_surrogate(question):
        raise UsageError("the question is not UTF-8", "set the terminal to UTF-8 and type it again")
    options.load_plugins(plugins)
    parts = {"selector.name": selector, "score.name": score, "position.name": position}
    by_method.alone(method, parts)
    given = options.overrides({"model": model, **parts}, settings)
    request = Request(
        documents, question, preset, given, max_new_tokens, temperature, seed, device, dtype
    )
    code = run(request, ways, as_json=as_json, quiet=quiet)
    if code:
        raise typer.Exit(code)
