"""`esa selftest`: can this model and setting be trusted at that length?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from esa_cli.apps.cli import options
from esa_cli.apps.cli.options import DEFAULT_PRESET

Test = Annotated[
    str,
    typer.Argument(
        metavar="TEST",
        help="needle, needles, stars, passkey, number, kv, niah or own; several with commas.",
    ),
]
Length = Annotated[
    str | None, typer.Option("--len", help="Tokens of the document, as 32k. Default: 16k.")
]
Lengths = Annotated[str | None, typer.Option("--lens", help="Several lengths, as 8k,16k,32k.")]
Depths = Annotated[
    str | None,
    typer.Option("--depths", help="A count of even depths, or percents: 0,25,50, or 50%."),
]
Samples = Annotated[
    int, typer.Option("--samples", min=1, help="Questions for each test and length.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Other needles, other text.")]
HaystackFile = Annotated[
    Path | None,
    typer.Option("--haystack", help="A text file, or a folder of them; else a generated text."),
]
Reading = Annotated[
    Literal["shared", "own"],
    typer.Option(
        "--reading", help="shared: one reading serves all methods; own: each reads by its own rule."
    ),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="The benchmark's own protocol: one question a document.")
]
Dense = Annotated[
    bool, typer.Option("--dense/--no-dense", help="Measure the model's own ceiling, too.")
]
Report = Annotated[Path | None, typer.Option("--report", help="Write a page, as report.html.")]
Picture = Annotated[Path | None, typer.Option("--png", help="Write the heat map as a picture.")]


def selftest(
    test: Test,
    length: Length = None,
    lengths: Lengths = None,
    depths: Depths = None,
    samples: Samples = 8,
    methods: options.Methods = "preset",
    seed: Seed = 0,
    haystack: HaystackFile = None,
    reading: Reading = "shared",
    exact: Exact = False,
    dense: Dense = True,
    time_limit: options.TimeLimit = None,
    out: options.Out = None,
    report: Report = None,
    png: Picture = None,
    preset: options.Preset = DEFAULT_PRESET,
    model: options.Model = None,
    settings: options.Set = None,
    plugins: options.Plugin = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Plant facts in a long text, ask for them, and say what was found.

    esa selftest needle --len 32k --methods esa-consensus,streaming-llm,infllm
    """
    from esa_cli.apps.cli.commands.trial import Trial, run
    from esa_cli.errors import UsageError
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings
    from esa_cli.evaluation.selftest.run_plan import depths as parse_depths
    from esa_cli.evaluation.selftest.run_plan import tokens as parse_tokens

    if length and lengths:
        raise UsageError("--len and --lens are both given", "--lens takes one or several")
    given = [parse_tokens(part) for part in (lengths or length or "16k").split(",")]
    asked = SelftestSettings(
        tests=options.names(test),
        methods=options.names(methods),
        lengths=tuple(dict.fromkeys(given)),
        depths=parse_depths(depths),
        samples=samples,
        seed=seed,
        reading=reading,
        exact=exact,
        dense=dense,
    )
    options.load_plugins(plugins)
    overrides = options.overrides({"model": model}, settings)
    trial = Trial(asked, preset, overrides, haystack, time_limit, out, report, png, device, dtype)
    run(trial, as_json=as_json, quiet=quiet)
