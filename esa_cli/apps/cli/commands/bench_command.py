"""`esa bench`: public long-context benchmarks, from their official files."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.measured_run import RowOptions, measure
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as paths
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.output_paths import run_facts

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.errors import LengthError
    from esa_cli.evaluation.bench import BenchRecord
    from esa_cli.evaluation.bench.bench_run import BenchSelection
    from esa_cli.evaluation.row_run import Case
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal
    from esa_cli.system.progress import Progress


Name = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK", help="longbench, infinitebench, counting-stars or needlebench."
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
        _run(name, selection, chosen, model, rows, until, markdown, reporter)
    finally:
        reporter.settle()


def _run(
    name: str,
    selection: BenchSelection,
    chosen: Preset,
    model: ModelOptions,
    rows: RowOptions,
    until: float | None,
    markdown: Path | None,
    reporter: Reporter,
) -> None:
    """Asks the records that have no row, and shows the scores. until: by `time.monotonic`."""
    from esa_cli.apps.cli.output.progress_display import token_progress
    from esa_cli.evaluation.bench.bench_run import KEY, wrong
    from esa_cli.qa.opening import inspect_model
    from esa_cli.qa.presets.resolved_preset import compared, resolve
    from esa_cli.system.jsonl import Journal

    survey, length = selection.survey(), selection.benchmark.length
    reporter.stage("import", 0, None)
    names = options.compared_methods(rows.methods, chosen)
    presets = {method: compared(method, chosen, length) for method in names}
    for preset in presets.values():
        resolve(preset)
    place = model.place
    method = chosen.model_dump(exclude={"name", "description", "prompt", "generation"})
    dtype = place.packing or str(place.dtype)
    header = {
        **run_facts(),
        "benchmark": name,
        "model": chosen.model,
        "preset": chosen.name,
        "settings": {"preset": method, "dtype": dtype, "length": length},
    }
    journal = Journal(rows.out, header, same=("benchmark", "settings"), key=KEY, wrong=wrong)
    journal.join(rows.join or ())
    if journal.rows:
        reporter.note(f"esa: {len(journal.rows)} records of an earlier run are kept")
    complete = survey.is_complete(journal, presets)
    known = inspect_model(chosen, place, reporter)
    known.check(presets, known.count_tokens(survey.longest))
    left_out: list[dict[str, str]] = []

    def leave_out(case: Case, error: LengthError) -> None:
        row = {key: case.fields[key] for key in KEY}
        left_out.append({**row, "why": error.message})
        reporter.settle()
        reporter.warn("esa: {method}: {task}, {id} left out: ".format(**row) + error.message)

    def reading(method: str, record: BenchRecord) -> Progress:
        return token_progress(reporter, f"{method}: {record.task}, record {record.id}")

    def ask() -> bool:
        if complete:
            return True
        from esa_cli.evaluation.bench.bench_run import RecordAsker
        from esa_cli.evaluation.row_run import write_rows
        from esa_cli.models.files.quiet_transformers import quiet_transformers
        from esa_cli.qa.answering.session import Session

        with quiet_transformers():
            loaded = known.load(reporter)
            reporter.settle()
            with Session(loaded.model, loaded.tokenizer, chosen, loaded.cache) as session:
                for method, preset in presets.items():
                    asker = RecordAsker(session, method, preset, partial(reading, method))
                    documents = (
                        asker.cases(selection.benchmark, records)
                        for records in selection.documents()
                    )
                    if not write_rows(documents, journal, until=until, on_left_out=leave_out):
                        return False
        return True

    show = partial(_show, selection, journal, left_out, rows.as_json, markdown)
    measure(journal, rows, reporter, run=ask, finish=reporter.settle, show=show)


def _show(
    selection: BenchSelection,
    journal: Journal,
    left_out: list[dict[str, str]],
    as_json: bool,
    markdown: Path | None,
    complete: bool,
) -> None:
    """Prints the scores, then writes the file of --markdown. Raises DocumentError, ResourceError:
    it cannot be written."""
    from esa_cli.apps.cli.output.terminal import one_line, print_json, print_table
    from esa_cli.evaluation.bench import bench_run as bench_table

    benchmark, scores = selection.benchmark, bench_table.group_scores(journal.rows)
    headers, lines = bench_table.table(benchmark, scores)
    remarks = [
        note for task, note in benchmark.notes.items() if not task or task in selection.tasks
    ]
    counts = Counter((row["method"], row["task"]) for row in left_out).items()
    notes = [
        *remarks,
        *(f"{method}: {task}: {n:,} left out, for want of room" for (method, task), n in counts),
    ]
    if as_json:
        result = {
            "complete": complete,
            "scores": bench_table.as_dict(benchmark, scores),
            "notes": remarks,
            "left_out": left_out,
        }
        print_json({**journal.header, **result, "rows": journal.rows})
    else:
        print_table(headers, lines)
        for note in notes:
            print(one_line(f"note: {note}"))
    if markdown is not None:
        below = "".join(f"\n{note}\n" for note in notes)
        paths.write(markdown, bench_table.markdown(headers, lines) + below)
