"""`esa selftest`: can this model and setting be trusted at that length?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.measured_run import RowOptions, measure
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.run_facts import run_facts
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.report.statistics import Summary
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings
    from esa_cli.evaluation.tasks import Haystack
    from esa_cli.qa.opening import KnownModel, ModelPlace
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal

Test = Annotated[
    str,
    typer.Argument(
        metavar="TEST",
        help="needle, needles, stars, passkey, number, kv, niah or own; several with commas.",
    ),
]
Lengths = Annotated[str, option("--len TOKENS,...", "Tokens of the document, as 8k,16k,32k.")]
Depths = Annotated[str | None, option("--depths N|PERCENTS", "So many, evenly apart, or 0,25,50.")]
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
Exact = Annotated[bool, option("--exact", "The benchmark's own protocol: one question a document.")]
Dense = Annotated[bool, option("--dense/--no-dense", "Measure the model's own ceiling, too.")]
Report = Annotated[
    Path | None, option("--report FILE", "Write a page, as a.html, or a heat map, a.png.")
]
READING_RULES = {
    "shared": "first and local tokens of the preset",
    "own": "by its own rule",
    "text": "for the finder alone",
}


@options.command
def selftest(
    test: Test,
    lengths: Lengths = "16k",
    depths: Depths = None,
    samples: Samples = 8,
    seed: Seed = 0,
    haystack: HaystackFile = None,
    reading: Reading = "shared",
    exact: Exact = False,
    dense: Dense = True,
    report: Report = None,
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
        depths=run_plan.depths(depths),
        samples=samples,
        seed=seed,
        reading=reading,
        exact=exact,
        dense=dense,
    )
    reporter = Reporter(rows.quiet)
    run = Selftest(settings, chosen, model, haystack, until, rows, report, reporter)
    try:
        run.run()
    finally:
        reporter.settle()


@dataclass(frozen=True)
class Selftest:
    """One `esa selftest`: its settings, and what it writes; `until` is by `time.monotonic`."""

    settings: SelftestSettings
    chosen: Preset
    model: ModelOptions
    haystack: Path | None
    until: float | None
    rows: RowOptions
    report: Path | None
    reporter: Reporter

    def run(self) -> None:
        """Runs the tests and prints the scores. Raises EsaError."""
        from esa_cli.apps.cli.output.progress_display import SelftestDisplay
        from esa_cli.evaluation.report.statistics import wrong
        from esa_cli.evaluation.selftest.run_plan import KEY, same_reading
        from esa_cli.system.jsonl import Journal

        reporter, haystack = self.reporter, self._check()
        shard = self.rows.check(self.rows.out)
        reporter.stage("import", 0, None)
        place = self.model.place
        header = self._header(haystack, place)
        same = ("model", "settings", "preset_settings")
        journal = Journal(self.rows.out, header, same=same, key=KEY, wrong=wrong)
        journal.join(self.rows.join or ())
        same_reading(journal, self.settings, self.chosen)
        model = self._inspect(haystack, place)
        if journal.rows:
            reporter.note(f"esa: {len(journal.rows)} questions of an earlier run are kept")
        display = SelftestDisplay(reporter, journal.rows)

        def ask() -> bool:
            from esa_cli.models.files.quiet_transformers import quiet_transformers

            with quiet_transformers():
                loaded = model.load(reporter)
                reporter.settle()
                from esa_cli.evaluation.selftest.selftest_run import SelftestRun

                return SelftestRun(
                    loaded, self.chosen, self.settings, haystack, journal, display, self.until,
                    shard,
                ).run()  # fmt: skip

        show = partial(self._show, journal)
        measure(journal, self.rows, reporter, run=ask, finish=display.finish, show=show)

    def _check(self) -> Haystack:
        """The haystack; names, lengths, texts and files are checked before anything is loaded.
        Raises UsageError, DocumentError."""
        from esa_cli.evaluation.report.figures import require_matplotlib
        from esa_cli.evaluation.tasks import TASKS, Haystack, find_task
        from esa_cli.qa.presets import resolved_preset

        settings, haystack = self.settings, self.haystack
        if not settings.tests or not settings.methods:
            raise UsageError(
                "TEST and --methods must each name one, got none", f"tests: {', '.join(TASKS)}"
            )
        for test in settings.tests:
            find_task(test)
        for name in settings.methods:
            resolved_preset.compared(name, self.chosen, max(settings.lengths))
        if "own" in settings.tests and haystack is None:
            raise UsageError(
                "--haystack must be a text of yours for the test own, got none",
                "add --haystack FILE",
            )
        texts = [] if haystack is None else [haystack, *haystack.glob("*")]
        written = {"--out": self.rows.out, "--report": self.report}
        for name, path in written.items():
            files.check(name, path)
            files.spare(name, path, map(str, texts), "one of the texts of --haystack")
        files.apart(written)
        if self.report is not None:
            require_matplotlib("--report")
        return Haystack.read(str(haystack)) if haystack else Haystack.chronicle(settings.seed)

    def _header(self, haystack: Haystack, place: ModelPlace) -> dict[str, Any]:
        """The first line of the results file."""
        from esa_cli.evaluation.selftest.run_plan import dense_length
        from esa_cli.system.text import text_digest

        settings, chosen = asdict(self.settings), self.chosen
        fixed = {key: settings[key] for key in ("depths", "samples", "seed", "reading", "exact")}
        return {
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

    def _inspect(self, haystack: Haystack, place: ModelPlace) -> KnownModel:
        """The model's small files, when the longest document fits with each method. Raises
        ModelError, PresetError, ResourceError."""
        from esa_cli.qa.opening import inspect_model
        from esa_cli.qa.presets import resolved_preset

        model, settings = inspect_model(self.chosen, place, self.reporter), self.settings
        lengths = [max(settings.lengths)] if set(settings.tests) != {"own"} else []
        if "own" in settings.tests:
            lengths.append(model.count_tokens(haystack.text))
        longest = max(lengths)
        presets = {
            name: resolved_preset.compared(name, self.chosen, longest) for name in settings.methods
        }
        model.check(presets, longest)
        return model

    def _show(self, journal: Journal, complete: bool) -> None:
        """Tables or JSON on standard output, then the file of --report. Raises DocumentError,
        ResourceError: a file cannot be written."""
        from esa_cli.apps.cli.output.terminal import print_json
        from esa_cli.evaluation.report.statistics import summarise

        summary = summarise(journal.rows)
        if self.rows.as_json:
            print_json({**journal.header, "complete": complete, "rows": journal.rows})
        else:
            _print(summary, journal.rows)
        if self.report is None:
            return
        from esa_cli.evaluation.report import figures, report_page

        with files.writing(self.report):
            if self.report.suffix.lower() == ".png":
                figures.picture(summary).write_png(self.report)
            else:
                report_page.write_html(self.report, journal.header, journal.rows)


def _print(summary: Summary, rows: Sequence[dict[str, Any]]) -> None:
    """The tables, and the rule by which documents were read, which is part of what a score
    means."""
    from rich.text import Text

    from esa_cli.apps.cli.output.terminal import clean, make_console
    from esa_cli.evaluation.report.terminal_tables import report

    console = make_console(sys.stdout)
    console.print(report(summary, min(console.width, 120)))
    for reading, rule in READING_RULES.items():
        same = (row for row in rows if row.get("reading") == reading and not row.get("dense"))
        names = ", ".join(dict.fromkeys(row["method"] for row in same))
        if names:
            line = Text(f"reading: {reading} ({rule}): {clean(names)}", style="dim")
            console.print(line, soft_wrap=not console.is_terminal)
