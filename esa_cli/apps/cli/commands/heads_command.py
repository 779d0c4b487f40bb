"""`esa heads`: finds a model's retrieval heads, those that match a question to its passage.

preset -> its score votes -> files -> haystack -> model's small files -> model -> needles planted
-> text and questions processed -> table -> file
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli import options
from esa_cli.apps.cli.options import ModelOptions
from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.apps.cli.terminal import Reporter
    from esa_cli.evaluation.calibration.retrieval_heads import RetrievalHeads
    from esa_cli.evaluation.tasks import Haystack
    from esa_cli.qa.preset import Preset

SHOWN = 16
"""Heads in the table."""


@dataclass(frozen=True)
class HeadsRequest:
    """Options of `esa heads` besides those of the model."""

    length: Annotated[str, typer.Option(help="Tokens of the text, as 32k.")] = "16k"
    questions: Annotated[
        int, typer.Option(min=8, max=32, help="How many needles are asked for.")
    ] = 32
    haystack: Annotated[
        Path | None, typer.Option(help="A text file, or a folder of them; else a generated text.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Other places, other text.")] = 0
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write a preset with the set."),
    ] = None

    @property
    def tokens(self) -> int:
        """Raises UsageError."""
        from esa_cli.evaluation.selftest.run_plan import tokens

        return tokens(self.length)


DEFAULT_REQUEST = HeadsRequest()


@options.command
def heads(
    wanted: HeadsRequest = DEFAULT_REQUEST,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the heads that find what a question asks for, so that only these need to vote.

    esa heads --model HuggingFaceTB/SmolLM2-360M-Instruct --out few.yaml
    """
    from esa_cli.apps.cli.terminal import Reporter

    reporter = Reporter(quiet)
    try:
        _run(wanted, model, reporter, as_json)
    finally:
        reporter.settle()


def _run(wanted: HeadsRequest, model: ModelOptions, reporter: Reporter, as_json: bool) -> None:
    from esa_cli.apps.cli.terminal import print_json
    from esa_cli.errors import ModelError

    chosen, hay = model.load_preset(), _check(wanted, model)
    found, result = _steps(wanted, model, chosen, hay, reporter)
    if wanted.out is not None and not found.weak:
        _write(wanted.out, model, found)
        result["written"] = str(wanted.out)
    if as_json:
        print_json(result)
    else:
        _show(found, result)
    if wanted.out is not None and found.weak:
        raise ModelError(f"no heads to put into {wanted.out}", "nothing was written")


def _check(wanted: HeadsRequest, model: ModelOptions) -> Haystack:
    """Checks length and files before anything is loaded; returns the haystack."""
    from esa_cli.apps.cli import output_paths as files
    from esa_cli.evaluation.tasks import Haystack

    if wanted.tokens and wanted.out is not None:
        from esa_cli.evaluation.calibration.heads_preset import refuse_foreign

        files.check("--out", wanted.out)
        refuse_foreign(wanted.out, model.preset)
    given = wanted.haystack
    return Haystack.chronicle(wanted.seed) if given is None else Haystack.read(str(given))


def _steps(
    wanted: HeadsRequest, model: ModelOptions, chosen: Preset, hay: Haystack, reporter: Reporter
) -> tuple[RetrievalHeads, dict[str, Any]]:
    """Loads the model and finds its heads; the result, and the JSON object."""
    reporter.stage("import", 0, None)
    from esa_cli.apps.cli.preflight import ModelPlace, inspect_model
    from esa_cli.evaluation.calibration.retrieval_heads import voting
    from esa_cli.models.quiet_transformers import quiet_transformers

    voting(chosen)
    place = ModelPlace.of(model)
    known = inspect_model(chosen, place, reporter)
    known.check([chosen], wanted.tokens)
    with quiet_transformers():
        loaded = known.load(reporter)
        reporter.settle()
        started = time.perf_counter()
        found = _find(loaded, chosen, wanted, hay, reporter)
    seconds = round(time.perf_counter() - started, 1)
    reporter.settle()
    result = _result(found, wanted, chosen)
    return found, {**result, "haystack": hay.name, "dtype": place.dtype_name, "seconds": seconds}


def _find(
    loaded: Any, chosen: Preset, wanted: HeadsRequest, hay: Haystack, reporter: Reporter
) -> RetrievalHeads:
    from esa_cli.apps.cli import progress_display as progress
    from esa_cli.evaluation.calibration.retrieval_heads import find
    from esa_cli.evaluation.tasks import find_task
    from esa_cli.evaluation.tasks.task_sample import TaskRequest

    def size(text: str) -> int:
        out = loaded.tokenizer(text, add_special_tokens=False, verbose=False)
        return len(out["input_ids"])

    request = TaskRequest(
        wanted.tokens, size, hay, None, wanted.questions, wanted.seed, exact=False
    )
    sample = next(iter(find_task("needle").samples(request)))
    label = f"reading {hay.name} with {wanted.questions} needles"

    def asking(done: int, of: int) -> None:
        reporter.stage("reading questions", done, of)

    return find(loaded, chosen, sample, progress.token_progress(reporter, label), asking)


def _result(found: RetrievalHeads, wanted: HeadsRequest, chosen: Preset) -> dict[str, Any]:
    best = [{**asdict(one), "margin": round(one.margin, 4)} for one in found.heads[:SHOWN]]
    layers = 1 + max(one.layer for one in found.heads)
    return {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "model": chosen.model,
        "preset": chosen.name,
        "score": {**chosen.score, "heads": []},
        "length": wanted.tokens,
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
    from esa_cli.apps.cli.output_paths import writing
    from esa_cli.evaluation.calibration.heads_preset import write

    about = f"{found.hits} of {found.held_out} held-out needles first, all heads {found.all_hits}"
    with writing(path):
        write(path, model.preset, model.overrides(), found.chosen, about)


def _show(found: RetrievalHeads, result: dict[str, Any]) -> None:
    """Prints the best heads, the held-out needles that the set finds, and how to use it."""
    from esa_cli.apps.cli.terminal import print_table

    headers = (
        "layer",
        "head",
        f"found of {found.ranked_by}",
        f"held out of {found.held_out}",
        "margin",
        "",
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
                "in the set" if one.pair in found.chosen else "",
            )
            for one in found.heads[:SHOWN]
        ],
    )
    layers = len({layer for layer, _ in found.chosen})
    print(
        f"\nof {found.held_out} held-out needles: {found.hits} first by these {len(found.chosen)} "
        f"heads of {layers} layers, {found.all_hits} by all {len(found.heads)} heads"
    )
    if found.weak:
        print(f"{result['model']} has no few heads that find what is asked for: let all vote")
        return
    written = result["written"]
    print(f"use them with {shlex.join(['--preset', written]) if written else result['use']}")
