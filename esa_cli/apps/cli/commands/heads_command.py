"""`esa heads`: finds a model's retrieval heads, those that match a question to its passage."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.output_paths import run_facts
from esa_cli.errors import ModelError, PresetError, UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.calibration.retrieval_heads import HeadSet, RetrievalHeads
    from esa_cli.qa.presets.preset import Preset


@dataclass(frozen=True)
class HeadsRequest:
    """Options of `esa heads` besides those of the model."""

    length: Annotated[str, option("--length TOKENS", "Tokens of the text with needles.")] = "16k"
    questions: Annotated[int, option("--questions N", "Needles to ask for.", min=8, max=32)] = 32
    haystack: Annotated[
        Path | None,
        option("--haystack FILE|DIR", "A text file, or a folder of them; else a generated text."),
    ] = None
    seed: Annotated[int, option("--seed N", "Other places, other text.", min=0)] = 0
    out: Annotated[Path | None, option("--out -o FILE", "Write a preset with the set.")] = None


MARK = "# Made by `esa heads`"


def check_out(path: Path, extended: str) -> None:
    """Refuses, before the model is loaded, a file that must not be written.

    Raises:
        UsageError: no YAML file, the extended preset itself, or a file that is not of `esa heads`.
        PresetError: there is no such preset.
    """
    from esa_cli.qa.presets.preset import way_of
    from esa_cli.qa.presets.preset_files import SUFFIXES, find

    files.check("--out", path)
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"--out must name a {SUFFIXES[0]} file, got {path}", "presets are YAML files"
        )
    preset = find(way_of(extended)[0]).resolve()
    if path.exists() and (path.resolve() == preset or MARK not in path.read_text("utf-8")):
        raise UsageError(
            f"--out must be new or a file of `esa heads`, got {path}", "name another file"
        )


def write_preset(
    path: Path, extended: str, overrides: Sequence[str], heads: HeadSet, about: str
) -> None:
    """Writes a preset with these heads atomically, and only if it can be loaded.

    Args:
        extended: a preset's name or path. overrides: as of `preset.load`. about: one line of
            results, as a comment.
    """
    from esa_cli.qa.presets.preset import load, merge, parse_override
    from esa_cli.qa.presets.preset_files import SUFFIXES
    from esa_cli.system.files import replacing
    from esa_cli.system.machine import in_home
    from esa_cli.system.text import dump_yaml

    parent = extended
    if extended.endswith(SUFFIXES) or "/" in extended:
        parent = str(in_home(extended, "preset", PresetError).resolve())
    data: dict[str, Any] = {"extends": parent, "description": f"{extended} with chosen heads"}
    for text in overrides:
        data = merge(data, parse_override(text))
    data = merge(data, {"score": {"heads": [list(pair) for pair in heads]}})
    if "answer" not in data and load(extended, overrides).answer.reader is not None:
        # Else the model that the heads are of would word the answers from passages.
        data["answer"] = {"from": "rows"}
    with files.writing(path), replacing(path, durable=True) as part:
        part.write_text(f"{MARK}: {about}\n{dump_yaml(data)}", "utf-8")
        load(str(part.absolute()))


SHOWN = 16
"""Heads in the table."""


@options.command
def heads(
    wanted: HeadsRequest,
    given: ModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the heads that match a question to its passage.

    Those are its retrieval heads. Sentences are planted in a long text, and asked for: which
    attention heads look at them? What is found is shown as a setting (score.heads), or written as
    a preset; only these heads then vote for passages.

    esa heads --preset consensus --model HuggingFaceTB/SmolLM2-360M-Instruct --out few.yaml
    """
    from esa_cli.apps.cli.output.terminal import Reporter, print_json

    reporter, model = Reporter(quiet), replace(given, cache="device")
    chosen = model.method_preset()
    if wanted.out is not None:
        check_out(wanted.out, model.preset)
    try:
        search, result = _find(wanted, model, chosen, reporter)
    finally:
        reporter.settle()
    if wanted.out is not None and not search.weak:
        about = f"{search.hits} of {search.held_out} held-out needles, all heads {search.all_hits}"
        write_preset(wanted.out, model.preset, model.overrides(), search.chosen, about)
        result["written"] = str(wanted.out)
    if as_json:
        print_json(result)
    else:
        _show(search, result)
        reporter.note(
            "esa: found: the needle asked for has most of the head's votes; margin: 0.5 is a draw "
            "with another place, at 1 there are no votes elsewhere; held out: the other half of "
            "the questions ranks the heads"
        )
    if wanted.out is not None and search.weak:
        raise ModelError(f"no heads to put into {wanted.out}", "nothing was written")


def _find(
    wanted: HeadsRequest, model: ModelOptions, chosen: Preset, reporter: Reporter
) -> tuple[RetrievalHeads, dict[str, Any]]:
    """Loads the model and finds its heads; the result, and the JSON object."""
    reporter.stage("import", 0, None)
    from esa_cli.apps.cli.output.progress_display import token_progress
    from esa_cli.evaluation.calibration import retrieval_heads
    from esa_cli.evaluation.selftest.run_plan import tokens
    from esa_cli.evaluation.selftest.selftest_run import count_tokens
    from esa_cli.evaluation.tasks import Haystack, TaskRequest, find_task
    from esa_cli.models.files.quiet_transformers import quiet_transformers
    from esa_cli.qa.opening import inspect_model

    retrieval_heads.voting(chosen)
    length, place, texts = tokens(wanted.length), model.place, wanted.haystack
    hay = Haystack.read(str(texts)) if texts else Haystack.chronicle(wanted.seed)
    known = inspect_model(chosen, place, reporter)
    known.check({"preset": chosen}, length)
    size = partial(count_tokens, known.tokenizer)
    request = TaskRequest(length, size, hay, wanted.questions, wanted.seed)
    sample = next(find_task("needle").samples(request))
    retrieval_heads.check_needles(known.tokenizer, chosen, sample)
    with quiet_transformers():
        loaded = known.load(reporter)
        reporter.settle()
        started = time.perf_counter()
        reading = token_progress(reporter, f"prefilling {hay.name} with {wanted.questions} needles")
        asking = partial(reporter.stage, "asking for needles")
        search = retrieval_heads.find(loaded, chosen, sample, reading, asking)
    seconds = round(time.perf_counter() - started, 1)
    best = [{**asdict(head), "margin": round(head.margin, 4)} for head in search.heads[:SHOWN]]
    layers = 1 + max(head.layer for head in search.heads)
    setting = f"score.heads={json.dumps(search.chosen, separators=(',', ':'))}"
    return search, {
        **run_facts(),
        "model": chosen.model,
        "preset": chosen.name,
        "score": {**chosen.score, "heads": []},
        "seed": wanted.seed,
        "layers": layers,
        "heads_per_layer": len(search.heads) // layers,
        **asdict(search),
        "heads": best,
        "weak": search.weak,
        "use": None if search.weak else shlex.join(["--set", setting]),
        "written": None,
        "length": length,
        "needles": wanted.questions,
        "haystack": hay.name,
        "dtype": place.dtype_name,
        "seconds": seconds,
    }


def _show(search: RetrievalHeads, result: dict[str, Any]) -> None:
    """Prints the best heads, the held-out needles that the set finds, and how to use it."""
    from esa_cli.apps.cli.output.terminal import print_table

    ranked, held_out = f"found of {search.ranked_by}", f"of {search.held_out} held out"
    rows = []
    for head in search.heads[:SHOWN]:
        counts = map(str, (head.layer, head.head, head.found, head.held_out))
        is_chosen = head.pair in search.chosen and not search.weak
        rows.append((*counts, f"{head.margin:.2f}", "yes" if is_chosen else ""))
    print_table(("layer", "head", ranked, held_out, "margin", "chosen"), rows)
    layers = len({layer for layer, _ in search.chosen})
    print(
        f"\nof {search.held_out} held-out needles: {search.hits} first by these "
        f"{len(search.chosen)} heads of {layers} layers, {search.all_hits} by all "
        f"{len(search.heads)} heads"
    )
    if search.weak:
        print(f"no few heads of {result['model']} find what is asked for: let all vote")
        return
    written = result["written"]
    print(f"use them with {shlex.join(['--preset', written]) if written else result['use']}")
