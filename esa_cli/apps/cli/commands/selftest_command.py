"""`esa selftest`, `bench` and `compare`: methods on planted facts, benchmarks and a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.commands.ask_command import Arguments
from esa_cli.apps.cli.inputs import read_documents, split_arguments
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output import terminal
from esa_cli.errors import UsageError
from esa_cli.system.machine import size_text, time_text
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.errors import LengthError
    from esa_cli.evaluation.bench import BenchRecord
    from esa_cli.evaluation.bench.bench_run import BenchSelection
    from esa_cli.evaluation.row_run import Case
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings
    from esa_cli.evaluation.tasks import Haystack
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal

COMMON_SETTINGS = ("samples", "seed", "reading")
"""Settings that all rows of a file have in common."""


@dataclass(frozen=True)
class SelftestOptions:
    """Options of `esa selftest` besides those of the model and the rows."""

    lengths: Annotated[
        str, option("--len TOKENS,...", "Lengths of the document in tokens, as 8k,16k,32k.")
    ] = "16k"
    samples: Annotated[int, option("--samples N", "Questions for each test and length.", min=1)] = 8
    seed: Annotated[int, option("--seed N", "Seed of the facts and of the text.", min=0)] = 0
    haystack: Annotated[
        Path | None,
        option("--haystack FILE|DIR", "Text around the facts; by default a generated one."),
    ] = None
    reading: Annotated[
        Literal["shared", "own"],
        option(
            "--reading shared|own", "Prefill the document once for all methods, or once for each."
        ),
    ] = "shared"
    dense: Annotated[
        bool, option("--dense/--no-dense", "Measure full attention inside the model's window, too.")
    ] = True


@options.command
def selftest(
    test: Annotated[
        str,
        typer.Argument(
            metavar="TEST",
            help="needle, needles, stars, passkey, number, kv, niah or own; several with commas.",
        ),
    ],
    *,
    wanted: SelftestOptions,
    rows: options.RowOptions,
    model: options.ModelOptions,
) -> None:
    """Plant facts in a long text, and count those that are found.

    esa selftest needle --len 32k --methods esa-consensus,streaming-llm,infllm
    """
    from esa_cli.evaluation.selftest import run_plan

    chosen = model.method_preset()
    settings = run_plan.SelftestSettings(
        tests=options.split_names(test),
        methods=rows.method_names(chosen),
        lengths=tuple(dict.fromkeys(map(run_plan.tokens, wanted.lengths.split(",")))),
        **{name: getattr(wanted, name) for name in (*COMMON_SETTINGS, "dense")},
    )
    with terminal.Reporter(rows.quiet) as reporter:
        haystack = _find_haystack(settings, chosen, wanted.haystack, rows.out)
        _run_tests(settings, chosen, model, haystack, rows, reporter)


def _find_haystack(
    settings: SelftestSettings, chosen: Preset, texts: Path | None, out: Path | None
) -> Haystack:
    """Returns the long text, after the names of tests, methods and files were checked. Raises
    UsageError, DocumentError."""
    from esa_cli.evaluation.tasks import TASKS, Haystack, find_task
    from esa_cli.qa.presets.resolved_preset import compared

    if not settings.tests or not settings.methods:
        hint = f"tests: {', '.join(TASKS)}"
        raise UsageError("TEST and --methods must each name one, got none", hint)
    for test in settings.tests:
        find_task(test)
    for name in settings.methods:
        compared(name, chosen, max(settings.lengths))
    if "own" in settings.tests and texts is None:
        wrong = "--haystack must be a text of yours for the test own, got none"
        raise UsageError(wrong, "add --haystack FILE")
    if texts is None:
        files.check("--out", out)
        return Haystack.chronicle(settings.seed)
    sources = map(str, [texts, *texts.glob("*")])
    files.check("--out", out, sources, "one of the texts of --haystack")
    return Haystack.read(str(texts))


def _run_tests(
    settings: SelftestSettings,
    chosen: Preset,
    model: options.ModelOptions,
    haystack: Haystack,
    rows: options.RowOptions,
    reporter: terminal.Reporter,
) -> None:
    """Runs the tests and prints the scores. Raises EsaError."""
    from esa_cli.evaluation.selftest.run_plan import KEY, dense_length
    from esa_cli.evaluation.selftest.score_tables import wrong
    from esa_cli.qa.opening import inspect_model
    from esa_cli.qa.presets.resolved_preset import compared
    from esa_cli.system.jsonl import Journal
    from esa_cli.system.text import text_digest

    shard = rows.parse_shard(rows.out)
    reporter.stage("import", 0, None)
    place = model.place
    header = {
        **files.run_facts(),
        "model": chosen.model,
        "preset": chosen.name,
        "context": chosen.context,
        "dense_length": dense_length(chosen),
        "settings": {
            # Rows of versions with these two settings are continued if they had the defaults.
            "depths": None,
            "exact": False,
            **{key: getattr(settings, key) for key in COMMON_SETTINGS},
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

    def run() -> bool:
        from esa_cli.models.files.quiet_transformers import quiet_transformers

        with quiet_transformers():
            loaded = known.load(reporter)
            reporter.settle()
            from esa_cli.evaluation.selftest.selftest_run import SelftestRun

            display = SelftestDisplay(reporter)
            return SelftestRun(
                loaded, chosen, settings, haystack, journal, display, rows.deadline, shard
            ).run()

    def show(complete: bool) -> None:
        if rows.as_json:
            terminal.print_json({**journal.header, "complete": complete, "rows": journal.rows})
        else:
            _print_tables(journal.rows)

    files.measure(journal, reporter, run, show, rows.out)


def _print_tables(rows: Sequence[dict[str, Any]]) -> None:
    """Prints the scores, and the rule by which documents were read."""
    from esa_cli.evaluation.selftest.score_tables import report

    for table in report(rows):
        print(terminal.one_line(table.title))
        terminal.print_table(table.headers, table.rows)
        print(table.note)
    if not rows:
        print("no questions were asked")
    for reading in ("shared", "own", "text"):
        same = (row for row in rows if row.get("reading") == reading and not row.get("dense"))
        if names := ", ".join(dict.fromkeys(row["method"] for row in same)):
            print(terminal.clean(f"reading: {reading}: {names}"))


class SelftestDisplay:
    """Shows the `SelftestEvents` of a run: the progress of each prefill, and what is asked."""

    def __init__(self, reporter: terminal.Reporter) -> None:
        self._reporter = reporter

    def reading(self, test: str, length: int, names: Sequence[str], total: int) -> Progress:
        label = f"{test} at {length:,} tokens: reading for {', '.join(names)}"
        return self._reporter.token_progress(label)

    def row(self, row: dict[str, Any]) -> None:
        self._reporter.waiting(f"{row['test']} at {row['length']:,} tokens: {row['method']}")

    def note(self, text: str) -> None:
        self._reporter.note(f"esa: {text}")


@options.command
def compare(
    arguments: Arguments = None,
    methods: Annotated[
        str,
        option(
            "--methods NAME,...",
            "Names from `esa methods`, with commas; `preset`: the preset as it is.",
        ),
    ] = "preset,esa,infllm,streaming-llm",
    top: Annotated[int, option("--top N", "Passages to show of each answer.", min=0)] = 2,
    max_new_tokens: options.MaxTokens = None,
    *,
    model: options.ModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer one question by several methods, and compare.

    Every method has the same token budget. A document of at most window.dense tokens is in view
    of every method.

    esa compare book.txt "Who is Ahab?" --methods preset,infllm,streaming-llm
    """
    from esa_cli.documents.document import join
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings, all_in_view, groups
    from esa_cli.evaluation.selftest.run_plan import compare as run_compare
    from esa_cli.models.files.quiet_transformers import quiet_transformers
    from esa_cli.qa.opening import prepare
    from esa_cli.qa.presets.resolved_preset import FROM_TEXT
    from esa_cli.storage import check_in_memory

    documents, question = split_arguments(arguments or [], verb="compare")
    names = options.split_names(methods)
    if not names:
        hint = "`esa methods` lists all; `preset`: the preset as it is"
        raise UsageError("--methods must name a method, got none", hint)
    with terminal.Reporter(quiet) as reporter:
        check_in_memory(model.cache)
        chosen = model.method_preset()
        text = join(read_documents(documents, reporter).documents)
        ready = prepare(chosen, model.place, reporter, attaches=True)
        tokens = ready.model.count_tokens(text)
        settings = SelftestSettings((), names, (tokens,), dense=False)
        grouped = groups(settings, chosen, tokens)
        presets = [p for group in grouped if group.reading != "text" for p in group.presets]
        if presets:
            ready.model.planner(ready.resolved).check(tokens)
        if len(presets) < len(names):
            ready.model.check({FROM_TEXT: chosen}, tokens)
        if note := all_in_view(tokens, presets):
            reporter.note(f"esa: {note}", dim=False)
        with quiet_transformers():
            rows = run_compare(
                ready.model.load(reporter), chosen, grouped, text, question,
                count=top, most=max_new_tokens,
                reading=lambda names: reporter.token_progress(f"reading for {', '.join(names)}"),
            )  # fmt: skip
    if as_json:
        terminal.print_json({"question": question, "model": chosen.model, "methods": rows})
        return
    table = []
    for row in rows:
        shared = " shared" if row["shared"] else ""
        passages = [
            f"{passage['weight']:.0%} {terminal.one_line(' '.join(passage['text'].split()))[:160]}"
            for passage in row["passages"]
        ]
        times = time_text(row["read_s"]) + shared, time_text(row["answer_s"])
        memory = size_text(row["cache_bytes"]) + shared
        table.append((row["method"], row["answer"], *times, memory, "\n".join(passages)))
    headers = ("method", "answer", "reading", "answering", "reading's memory", "evidence")
    terminal.print_table(headers, table)


@options.command
def bench(
    name: Annotated[
        str,
        typer.Argument(
            metavar="BENCHMARK", help="longbench, infinitebench, counting-stars or needlebench."
        ),
    ],
    data: Annotated[
        Path | None, option("--data DIR", "The folder with the official files.")
    ] = None,
    tasks: Annotated[
        str | None,
        option("--tasks NAME,...", "Tasks with commas; by default all whose files are there."),
    ] = None,
    limit: Annotated[int | None, option("--limit N", "Records to ask of each task.", min=1)] = None,
    *,
    rows: options.RowOptions,
    model: options.ModelOptions,
) -> None:
    """Run a public benchmark, and print a table like the paper's.

    esa bench longbench --data LongBench/data --methods preset,infllm --out longbench.jsonl
    """
    from esa_cli.evaluation.bench import find
    from esa_cli.evaluation.bench.bench_run import KEY, BenchSelection, chosen_tasks, wrong
    from esa_cli.qa.opening import inspect_model
    from esa_cli.qa.presets.resolved_preset import compared, resolve
    from esa_cli.system.jsonl import Journal

    benchmark, reporter = find(name), terminal.Reporter(rows.quiet)
    if data is None:
        hint = f"official files: {benchmark.source}"
        raise UsageError(f"{name} needs its files: --data DIR", hint)
    shard, chosen = rows.parse_shard(rows.out), model.method_preset()
    named = None if tasks is None else options.split_names(tasks)
    wanted = chosen_tasks(benchmark, data, named)
    selection = BenchSelection(benchmark, data, wanted, limit, shard)
    survey, length = selection.survey(), benchmark.length
    reporter.stage("import", 0, None)
    presets = {method: compared(method, chosen, length) for method in rows.method_names(chosen)}
    for preset in presets.values():
        resolve(preset)
    place = model.place
    settings = chosen.model_dump(exclude={"name", "description", "prompt", "generation"})
    dtype = place.packing or str(place.dtype)
    header = {
        **files.run_facts(),
        "benchmark": name,
        "model": chosen.model,
        "preset": chosen.name,
        "settings": {"preset": settings, "dtype": dtype, "length": length},
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
        return reporter.token_progress(f"{method}: {record.task}, record {record.id}")

    def run() -> bool:
        if complete:
            return True
        from esa_cli.evaluation.bench.bench_run import RecordAsker
        from esa_cli.evaluation.row_run import write_rows
        from esa_cli.models.files.quiet_transformers import quiet_transformers
        from esa_cli.qa.answering.session import Session

        write = partial(write_rows, journal=journal, until=rows.deadline, on_left_out=leave_out)
        with quiet_transformers():
            loaded = known.load(reporter)
            reporter.settle()
            with Session(loaded.model, loaded.tokenizer, chosen, loaded.cache) as session:
                for method, preset in presets.items():
                    asker = RecordAsker(session, method, preset, partial(reading, method))
                    documents = (asker.cases(benchmark, one) for one in selection.documents())
                    if not write(documents):
                        return False
        return True

    show = partial(_print_scores, selection, journal, left_out, rows.as_json)
    with reporter:
        files.measure(journal, reporter, run, show, rows.out)


def _print_scores(
    selection: BenchSelection,
    journal: Journal,
    left_out: list[dict[str, str]],
    as_json: bool,
    complete: bool,
) -> None:
    from esa_cli.evaluation.bench import bench_run

    benchmark, scores = selection.benchmark, bench_run.group_scores(journal.rows)
    notes = [note for task, note in benchmark.notes.items() if not task or task in selection.tasks]
    if as_json:
        result = {
            "complete": complete,
            "scores": bench_run.as_dict(benchmark, scores),
            "notes": notes,
            "left_out": left_out,
        }
        terminal.print_json({**journal.header, **result, "rows": journal.rows})
        return
    notes += [f"left out, for want of room: {len(left_out):,}"] if left_out else []
    terminal.print_table(*bench_run.table(benchmark, scores))
    for note in notes:
        print(terminal.one_line(f"note: {note}"))
