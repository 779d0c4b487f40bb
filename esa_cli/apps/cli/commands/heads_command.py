"""`esa heads`: finds a model's retrieval heads, those that match a question to its passage.

preset -> its score votes -> files -> haystack, or pairs and texts -> model's small files -> model
-> needles planted, or contexts of nine windows -> these and the questions processed -> table
-> file
"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.commands.heads_request import HeadsRequest
from esa_cli.apps.cli.commands.heads_search import (
    HeadsSearch,
    by_needles,
    by_pairs,
    open_journal,
)
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.uncached_options import UNCACHED, UncachedOptions
from esa_cli.apps.cli.run_facts import run_facts

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.calibration.retrieval_heads import RetrievalHeads
    from esa_cli.qa.presets.preset import Preset

SHOWN = 16
"""Heads in the table."""
EXPLAINED = {
    "needles": "found: the needle asked for has most of the head's votes; margin: 0.5 is a draw "
    "with another place, at 1 there are no votes elsewhere",
    "pairs": "found: of nine windows the answering one has most of the head's votes; margin: how "
    "many standard deviations more than the next",
}
"""Columns of the table, by what is found."""


DEFAULT_REQUEST = HeadsRequest()


@options.command
def heads(
    wanted: HeadsRequest = DEFAULT_REQUEST,
    given: UncachedOptions = UNCACHED,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the heads that match a question to its passage.

    Those are its retrieval heads. Sentences are planted in a long text, and asked for: which
    attention heads look at them? What is found is shown as a setting (score.heads), or written as
    a preset; only these heads then vote for passages.

    esa heads --model HuggingFaceTB/SmolLM2-360M-Instruct --out few.yaml
    """
    from esa_cli.apps.cli.output.terminal import Reporter

    reporter = Reporter(quiet)
    try:
        _run(wanted, wanted.named(given.model_options()), reporter, as_json)
    except KeyboardInterrupt:
        reporter.settle()
        if wanted.journal is not None and wanted.journal.exists():
            reporter.note(f"esa: {wanted.journal} keeps what was done; the same command goes on")
        raise
    finally:
        reporter.settle()


def _run(wanted: HeadsRequest, model: ModelOptions, reporter: Reporter, as_json: bool) -> None:
    from esa_cli.apps.cli.output.terminal import print_json
    from esa_cli.errors import ModelError

    chosen = model.load_preset()
    wanted.check(model.preset)
    by = by_needles(wanted) if wanted.pairs is None else by_pairs(wanted, *wanted.pairs)
    found, result = _steps(wanted, model, chosen, by, reporter)
    if wanted.out is not None and not found.weak:
        _write(wanted.out, model, found)
        result["written"] = str(wanted.out)
    if as_json:
        print_json(result)
    else:
        _show(found, result)
        half = "the other half of the questions ranks the heads"
        reporter.note(f"esa: {EXPLAINED[found.unit]}; held out: {half}")
    if wanted.out is not None and found.weak:
        raise ModelError(f"no heads to put into {wanted.out}", "nothing was written")


def _steps(
    wanted: HeadsRequest, model: ModelOptions, chosen: Preset, by: HeadsSearch, reporter: Reporter
) -> tuple[RetrievalHeads, dict[str, Any]]:
    """Loads the model and finds its heads; the result, and the JSON object."""
    reporter.stage("import", 0, None)
    from esa_cli.apps.cli.model_choice.known_model import inspect_model
    from esa_cli.apps.cli.model_choice.model_place import ModelPlace
    from esa_cli.evaluation.calibration.retrieval_heads import voting
    from esa_cli.models.loading.quiet_transformers import quiet_transformers

    voting(chosen)
    place = ModelPlace.of(model)
    known = inspect_model(chosen, place, reporter)
    known.check([chosen], by.tokens or chosen.context)
    by.check(known.tokenizer, chosen)
    journal = open_journal(wanted, chosen, by.facts, place.dtype_name)
    with quiet_transformers(), journal:
        if journal.count:
            reporter.note(f"esa: {journal.count} questions are in {wanted.journal}")
        loaded = known.load(reporter)
        reporter.settle()
        started = time.perf_counter()
        found = by.find(loaded, chosen, reporter, journal)
    seconds = round(time.perf_counter() - started, 1)
    reporter.settle()
    result = {**_result(found, wanted, chosen), **by.facts}
    return found, {**result, "dtype": place.dtype_name, "seconds": seconds}


def _result(found: RetrievalHeads, wanted: HeadsRequest, chosen: Preset) -> dict[str, Any]:
    best = [{**asdict(one), "margin": round(one.margin, 4)} for one in found.heads[:SHOWN]]
    layers = 1 + max(one.layer for one in found.heads)
    return {
        **run_facts(),
        "model": chosen.model,
        "preset": chosen.name,
        "score": {**chosen.score, "heads": []},
        "seed": wanted.seed,
        "layers": layers,
        "heads_per_layer": len(found.heads) // layers,
        **asdict(found),
        "heads": best,
        "weak": found.weak,
        "use": None if found.weak else _use(found),
        "written": None,
    }


def _use(found: RetrievalHeads) -> str:
    heads = json.dumps(found.chosen, separators=(",", ":"))
    return shlex.join(["--set", f"score.heads={heads}"])


def _write(path: Path, model: ModelOptions, found: RetrievalHeads) -> None:
    from esa_cli.apps.cli.options.output_paths import writing
    from esa_cli.evaluation.calibration.heads_preset import write

    about = (
        f"{found.hits} of {found.held_out} held-out {found.unit} first, all heads {found.all_hits}"
    )
    with writing(path):
        write(path, model.preset, model.overrides(), found.chosen, about)


def _show(found: RetrievalHeads, result: dict[str, Any]) -> None:
    """Prints the best heads, the held-out needles that the set finds, and how to use it."""
    from esa_cli.apps.cli.output.terminal import print_table

    headers = (
        "layer",
        "head",
        f"found of {found.ranked_by}",
        f"of {found.held_out} held out",
        "margin",
        "chosen",
    )
    print_table(
        headers,
        [
            (
                str(one.layer),
                str(one.head),
                str(one.found),
                str(one.held_out),
                f"{one.margin:.2f}",
                "yes" if one.pair in found.chosen and not found.weak else "",
            )
            for one in found.heads[:SHOWN]
        ],
    )
    layers = len({layer for layer, _ in found.chosen})
    print(
        f"\nof {found.held_out} held-out {found.unit}: {found.hits} first by these "
        f"{len(found.chosen)} heads of {layers} layers, {found.all_hits} by all "
        f"{len(found.heads)} heads"
    )
    _show_others(found)
    if found.weak:
        print(f"no few heads of {result['model']} find what is asked for: let all vote")
        return
    written = result["written"]
    print(f"use them with {shlex.join(['--preset', written]) if written else result['use']}")


def _show_others(found: RetrievalHeads) -> None:
    """Prints what the preset's own heads put first, and, of real questions, what BM25 does."""
    from esa_cli.evaluation.calibration.pair_heads import PairHeads

    own = [] if found.preset_hits is None else [f"{found.preset_hits} by the preset's heads"]
    words = [f"{found.lexical_hits} by BM25"] if isinstance(found, PairHeads) else []
    if own or words:
        print(", ".join(own + words))
