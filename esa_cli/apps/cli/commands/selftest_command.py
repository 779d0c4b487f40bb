"""The commands `esa selftest`, `esa bench` and `esa compare`, which compare methods."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from esa_cli.apps.cli.commands.ask_command import Arguments
from esa_cli.apps.cli.inputs import read_documents, split_off_question
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output import terminal
from esa_cli.documents.document import join_texts
from esa_cli.errors import LengthError, UsageError
from esa_cli.evaluation.tasks import TASKS
from esa_cli.evaluation.tasks.task_sample import Haystack
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.system.jsonl import ResultsFile
from esa_cli.system.machine import format_duration, format_size
from esa_cli.system.registry import find_by_name
from esa_cli.system.text import digest_text

if TYPE_CHECKING:
    from esa_cli.evaluation.bench.benchmarks import Benchmark
    from esa_cli.evaluation.row_run import QuestionToAsk
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings
    from esa_cli.qa.presets.preset import Preset


@options.make_typer_command
def selftest(
    test: Annotated[
        str,
        argument(
            "TEST", "needle, needles, stars, passkey, number, kv, niah or own; several with commas."
        ),
    ],
    lengths: Annotated[
        str, option("--len TOKENS,...", "Tokens of the document, for example 8k,16k,32k.")
    ] = "16k",
    samples: Annotated[
        int, option("--samples N", "Questions for each test and length.", min=1)
    ] = 8,
    seed: Annotated[int, option("--seed N", "Seed of the facts and the text.", min=0)] = 0,
    haystack: options.Haystack = None,
    reading: Annotated[
        Literal["shared", "own"],
        option("--reading shared|own", "Prefill once for all methods, or once for each method."),
    ] = "shared",
    dense: Annotated[
        bool, option("--dense/--no-dense", "Also measure full attention inside the model's window.")
    ] = True,
    *,
    common: options.MethodComparisonOptions,
    model: options.MethodModelOptions,
) -> None:
    """Plant facts in a long text, and count the facts that are found.

    esa selftest needle --len 32k --methods esa-consensus,streaming-llm,infllm"""
    from esa_cli.evaluation.selftest import run_plan
    from esa_cli.evaluation.selftest.score_tables import describe_invalid_row
    from esa_cli.qa.opening import fetch_and_check_model
    from esa_cli.qa.presets.resolved_preset import set_method_to_compare

    preset = model.load_preset_for_comparison()
    settings = run_plan.SelftestSettings(
        tests=options.split_at_commas(test),
        methods=common.choose_compared_methods(preset),
        lengths=tuple(dict.fromkeys(map(run_plan.parse_token_count, lengths.split(",")))),
        samples=samples, seed=seed, reading=reading, dense=dense,
    )  # fmt: skip
    with terminal.Reporter(common.quiet) as reporter:
        text = _check_settings_and_read_haystack(settings, preset, haystack, common.out)
        shard = common.check_files_and_parse_shard(common.out)
        reporter.show_stage("import", 0, None)
        place = model.choose_device_and_dtype()
        header = {
            **files.describe_command_run(),
            "model": preset.model,
            "preset": preset.name,
            "context": preset.context,
            "dense_length": run_plan.get_max_full_attention_tokens(preset),
            "settings": {
                # Files of earlier versions have these two, and are continued.
                "depths": None,
                "exact": False,
                "samples": samples,
                "seed": seed,
                "reading": reading,
                "haystack": text.name,
                "haystack_hash": digest_text(text.text)[:16] if text.text else None,
                "dtype": place.dtype_name,
            },
            "preset_settings": preset.model_dump(exclude={"name", "description"}),
        }
        journal = ResultsFile(
            common.out, header, fixed_fields=("model", "settings", "preset_settings"),
            key_fields=run_plan.KEY, describe_invalid_row=describe_invalid_row,
            other_shards=common.join or (),
        )  # fmt: skip
        known = fetch_and_check_model(preset, place, reporter)
        counts = [max(settings.lengths)] if set(settings.tests) != {"own"} else []
        if "own" in settings.tests:
            counts.append(known.count_tokens(text.text))
        longest = max(counts)
        presets = {name: set_method_to_compare(name, preset, longest) for name in settings.methods}
        known.check_methods_can_run(presets, longest)

        def ask_missing_questions() -> bool:
            with quiet_transformers():
                loaded = known.load_transformers_model(reporter)
                reporter.clear_spinner()
                from esa_cli.evaluation.selftest.selftest_run import SelftestRun

                deadline = common.compute_deadline()
                return SelftestRun(
                    loaded, preset, settings, text, journal, reporter, deadline, shard
                ).ask_all_questions()

        def print_results(is_complete: bool) -> None:
            if common.as_json:
                result = {**journal.header, "complete": is_complete, "rows": journal.rows}
                terminal.print_json(result)
            else:
                _print_score_tables(journal.rows)

        files.complete_results_file(journal, reporter, ask_missing_questions, print_results)


def _print_score_tables(rows: Sequence[dict[str, Any]]) -> None:
    from esa_cli.evaluation.selftest.score_tables import make_score_tables

    for table in make_score_tables(rows):
        print(terminal.make_printable_line(table.title))
        terminal.print_table(table.headers, table.rows)
        print(table.note)
    if not rows:
        print("no questions were asked")
    for way in ("shared", "own", "text"):
        same = (row for row in rows if row.get("reading") == way and not row.get("dense"))
        if names := ", ".join(dict.fromkeys(row["method"] for row in same)):
            print(terminal.strip_control_chars(f"reading: {way}: {names}"))


def _check_settings_and_read_haystack(
    settings: SelftestSettings, preset: Preset, haystack_path: Path | None, output_file: Path | None
) -> Haystack:
    """Checks the names of tests, methods and files, and returns the text to plant facts in."""
    from esa_cli.qa.presets.resolved_preset import set_method_to_compare

    if not settings.tests or not settings.methods:
        hint = f"tests: {', '.join(TASKS)}"
        raise UsageError("TEST must name a test, and --methods must name a method", hint)
    for test in settings.tests:
        find_by_name(TASKS, "self-test", test)
    for name in settings.methods:
        set_method_to_compare(name, preset, max(settings.lengths))
    if "own" in settings.tests and haystack_path is None:
        wrong = "the test own needs --haystack with a text of yours"
        raise UsageError(wrong, "add --haystack FILE")
    if haystack_path is None:
        return Haystack.from_chronicle(settings.seed)
    sources = map(str, [haystack_path, *haystack_path.glob("*")])
    files.check_output_file("--out", output_file, sources, "one of the texts of --haystack")
    return Haystack.from_files(str(haystack_path))


@options.make_typer_command
def compare(
    arguments: Arguments = None,
    methods: Annotated[
        str,
        option(
            "--methods NAME,...",
            "Names from `esa methods`, separated by commas; `preset` means the unchanged preset.",
        ),
    ] = "preset,esa,infllm,streaming-llm",
    top: Annotated[int, option("--top N", "Passages to show with each answer.", min=0)] = 2,
    max_new_tokens: options.MaxTokens = None,
    *,
    model: options.MethodModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer one question with several methods, to compare them.

    Every method has the same token budget, but uses full attention for a document of at most
    window.dense tokens.

    esa compare book.txt "Who is Ahab?" --methods preset,infllm,streaming-llm"""
    from esa_cli.evaluation.selftest import run_plan
    from esa_cli.qa.opening import check_before_loading
    from esa_cli.qa.presets.resolved_preset import FROM_TEXT
    from esa_cli.storage import refuse_disk_cache_outside_library

    documents, question = split_off_question(arguments, "compare")
    names = options.split_at_commas(methods)
    if not names:
        hint = "choose a method that `esa methods` lists, or `preset`, the unchanged preset"
        raise UsageError("--methods must name a method, got none", hint)
    with terminal.Reporter(quiet) as reporter:
        refuse_disk_cache_outside_library(model.cache)
        chosen = model.load_preset_for_comparison()
        text = join_texts(read_documents(documents, reporter).documents)
        place = model.choose_device_and_dtype()
        ready = check_before_loading(chosen, place, reporter, runs_methods=True)
        tokens = ready.model.count_tokens(text)
        settings = run_plan.SelftestSettings((), names, (tokens,), dense=False)
        grouped = run_plan.group_methods_by_prefill(settings, chosen, tokens)
        presets = [
            p for group in grouped if group.reading != "text" for p in group.presets.values()
        ]
        if presets:
            ready.model.make_ingest_planner(ready.resolved).check_memory_suffices(tokens)
        if len(presets) < len(names):
            ready.model.check_methods_can_run({FROM_TEXT: chosen}, tokens)
        if note := run_plan.explain_if_attention_is_full(tokens, presets):
            reporter.show_note(f"esa: {note}", dim=False)
        with quiet_transformers():
            rows = run_plan.compare_answers_of_methods(
                ready.model.load_transformers_model(reporter), chosen, grouped, text, question,
                max_passages=top, max_new_tokens=max_new_tokens,
                start_progress=reporter.start_progress,
            )  # fmt: skip
    if as_json:
        terminal.print_json({"question": question, "model": chosen.model, "methods": rows})
        return
    table = []
    for row in rows:
        shared = " shared" if row["shared"] else ""
        passages = [
            f"{p['weight']:.0%} {terminal.make_printable_line(' '.join(p['text'].split()))[:160]}"
            for p in row["passages"]
        ]
        times = format_duration(row["read_s"]) + shared, format_duration(row["answer_s"])
        memory = format_size(row["cache_bytes"]) + shared
        table.append((row["method"], row["answer"], *times, memory, "\n".join(passages)))
    headers = ("method", "answer", "reading", "answering", "reading's memory", "evidence")
    terminal.print_table(headers, table)


@options.make_typer_command
def bench(
    name: Annotated[
        str,
        argument("BENCHMARK", "longbench, infinitebench, counting-stars, needlebench, or finders."),
    ],
    questions: Annotated[
        Path | None, argument("QUESTIONS.jsonl", "With finders: questions with passages.")
    ] = None,
    data: Annotated[
        Path | None, option("--data DIR", "The folder with the official files of the benchmark.")
    ] = None,
    tasks: Annotated[
        str | None,
        option("--tasks NAME,...", "Tasks, separated by commas; by default all with files."),
    ] = None,
    limit: Annotated[int | None, option("--limit N", "Records to ask in each task.", min=1)] = None,
    *,
    common: options.MethodComparisonOptions,
    model: options.ModelOptions,
) -> None:
    """Run a public benchmark, and print a table of its scores.

    esa bench longbench --data LongBench/data --methods preset,infllm --out longbench.jsonl

    esa bench finders QUESTIONS.jsonl --finder NAME measures finders on questions of your own."""
    if (name == "finders") is not (questions is not None):
        needs = "the benchmark finders, and only this one, needs a file of questions"
        raise UsageError(needs, "for example: esa bench finders QUESTIONS.jsonl --finder NAME")
    if questions is not None:
        _bench_finders(questions, model, common)
        return
    from esa_cli.evaluation.bench import bench_run
    from esa_cli.evaluation.bench.benchmarks import BENCHMARKS
    from esa_cli.qa.opening import fetch_and_check_model
    from esa_cli.qa.presets.resolved_preset import resolve_preset, set_method_to_compare

    benchmark = find_by_name(BENCHMARKS, "benchmark", name)
    reporter = terminal.Reporter(common.quiet)
    if data is None:
        hint = f"get the files from {benchmark.source}"
        raise UsageError(f"the benchmark {name} needs its official files in --data DIR", hint)
    shard = common.check_files_and_parse_shard(common.out)
    chosen = model.load_preset_for_comparison()
    named = None if tasks is None else options.split_at_commas(tasks)
    wanted = bench_run.choose_tasks(benchmark, data, named)
    selection = bench_run.BenchRecordSelection(benchmark, data, wanted, limit, shard)
    record_hashes, longest_prompt = selection.check_and_hash_records()
    reporter.show_stage("import", 0, None)
    names, length = common.choose_compared_methods(chosen), benchmark.length
    presets = {method: set_method_to_compare(method, chosen, length) for method in names}
    for preset in presets.values():
        resolve_preset(preset)
    place = model.choose_device_and_dtype()
    settings = chosen.model_dump(exclude={"name", "description", "prompt", "generation"})
    dtype = place.packing or str(place.dtype)
    header = {
        **files.describe_command_run(),
        "benchmark": name,
        "model": chosen.model,
        "preset": chosen.name,
        "settings": {"preset": settings, "dtype": dtype, "length": length},
    }
    journal = ResultsFile(
        common.out, header, fixed_fields=("benchmark", "settings"), key_fields=bench_run.KEY,
        describe_invalid_row=bench_run.describe_invalid_row, other_shards=common.join or (),
    )  # fmt: skip
    complete = bench_run.has_all_result_rows(journal, presets, record_hashes)
    known = fetch_and_check_model(chosen, place, reporter)
    known.check_methods_can_run(presets, known.count_tokens(longest_prompt))
    left_out: list[dict[str, str]] = []

    def warn_of_too_long_question(case: QuestionToAsk, error: LengthError) -> None:
        row = {name: case.fields[name] for name in bench_run.KEY}
        left_out.append({**row, "why": error.message})
        reporter.clear_spinner()
        reporter.warn("esa: {method}: {task}, {id} left out: ".format(**row) + error.message)

    def ask_missing_questions() -> bool:
        if complete:
            return True
        from esa_cli.evaluation.row_run import ask_unanswered_questions
        from esa_cli.qa.answering.session import Session

        deadline = common.compute_deadline()
        with quiet_transformers():
            loaded = known.load_transformers_model(reporter)
            reporter.clear_spinner()
            with Session(loaded.model, loaded.tokenizer, chosen, loaded.cache) as session:
                progress = reporter.start_progress
                for method, preset in presets.items():
                    asker = bench_run.BenchAnswerer(loaded, session, method, preset, progress)
                    groups = selection.group_records_by_document()
                    documents = (asker.make_questions(benchmark, records) for records in groups)
                    if not ask_unanswered_questions(
                        documents, journal, deadline=deadline, on_left_out=warn_of_too_long_question
                    ):
                        return False
        return True

    given = benchmark, wanted, journal, left_out, common.as_json
    print_results = partial(_print_benchmark_results, *given)
    with reporter:
        files.complete_results_file(journal, reporter, ask_missing_questions, print_results)


def _print_benchmark_results(
    benchmark: Benchmark, tasks: Collection[str], journal: ResultsFile,
    left_out: list[dict[str, str]], as_json: bool, is_complete: bool,
) -> None:  # fmt: skip
    from esa_cli.evaluation.bench import bench_run

    scores = bench_run.compute_scores(benchmark, journal.rows)
    notes = [text for task, text in benchmark.notes.items() if not task or task in tasks]
    if as_json:
        result = {"complete": is_complete, "scores": scores, "notes": notes}
        result |= {"left_out": left_out, "rows": journal.rows}
        terminal.print_json({**journal.header, **result})
        return
    if left_out:
        notes.append(f"records left out, as they do not fit: {len(left_out):,}")
    terminal.print_table(*bench_run.make_score_table(benchmark, scores))
    for note in notes:
        print(terminal.make_printable_line(f"note: {note}"))


def _bench_finders(
    questions: Path, model: options.ModelOptions, common: options.MethodComparisonOptions
) -> None:
    """Measures words, the preset's finder, and the finder of --finder on a user's questions."""
    from esa_cli.evaluation.bench import finder_bench
    from esa_cli.qa.api import Esa
    from esa_cli.qa.opening import check_before_loading

    asked, rows = finder_bench.read_finder_questions(questions), list[dict[str, Any]]()
    names = ["words", replace(model, finder=None).load_preset().answer.finder, model.finder]
    with terminal.Reporter(common.quiet) as reporter, quiet_transformers():
        for name in dict.fromkeys(one for one in names if one is not None):
            preset = replace(model, finder=name).load_preset()
            checked = check_before_loading(preset, model.choose_device_and_dtype(), reporter)
            reporter.show_spinner(f"measuring {name}")
            with Esa.from_checked_preset(checked, observer=reporter) as esa:
                rows.append({"finder": name, **finder_bench.measure_finder(esa, asked)})
            reporter.clear_spinner()
    if common.as_json:
        terminal.print_json({"finders": rows})
    else:
        terminal.print_table(tuple(rows[0]), [tuple(map(str, row.values())) for row in rows])
