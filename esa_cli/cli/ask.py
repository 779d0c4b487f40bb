"""`esa ask`: reads documents and answers one question about them."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .options import DEFAULT_PRESET

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOC... QUESTION",
        help="Text or Markdown files, or - for standard input; then the question, in quotes.",
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


def ask(
    arguments: Arguments = None,
    preset: options.Preset = DEFAULT_PRESET,
    model: options.Model = None,
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
    from .run import Request, run, split

    documents, question = split(arguments or [])
    options.load_plugins(plugins)
    parts = {"selector.name": selector, "score.name": score, "position.name": position}
    given = options.overrides({"model": model, **parts}, settings)
    request = Request(
        documents, question, preset, given, max_new_tokens, temperature, seed, device, dtype
    )
    run(request, as_json=as_json, quiet=quiet)
