"""The commands `esa calibrate`, to fit compressors, and `esa heads`, to find retrieval heads."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from esa_cli.apps.cli.inputs import read_documents
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output.terminal import Reporter, print_json, print_table
from esa_cli.documents.document import join_texts
from esa_cli.documents.sources import find_files
from esa_cli.evaluation.tasks import TASKS
from esa_cli.evaluation.tasks.task_sample import Haystack, TaskRequest
from esa_cli.models.files.quiet_transformers import quiet_transformers

if TYPE_CHECKING:
    from esa_cli.qa.presets.preset import Preset

SHOWN_HEADS = 16


@options.make_typer_command
def calibrate(
    texts: Annotated[list[str], argument("FILE...", "Texts to read, or - for standard input.")],
    *,
    model_options: options.MethodModelOptions,
    target: Annotated[
        str,
        option("--for METHOD", "Method from `esa methods`, or preset, whose queries are fitted."),
    ] = "esa",
    tokens: Annotated[int, option("--tokens N", "Maximum tokens to read.", min=1)] = 50_000,
    method: Annotated[
        Literal["all", "closed-form", "pca", "learned"],
        option("--method METHOD", "Compressor to fit: all, closed-form, pca or learned."),
    ] = "all",
    rank: Annotated[
        int | None, option("--rank N", "Numbers per token and layer after compression.", min=1)
    ] = None,
    k: Annotated[
        list[int] | None,
        option("--k N", "Measure recall at this k, at most half of the keys. Repeatable.", min=1),
    ] = None,
    out: Annotated[
        Path, option("--out -o FILE", "Write the fitted projections to a safetensors file.")
    ] = Path("compressor.safetensors"),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit compressors of keys to a text, and compare their recall.

    esa calibrate book.txt --out book.safetensors"""
    from esa_cli.evaluation.calibration import fitted_projections
    from esa_cli.qa.opening import check_before_loading
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset

    model = replace(model_options, cache="device")
    options.load_plugin_files(model.plugins)  # plugins may read further kinds of files
    files.check_output_file("--out", out, [*texts, *find_files(texts).paths])
    if out.exists():
        fitted_projections.refuse_to_overwrite_foreign_file(out)
    with Reporter(quiet) as reporter:
        given = model.load_preset_for_comparison()
        text = join_texts(read_documents(texts, reporter).documents)
        place = model.choose_device_and_dtype()
        ready = check_before_loading(given, place, reporter, runs_methods=True)
        chosen = fitted_projections.apply_reduced_key_method(target, given)
        loaded = ready.model.load_transformers_model(reporter)
        methods = fitted_projections.METHODS if method == "all" else (method,)
        training = fitted_projections.AdamSettings()
        progress = partial(reporter.show_stage, "fitting")
        with TemporaryDirectory(prefix=".esa-calibrate-", dir=out.resolve().parent) as folder:
            job = fitted_projections.open_projection_fitter(
                loaded, chosen, text, tokens, Path(folder)
            )
            total, resolved = len(job.ids), ResolvedPreset(job.preset, job.method)
            planner = ready.model.make_ingest_planner(resolved)
            planner.check_memory_suffices(total)
            with quiet_transformers():
                seconds = planner.plan_ingest(total).estimated_seconds
                job.store_queries_and_keys(reporter.start_ingest_progress(total, seconds))
            reporter.clear_spinner()
            study = job.measure_recall(rank, methods, training, k or [1024], progress)
        job.save_best_projections(out, study, training)
    best = study.find_best_method()
    if as_json:
        facts = {"model": chosen.model, "preset": chosen.name, "for": target}
        written = {"file": str(out), "method": best}
        fitted = {**study.make_json_data(), "training": asdict(training), "written": written}
        print_json({**facts, **fitted})
        return
    results, top = study.results.values(), len(study.ks) - 1
    rows = [
        [str(layer), str(rank), *(f"{one.recall[layer][-1]:.3f}" for one in results)]
        for layer, rank in enumerate(study.ranks)
    ]
    for at, k_keys in reversed([*enumerate(study.ks)]):
        means = (f"{one.average_recall(at):.3f}" for one in results)
        rows.append(["mean" if at == top else f"mean @{k_keys}", "", *means])
    print_table(("layer", "R", *(f"{name} @{study.ks[-1]}" for name in study.results)), rows)
    use = _format_options_to_use_compressor(model.load_preset(), chosen, out)
    reporter.show_note(f"{best} is in {out}; use it with\n  {use}", dim=False)


def _format_options_to_use_compressor(
    current_preset: Preset, fitted_preset: Preset, compressor_file: Path
) -> str:
    """Returns the options of `esa ask` that use a fitted compressor with the settings it needs."""
    words: list[str] = []
    for part in ("selector", "score", "position"):
        settings = getattr(fitted_preset, part)
        if settings != getattr(current_preset, part):
            for key, value in settings.items():
                text = value if key == "name" else json.dumps(value)
                words += ["--set", f"{part}.{key}={text}"]
    words += ["--set", "answer.from=rows"] * (not current_preset.answer.needs_kv_cache)
    words += ["--set", "compressor.name=learned", "--set", f"compressor.file={compressor_file}"]
    return shlex.join(words)


@options.make_typer_command
def heads(
    length: Annotated[
        str, option("--len TOKENS", "Length in tokens of the text that contains the needles.")
    ] = "16k",
    questions: Annotated[int, option("--questions N", "Needles to ask for.", min=8, max=32)] = 32,
    haystack: options.Haystack = None,
    *,
    model_options: options.MethodModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the attention heads that match a question to its passage.

    The command plants sentences in a long text, asks for each sentence, and measures which
    attention heads look at it. With the printed setting score.heads only the found retrieval heads
    vote for passages.

    esa heads --preset consensus --model HuggingFaceTB/SmolLM2-360M-Instruct"""
    model = replace(model_options, cache="device")
    with Reporter(quiet) as reporter:
        preset = model.load_preset_for_comparison()
        reporter.show_stage("import", 0, None)
        from esa_cli.evaluation.calibration import retrieval_heads
        from esa_cli.evaluation.selftest.run_plan import parse_token_count
        from esa_cli.qa.opening import fetch_and_check_model

        retrieval_heads.build_voting_method(preset)
        tokens, place = parse_token_count(length), model.choose_device_and_dtype()
        hay = Haystack.from_files(str(haystack)) if haystack else Haystack.from_chronicle(0)
        known = fetch_and_check_model(preset, place, reporter)
        known.check_methods_can_run({"preset": preset}, tokens)
        request = TaskRequest(tokens, known.count_tokens, hay, questions, 0)
        sample = next(TASKS["needle"].samples(request))
        retrieval_heads.choose_questions_with_middle_needles(known.tokenizer, preset, sample)
        with quiet_transformers():
            loaded = known.load_transformers_model(reporter)
            reporter.clear_spinner()
            started = time.perf_counter()
            reading = reporter.start_progress(f"reading {hay.name} with {questions} needles")
            asking = partial(reporter.show_stage, "asking for needles")
            search = retrieval_heads.find_retrieval_heads(loaded, preset, sample, reading, asking)
        seconds = round(time.perf_counter() - started, 1)
    shown, misses = search.heads[:SHOWN_HEADS], search.misses_most_needles
    layers = 1 + max(head.layer for head in search.heads)
    use = ["--set", f"score.heads={json.dumps(search.chosen, separators=(',', ':'))}"]
    use += ["--set", "answer.from=rows"] * (not model.load_preset().answer.needs_kv_cache)
    if as_json:
        facts = {
            **files.describe_command_run(),
            "model": preset.model,
            "preset": preset.name,
            "score": {**preset.score, "heads": []},
            "layers": layers,
            "heads_per_layer": len(search.heads) // layers,
            **asdict(search),
            "heads": [{**asdict(head), "margin": round(head.margin, 4)} for head in shown],
            "weak": misses,
            "use": None if misses else shlex.join(use),
            "length": tokens,
            "needles": questions,
            "haystack": hay.name,
            "dtype": place.dtype_name,
            "seconds": seconds,
        }
        print_json(facts)
        return
    rows = []
    for head in shown:
        counts = map(str, (head.layer, head.head, head.found, head.held_out))
        is_chosen = (head.layer, head.head) in search.chosen and not misses
        rows.append((*counts, f"{head.margin:.2f}", "yes" if is_chosen else ""))
    ranked, held_out = f"found of {search.ranked_by}", f"of {search.held_out} held out"
    print_table(("layer", "head", ranked, held_out, "margin", "chosen"), rows)
    print(
        f"\nof {search.held_out} held-out needles: {search.hits} first by these "
        f"{len(search.chosen)} heads, {search.all_hits} by all {len(search.heads)} heads"
    )
    if misses:
        print(f"a few heads of {preset.model} do not find what is asked for: let all heads vote")
    else:
        print(f"use them with {shlex.join(use)}")
