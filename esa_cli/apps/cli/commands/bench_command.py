"""`esa bench`: public long-context benchmarks, from their official files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli.measured_run import RowOptions, measure
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as paths
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.run_facts import run_facts

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.errors import LengthError
    from esa_cli.evaluation.bench.bench_run import BenchSelection, Survey
    from esa_cli.evaluation.bench.records import BenchRecord
    from esa_cli.evaluation.row_run import Case
    from esa_cli.qa.opening import KnownModel, ModelPlace
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal
    from esa_cli.system.progress import Progress


Name = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK", help="longbench, infinitebench, ruler, counting-stars or needlebench."
    ),
]
Data = Annotated[Path | None, option("--data DIR", "The folder with the official files.")]
Tasks = Annotated[
    str | None, option("--tasks NAME,...", "Tasks with commas; else those whose files are there.")
]
Limit = Annotated[int | None, option("--limit N", "Records of each task.", min=1)]
Markdown = Annotated[Path | None, option("--markdown FILE", "Write the table, as table.md.")]


@options.command
def bench(
    name: Name,
    data: Data = None,
    tasks: Tasks = None,
    limit: Limit = None,
    markdown: Markdown = None,
    *,
    rows: RowOptions,
    model: ModelOptions,
) -> None:
    """Run a public benchmark, and print a table like the paper's.

    esa bench longbench --data LongBench/data --methods preset,infllm --out longbench.jsonl
    """
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.errors import UsageError
    from esa_cli.evaluation.bench import find
    from esa_cli.evaluation.bench.bench_run import BenchSelection, chosen_tasks

    benchmark, reporter, until = find(name), Reporter(rows.quiet), rows.until
    if data is None:
        hint = f"official files: {benchmark.source}"
        raise UsageError(f"{name} needs its files: --data DIR", hint)
    written = {"--out": rows.out, "--markdown": markdown}
    for label, path in written.items():
        paths.check(label, path)
    paths.apart(written)
    official = map(str, data.rglob("*.jsonl"))
    paths.spare("--markdown", markdown, official, "one of the files in --data")
    shard = rows.check(rows.out)
    chosen = model.method_preset()
    try:
        asked = None if tasks is None else options.names(tasks)
        wanted = chosen_tasks(benchmark, data, asked)
        selection = BenchSelection(benchmark, data, wanted, limit, shard)
        BenchRun(name, selection, chosen, model, rows, until, markdown, reporter).run()
    finally:
        reporter.settle()


@dataclass(frozen=True)
class BenchRun:
    """One `esa bench`: what it asks, and what it writes.

    Args:
        until: by `time.monotonic`. left_out: gets the records that a method has no room for.
    """

    name: str
    selection: BenchSelection
    chosen: Preset
    model: ModelOptions
    rows: RowOptions
    until: float | None
    markdown: Path | None
    reporter: Reporter
    left_out: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Asks the records that have no row, and shows the scores."""
        from esa_cli.evaluation.bench.bench_run import KEY, chosen_presets, wrong
        from esa_cli.qa.opening import inspect_model
        from esa_cli.system.jsonl import Journal

        reporter, survey = self.reporter, self.selection.survey()
        reporter.stage("import", 0, None)
        names = options.compared_methods(self.rows.methods, self.chosen)
        presets = chosen_presets(self.chosen, names, survey.length)
        place = self.model.place
        header = self._header(survey.length, place)
        same = ("benchmark", "settings")
        journal = Journal(self.rows.out, header, same=same, key=KEY, wrong=wrong)
        journal.join(self.rows.join or ())
        if journal.rows:
            reporter.note(f"esa: {len(journal.rows)} records of an earlier run are kept")
        is_complete = survey.is_complete(journal, presets)
        known = inspect_model(self.chosen, place, reporter)
        known.check(presets, known.count_tokens(survey.longest))

        def ask() -> bool:
            return is_complete or self._ask(journal, presets, known, survey)

        show = partial(self._show, journal, presets)
        measure(journal, self.rows, reporter, run=ask, finish=reporter.settle, show=show)

    def _header(self, length: int, place: ModelPlace) -> dict[str, Any]:
        """The first line of the results file.

        Args:
            length: tokens that position encodings are stretched to.
        """
        chosen = self.chosen
        method = chosen.model_dump(exclude={"name", "description", "prompt", "generation"})
        dtype = place.packing or str(place.dtype)
        return {
            **run_facts(),
            "benchmark": self.name,
            "model": chosen.model,
            "preset": chosen.name,
            "settings": {"preset": method, "dtype": dtype, "length": length},
        }

    def _ask(
        self, journal: Journal, presets: Mapping[str, Preset], known: KnownModel, survey: Survey
    ) -> bool:
        """Asks what has no row, method by method; False when the time was up before the end."""
        from esa_cli.apps.cli.output.progress_display import token_progress
        from esa_cli.evaluation.bench.bench_run import RecordAsker
        from esa_cli.evaluation.row_run import write_rows
        from esa_cli.models.files.quiet_transformers import quiet_transformers
        from esa_cli.qa.answering.session import Session

        def reading(method: str, record: BenchRecord) -> Progress:
            title = f"{method}: {record.task}, record {survey.place(record)}"
            return token_progress(self.reporter, title)

        with quiet_transformers():
            loaded = known.load(self.reporter)
            self.reporter.settle()
            host = loaded.model, loaded.tokenizer, self.chosen, loaded.cache
            with Session(*host) as session:
                for method, preset in presets.items():
                    asker = RecordAsker(session, method, preset, partial(reading, method))
                    benchmark = self.selection.benchmark
                    documents = (
                        asker.cases(benchmark, records) for records in self.selection.documents()
                    )
                    if not write_rows(
                        documents, journal, until=self.until, on_left_out=self._leave_out
                    ):
                        return False
        return True

    def _leave_out(self, case: Case, error: LengthError) -> None:
        row = {key: case.fields[key] for key in ("method", "task", "id")}
        self.left_out.append({**row, "why": error.message})
        self.reporter.settle()
        self.reporter.warn("esa: {method}: {task}, {id} left out: ".format(**row) + error.message)

    def _show(self, journal: Journal, presets: Mapping[str, Preset], complete: bool) -> None:
        """Prints the scores, then writes the file of --markdown.

        Raises:
            DocumentError, ResourceError: the file cannot be written.
        """
        from esa_cli.apps.cli.output.terminal import one_line, print_json, print_table
        from esa_cli.evaluation.report import bench_table

        benchmark, scores = self.selection.benchmark, bench_table.mean_scores(journal.rows)
        headers, lines = bench_table.table(benchmark, scores)
        counts = Counter((row["method"], row["task"]) for row in self.left_out).items()
        notes = [
            *self.selection.notes(),
            *(
                f"{method}: {task}: {n:,} left out, for want of room"
                for (method, task), n in counts
            ),
        ]
        self._note_plain(journal, presets)
        if self.rows.as_json:
            result = {
                "complete": complete,
                "scores": bench_table.as_dict(benchmark, scores),
                "notes": self.selection.notes(),
                "left_out": self.left_out,
            }
            print_json({**journal.header, **result, "rows": journal.rows})
        else:
            print_table(headers, lines)
            for note in notes:
                print(one_line(f"note: {note}"))
        if self.markdown is not None:
            below = "".join(f"\n{note}\n" for note in notes)
            paths.write(self.markdown, bench_table.markdown(headers, lines) + below)

    def _note_plain(self, journal: Journal, presets: Mapping[str, Preset]) -> None:
        """Says which scores are not those of a selection: short prompts get full attention."""
        from esa_cli.qa.presets.resolved_preset import FROM_TEXT, resolve

        plain = {
            name: resolve(preset).method.window.dense_below
            for name, preset in presets.items()
            if name != FROM_TEXT
        }
        asked = [row for row in journal.rows if row["method"] in plain]
        short = sum(row["tokens"] <= plain[row["method"]] for row in asked)
        if short:
            most = f"{max(plain.values()):,} tokens (window.dense)"
            self.reporter.note(
                f"esa: {short} of {len(asked)} prompts have at most {most}: full attention"
            )
