"""`esa selftest`: can this model and setting be trusted at that length?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.measured_run import RowOptions, measure
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.output_paths import run_facts
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings
    from esa_cli.evaluation.tasks import Haystack
    from esa_cli.qa.presets.preset import Preset

Test = Annotated[
    str,
    typer.Argument(
        metavar="TEST",
        help="needle, needles, stars, passkey, number, kv, niah or own; several with commas.",
    ),
]
Lengths = Annotated[str, option("--len TOKENS,...", "Tokens of the document, as 8k,16k,32k.")]
Samples = Annotated[int, option("--samples N", "Questions for each test and length.", min=1)]
Seed = Annotated[int, option("--seed N", "Other needles, other text.", min=0)]
HaystackFile = Annotated[
    Path | None, option("--haystack FILE|DIR", "A text or a folder; else one is made.")
]
Reading = Annotated[
    Literal["shared", "own"],
    option(
        "--reading shared|own",
        "shared: one reading serves all methods; own: each reads by its own rule.",
    ),
]
Dense = Annotated[bool, option("--dense/--no-dense", "Measure the model's own ceiling, too.")]
READING_RULES = {
    "shared": "first and local tokens of the preset",
    "own": "by its own rule",
    "text": "for the finder alone",
}


FIXED = ("samples", "seed", "reading")
"""Settings that all rows of a file have in common."""


@options.command
def selftest(
    test: Test,
    lengths: Lengths = "16k",
    samples: Samples = 8,
    seed: Seed = 0,
    haystack: HaystackFile = None,
    reading: Reading = "shared",
    dense: Dense = True,
    *,
    rows: RowOptions,
    model: ModelOptions,
) -> None:
    """Plant facts in a long text, and count those that are found.

    esa selftest needle --len 32k --methods esa-consensus,streaming-llm,infllm
    """
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.selftest import run_plan

    until, chosen = rows.until, model.method_preset()
    settings = run_plan.SelftestSettings(
        tests=options.names(test),
        methods=options.compared_methods(rows.methods, chosen),
        lengths=tuple(dict.fromkeys(run_plan.tokens(part) for part in lengths.split(","))),
        samples=samples,
        seed=seed,
        reading=reading,
        dense=dense,
    )
    reporter = Reporter(rows.quiet)
    try:
        _run(settings, chosen, model, haystack, until, rows, reporter)
    finally:
        reporter.settle()


def _run(
    settings: SelftestSettings,
    chosen: Preset,
    model: ModelOptions,
    texts: Path | None,
    until: float | None,
    rows: RowOptions,
    reporter: Reporter,
) -> None:
    """Runs the tests and prints the scores. until: by `time.monotonic`. Raises EsaError."""
    from esa_cli.apps.cli.output.progress_display import SelftestDisplay
    from esa_cli.evaluation.selftest.run_plan import KEY, dense_length
    from esa_cli.evaluation.selftest.score_tables import wrong
    from esa_cli.qa.opening import inspect_model
    from esa_cli.qa.presets.resolved_preset import compared
    from esa_cli.system.jsonl import Journal
    from esa_cli.system.text import text_digest

    haystack = _haystack(settings, chosen, texts, rows.out)
    shard = rows.check(rows.out)
    reporter.stage("import", 0, None)
    place = model.place
    # Rows of a version that had these two settings are continued where they had their defaults.
    fixed = {"depths": None, "exact": False, **{key: getattr(settings, key) for key in FIXED}}
    header = {
        **run_facts(),
        "model": chosen.model,
        "preset": chosen.name,
        "context": chosen.context,
        "dense_length": dense_length(chosen),
        "settings": {
            **fixed,
            "haystack": haystack.name,
            "haystack_hash": text_digest(haystack.text)[:16] if haystack.text else None,
            "dtype": place.dtype_name,
        },
        "preset_settings": chosen.model_dump(exclude={"name", "description"}),
    }
    same = ("model", "settings", "preset_settings")
    journal = Journal(rows.out, header, same=same, key=KEY, wrong=wrong)
    journal.join(rows.join or ())
    known = inspect_model(chosen, place, reporter)
    lengths = [max(settings.lengths)] if set(settings.tests) != {"own"} else []
    if "own" in settings.tests:
        lengths.append(known.count_tokens(haystack.text))
    longest = max(lengths)
    known.check({name: compared(name, chosen, longest) for name in settings.methods}, longest)
    if journal.rows:
        reporter.note(f"esa: {len(journal.rows)} questions of an earlier run are kept")
    display = SelftestDisplay(reporter, journal.rows)

    def ask() -> bool:
        from esa_cli.models.files.quiet_transformers import quiet_transformers

        with quiet_transformers():
            loaded = known.load(reporter)
            reporter.settle()
            from esa_cli.evaluation.selftest.selftest_run import SelftestRun

            return SelftestRun(
                loaded, chosen, settings, haystack, journal, display, until, shard
            ).run()

    def show(complete: bool) -> None:
        from esa_cli.apps.cli.output.terminal import print_json

        if rows.as_json:
            print_json({**journal.header, "complete": complete, "rows": journal.rows})
        else:
            _print(journal.rows)

    measure(journal, rows, reporter, run=ask, finish=display.finish, show=show)


def _haystack(
    settings: SelftestSettings, chosen: Preset, texts: Path | None, out: Path | None
) -> Haystack:
    """The haystack; names, texts and files are checked before anything is loaded. Raises
    UsageError, DocumentError."""
    from esa_cli.evaluation.tasks import TASKS, Haystack, find_task
    from esa_cli.qa.presets.resolved_preset import compared

    if not settings.tests or not settings.methods:
        raise UsageError(
            "TEST and --methods must each name one, got none", f"tests: {', '.join(TASKS)}"
        )
    for test in settings.tests:
        find_task(test)
    for name in settings.methods:
        compared(name, chosen, max(settings.lengths))
    if "own" in settings.tests and texts is None:
        raise UsageError(
            "--haystack must be a text of yours for the test own, got none", "add --haystack FILE"
        )
    files.check("--out", out)
    if texts is None:
        return Haystack.chronicle(settings.seed)
    sources = map(str, [texts, *texts.glob("*")])
    files.spare("--out", out, sources, "one of the texts of --haystack")
    return Haystack.read(str(texts))


def _print(rows: Sequence[dict[str, Any]]) -> None:
    """The tables, and the rule by which documents were read, which is part of what a score
    means."""
    from esa_cli.apps.cli.output.terminal import one_line, print_table
    from esa_cli.evaluation.selftest.score_tables import report

    for table in report(rows):
        print(one_line(table.title))
        print_table(table.headers, table.rows)
        print(table.note)
    if not rows:
        print("no questions were asked")
    for reading, rule in READING_RULES.items():
        same = (row for row in rows if row.get("reading") == reading and not row.get("dense"))
        names = ", ".join(dict.fromkeys(row["method"] for row in same))
        if names:
            print(one_line(f"reading: {reading} ({rule}): {names}"))
