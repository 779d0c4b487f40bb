"""`esa bench`: public long-context benchmarks, from their official files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli.commands.bench_request import BenchRequest, check_files, header
from esa_cli.apps.cli.commands.bench_run import BenchRun
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.shard_options import WHOLE, ShardOptions
from esa_cli.apps.cli.run_facts import goes_on
from esa_cli.errors import EsaError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.bench import Benchmark
    from esa_cli.evaluation.bench.bench_runner import TaskSelection
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal

Name = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK", help="longbench, infinitebench, ruler, counting-stars or needlebench."
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The folder with the official files.")
]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch the files into --data first, from the hub.")
]
Tasks = Annotated[
    str | None,
    typer.Option(
        "--tasks", metavar="NAME,...", help="Tasks with commas; else those whose files are there."
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Records of each task.")
]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write the table, as table.md.")
]


@options.command
def bench(
    name: Name,
    data: Data = None,
    download: Download = False,
    tasks: Tasks = None,
    methods: options.MethodsOrDefault = None,
    limit: Limit = None,
    time_limit: options.TimeLimit = None,
    out: options.Out = None,
    markdown: Markdown = None,
    shards: ShardOptions = WHOLE,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a public benchmark, and print a table like the paper's.

    esa bench longbench --data LongBench/data --methods preset,infllm --out longbench.jsonl
    """
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.errors import UsageError
    from esa_cli.evaluation.bench import find

    benchmark, reporter = find(name), Reporter(quiet)
    if data is None:
        hint = f"official files: {benchmark.SOURCE}"
        raise UsageError(f"{name} needs its files: --data DIR", hint)
    check_files(out, markdown, data)
    shard = shards.check(out)
    chosen = model.load_preset()
    names = options.compared_methods(methods, chosen)
    request = BenchRequest(
        name, chosen, names, model, time_limit, out, markdown, as_json,
        tuple(shards.join or ()),
    )  # fmt: skip
    try:
        if download:
            _download(name, benchmark, data, reporter)
        from esa_cli.evaluation.bench import bench_runner as order

        asked = None if tasks is None else options.names(tasks)
        found = order.tasks(benchmark, data, asked)
        work = order.TaskSelection(benchmark, data, found, limit, shard)
        _go(request, work, reporter, told=asked is None)
    finally:
        reporter.settle()


def _download(name: str, benchmark: Benchmark, folder: Path, reporter: Reporter) -> None:
    from esa_cli.evaluation.bench.data_files import dataset, download

    found = dataset(name, benchmark.SOURCE)
    reporter.note(f"esa: fetching the dataset {found.repo} (licence: {found.licence})", dim=False)
    download(found, folder, bars=not reporter.quiet)


def _go(request: BenchRequest, order: TaskSelection, reporter: Reporter, told: bool) -> None:
    """Asks the records and shows the scores; what was asked before Ctrl-C is shown as well."""
    from esa_cli.apps.cli.commands import bench_output as bench_table
    from esa_cli.apps.cli.model_choice.known_model import inspect_model
    from esa_cli.apps.cli.model_choice.model_place import ModelPlace
    from esa_cli.evaluation.bench.bench_runner import presets

    until = None if request.minutes is None else time.monotonic() + 60 * request.minutes
    if told and (left := ", ".join(order.left_out())):
        reporter.note(f"esa: left out, their files are not in {order.folder}: {left}")
    survey = order.survey()
    reporter.stage("import", 0, None)
    made = presets(request.preset, request.methods, survey.length)
    place = ModelPlace.of(request.model)
    journal = _journal(request, order, made, header(request, survey.length, place), reporter)
    known = inspect_model(request.preset, place, reporter)
    texts = (record.before + record.document for record in order.records())
    known.check_methods(made, known.count_tokens(max(texts, key=len, default="")))
    left_out: list[bench_table.NoRoom] = []
    show = partial(
        bench_table.show, order, journal, request.preset, left_out,
        as_json=request.as_json, markdown=request.markdown,
    )  # fmt: skip
    try:
        with journal:
            complete = BenchRun(
                request, order, made, known, journal, reporter, survey.places, until, left_out
            ).run()
    except (KeyboardInterrupt, EsaError):
        reporter.settle()
        if journal.rows:
            show(complete=False)
            reporter.note(f"esa: stopped after {len(journal.rows)} records{goes_on(request.out)}")
        raise
    reporter.settle()
    if not complete:
        reporter.note(f"esa: the time limit was reached{goes_on(request.out)}")
    bench_table.tell_plain(journal, made, reporter)
    show(complete=complete)


def _journal(
    request: BenchRequest,
    order: TaskSelection,
    made: Mapping[str, Preset],
    header: dict[str, Any],
    reporter: Reporter,
) -> Journal:
    """Rows of an earlier run, checked to be of these data.

    Raises:
        UsageError, DocumentError: it is not, or cannot be read.
    """
    from esa_cli.evaluation.bench import bench_runner as runner
    from esa_cli.system.jsonl import Journal

    journal = Journal(
        request.out, header, same=("benchmark", "settings"), key=runner.KEY, wrong=runner.wrong
    )
    journal.join(request.joined)
    if journal.rows:
        for record in order.records():
            for method, preset in made.items():
                runner.has_answer(record, method, order.settings(method, preset), journal)
        reporter.note(f"esa: {len(journal.rows)} records of an earlier run are kept")
    return journal
