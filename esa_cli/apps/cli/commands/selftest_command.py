"""`esa selftest`: can this model and setting be trusted at that length?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.shard_options import WHOLE, ShardOptions
from esa_cli.apps.cli.run_facts import goes_on

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.selftest_request import SelftestRequest
    from esa_cli.apps.cli.model_choice.known_model import KnownModel, ModelPlace
    from esa_cli.apps.cli.output.progress_display import SelftestDisplay
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.tasks import Haystack
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal
    from esa_cli.system.work_shard import WorkShard

Test = Annotated[
    str,
    typer.Argument(
        metavar="TEST",
        help="needle, needles, stars, passkey, number, kv, niah or own; several with commas.",
    ),
]
Length = Annotated[
    str | None,
    typer.Option("--len", metavar="TOKENS", help="Tokens of the document, as 32k. Default: 16k."),
]
Lengths = Annotated[
    str | None, typer.Option("--lens", metavar="TOKENS,...", help="Several lengths, as 8k,16k,32k.")
]
Depths = Annotated[
    str | None,
    typer.Option("--depths", metavar="N|PERCENTS", help="So many, evenly apart, or 0,25,50."),
]
Samples = Annotated[
    int, typer.Option("--samples", metavar="N", min=1, help="Questions for each test and length.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Other needles, other text.")]
HaystackFile = Annotated[
    Path | None,
    typer.Option("--haystack", metavar="FILE|DIR", help="A text or a folder; else one is made."),
]
Reading = Annotated[
    Literal["shared", "own"],
    typer.Option(
        "--reading",
        metavar="shared|own",
        help="shared: one reading serves all methods; own: each reads by its own rule.",
    ),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="The benchmark's own protocol: one question a document.")
]
Dense = Annotated[
    bool, typer.Option("--dense/--no-dense", help="Measure the model's own ceiling, too.")
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write a page, as report.html.")
]
Picture = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Write the heat map as a picture.")
]


@options.command
def selftest(
    test: Test,
    length: Length = None,
    lengths: Lengths = None,
    depths: Depths = None,
    samples: Samples = 8,
    methods: options.MethodsOrDefault = None,
    seed: Seed = 0,
    haystack: HaystackFile = None,
    reading: Reading = "shared",
    exact: Exact = False,
    dense: Dense = True,
    time_limit: options.TimeLimit = None,
    out: options.Out = None,
    report: Report = None,
    png: Picture = None,
    shards: ShardOptions = WHOLE,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Plant facts in a long text, and count those that are found.

    esa selftest needle --len 32k --methods esa-consensus,streaming-llm,infllm
    """
    from esa_cli.apps.cli.commands.selftest_request import SelftestRequest
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.errors import UsageError
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings
    from esa_cli.evaluation.selftest.run_plan import depths as parse_depths
    from esa_cli.evaluation.selftest.run_plan import tokens as parse_tokens

    if length and lengths:
        raise UsageError(
            "one of --len and --lens must be given, got both", "--lens takes one or several"
        )
    chosen = model.method_preset()
    given = [parse_tokens(part) for part in (lengths or length or "16k").split(",")]
    settings = SelftestSettings(
        tests=options.names(test),
        methods=options.compared_methods(methods, chosen),
        lengths=tuple(dict.fromkeys(given)),
        depths=parse_depths(depths),
        samples=samples,
        seed=seed,
        reading=reading,
        exact=exact,
        dense=dense,
    )
    reporter = Reporter(quiet)
    request = SelftestRequest(
        settings, model, haystack, time_limit, out, report, png, as_json, shards
    )
    try:
        _run(request, chosen, reporter)
    finally:
        reporter.settle()


def _run(request: SelftestRequest, chosen: Preset, reporter: Reporter) -> None:
    """Runs the tests and prints the scores; after an error those that were measured before it.

    Raises:
        EsaError: what was answered before is kept in --out.
    """
    from esa_cli.apps.cli.commands.selftest_output import show
    from esa_cli.apps.cli.commands.selftest_request import check, header
    from esa_cli.apps.cli.model_choice.known_model import ModelPlace
    from esa_cli.apps.cli.output.progress_display import SelftestDisplay
    from esa_cli.errors import EsaError
    from esa_cli.evaluation.report.statistics import wrong
    from esa_cli.evaluation.selftest.run_plan import KEY, same_reading
    from esa_cli.system.jsonl import Journal

    until = None if request.minutes is None else time.monotonic() + 60 * request.minutes
    hay, shard = check(request, chosen), request.shards.check(request.out)
    reporter.stage("import", 0, None)
    place = ModelPlace.of(request.model)
    journal = Journal(
        request.out,
        header(request, chosen, hay, place),
        same=("model", "settings", "preset_settings"),
        key=KEY,
        wrong=wrong,
    )
    journal.join(request.shards.join or ())
    same_reading(journal, request.settings, chosen)
    model = _look(request, chosen, hay, place, reporter)
    if journal.rows:
        reporter.note(f"esa: {len(journal.rows)} questions of an earlier run are kept")
    listener = SelftestDisplay(reporter, journal.rows)
    try:
        complete = _ask(request, chosen, hay, shard, journal, model, listener, until)
    except (KeyboardInterrupt, EsaError):
        listener.finish()
        if journal.rows:
            show(request, journal, complete=False)
            reporter.note(f"esa: stopped after {len(journal.rows)} questions{goes_on(request.out)}")
        raise
    listener.finish()
    if not complete:
        reporter.note(f"esa: the time limit was reached{goes_on(request.out)}")
    show(request, journal, complete=complete)


def _ask(
    request: SelftestRequest,
    chosen: Preset,
    haystack: Haystack,
    shard: WorkShard,
    journal: Journal,
    model: KnownModel,
    listener: SelftestDisplay,
    until: float | None,
) -> bool:
    """Asks what has no row; False when the time was up before the end."""
    from esa_cli.models.loading.quiet_transformers import quiet_transformers

    reporter = listener.reporter
    with quiet_transformers():
        loaded = model.load(reporter)
        reporter.settle()
        from esa_cli.evaluation.selftest.selftest_run import SelftestRun

        run = SelftestRun(
            loaded, chosen, request.settings, haystack, journal, listener, until, shard
        )
        with journal:
            run.run()
    return not run.stopped


def _look(
    request: SelftestRequest,
    chosen: Preset,
    haystack: Haystack,
    place: ModelPlace,
    reporter: Reporter,
) -> KnownModel:
    """The model's small files, when the longest document fits with each method.

    Raises:
        ModelError, PresetError, ResourceError.
    """
    from esa_cli.apps.cli.model_choice.known_model import inspect_model
    from esa_cli.qa.presets import resolved_preset

    model = inspect_model(chosen, place, reporter)
    settings = request.settings
    lengths = [max(settings.lengths)] if set(settings.tests) != {"own"} else []
    if "own" in settings.tests:
        lengths.append(model.count_tokens(haystack.text))
    longest = max(lengths)
    made = {n: resolved_preset.compared(n, chosen, longest) for n in settings.methods}
    model.check_methods(made, longest)
    return model
