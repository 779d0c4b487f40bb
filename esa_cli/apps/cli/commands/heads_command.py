"""`esa heads`: finds a model's retrieval heads, those that match a question to its passage.

preset -> its score votes -> files -> haystack, or pairs and texts -> model's small files -> model
-> needles planted, or contexts of nine windows -> these and the questions processed -> table
-> file
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli.commands.calibrate_command import UncachedOptions
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.run_facts import run_facts
from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.calibration.head_ranking import VoteJournal
    from esa_cli.evaluation.calibration.retrieval_heads import RetrievalHeads
    from esa_cli.evaluation.tasks.task_sample import TaskSample
    from esa_cli.qa.presets.preset import Preset


LENGTH, QUESTIONS, SAMPLES = "16k", 32, 400
KINDS = ("reworded",)


@dataclass(frozen=True)
class HeadsRequest:
    """Options of `esa heads` besides those of the model."""

    model_name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="As --model; else the preset's.", show_default=False
        ),
    ] = None
    length: Annotated[
        str | None, option("--length TOKENS", f"Tokens of the text with needles; {LENGTH}.")
    ] = None
    questions: Annotated[
        int | None, option("--questions N", f"Needles to ask for; {QUESTIONS}.", min=8, max=32)
    ] = None
    haystack: Annotated[
        Path | None,
        option("--haystack FILE|DIR", "A text file, or a folder of them; else a generated text."),
    ] = None
    pairs: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="PAIRS TEXTS",
            help="By real questions instead of needles: folders of questions and of their texts.",
        ),
    ] = None
    samples: Annotated[
        int | None,
        option("--samples N", f"With --pairs: questions, one a passage; {SAMPLES}.", min=4),
    ] = None
    kind: Annotated[
        list[str] | None,
        option("--kind NAME", "With --pairs: questions of this kind; reworded. Repeatable."),
    ] = None
    seed: Annotated[int, option("--seed N", "Other places, other text; other pairs.", min=0)] = 0
    out: Annotated[Path | None, option("--out -o FILE", "Write a preset with the set.")] = None
    journal: Annotated[
        Path | None,
        option(
            "--journal FILE.jsonl", "Each question's votes; the same command continues the file."
        ),
    ] = None

    @property
    def tokens(self) -> int:
        """Tokens of the text with needles. Raises UsageError."""
        from esa_cli.evaluation.selftest.run_plan import tokens

        return tokens(self.length or LENGTH)

    @property
    def needles(self) -> int:
        return self.questions or QUESTIONS

    @property
    def drawn(self) -> int:
        return self.samples or SAMPLES

    @property
    def kinds(self) -> list[str]:
        return self.kind or [*KINDS]

    def named(self, model: ModelOptions) -> ModelOptions:
        """The options with MODEL for --model. Raises UsageError: both are given."""
        from esa_cli.errors import UsageError

        if self.model_name is None:
            return model
        if model.model is not None:
            raise UsageError(
                f"the model must be given once, got {self.model_name} and {model.model}",
                "leave --model out",
            )
        return replace(model, model=self.model_name)

    def check(self, preset: str) -> None:
        """Checks the options before anything is loaded.

        Args:
            preset: the one that the written preset extends.

        Raises:
            UsageError: an option of the other way, no length, or --out must not be written.
        """
        from esa_cli.apps.cli.options import output_paths as files
        from esa_cli.errors import UsageError
        from esa_cli.evaluation.calibration.heads_preset import refuse_foreign

        names = ("samples", "kind") if self.pairs is None else ("length", "questions", "haystack")
        for name in names:
            if getattr(self, name) is not None:
                way = "with" if self.pairs is None else "without"
                raise UsageError(f"--{name} must be given {way} --pairs", f"leave --{name} out")
        files.check("--journal", self.journal)
        files.apart({"--out": self.out, "--journal": self.journal})
        if self.tokens and self.out is not None:
            files.check("--out", self.out)
            refuse_foreign(self.out, preset)


@dataclass(frozen=True)
class HeadsSearch:
    """How heads are found; `facts` are entries of the JSON object.

    Args:
        tokens: of the text; 0: up to the preset's context. check: raises UsageError where it can
            be seen without the model that too few questions can be asked.
    """

    tokens: int
    check: Callable[[Any, Preset], None]
    find: Callable[[Any, Preset, Reporter, VoteJournal], RetrievalHeads]
    facts: dict[str, Any]


def by_needles(wanted: HeadsRequest) -> HeadsSearch:
    """By needles in a text. Raises DocumentError: the haystack cannot be read."""
    from esa_cli.evaluation.tasks import Haystack, find_task
    from esa_cli.evaluation.tasks.task_sample import TaskRequest

    given = wanted.haystack
    hay = Haystack.chronicle(wanted.seed) if given is None else Haystack.read(str(given))

    def planted(tokenizer: Any) -> TaskSample:
        def size(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

        request = TaskRequest(
            wanted.tokens, size, hay, None, wanted.needles, wanted.seed, exact=False
        )
        return next(iter(find_task("needle").samples(request)))

    def check(tokenizer: Any, chosen: Preset) -> None:
        from esa_cli.evaluation.calibration.retrieval_heads import check_needles

        check_needles(tokenizer, chosen, planted(tokenizer))

    def find(
        loaded: Any, chosen: Preset, reporter: Reporter, journal: VoteJournal
    ) -> RetrievalHeads:
        from esa_cli.apps.cli.output import progress_display as progress
        from esa_cli.evaluation.calibration.retrieval_heads import find

        sample = planted(loaded.tokenizer)
        label = f"reading {hay.name} with {wanted.needles} needles"
        reading = progress.token_progress(reporter, label)
        asking = partial(reporter.stage, "reading questions")
        return find(loaded, chosen, sample, reading, asking, journal)

    facts = {"length": wanted.tokens, "needles": wanted.needles, "haystack": hay.name}
    return HeadsSearch(wanted.tokens, check, find, facts)


def by_pairs(wanted: HeadsRequest, pairs: Path, texts: Path) -> HeadsSearch:
    """By real questions. Raises DocumentError, UsageError: the pairs, or none of such a kind."""
    from esa_cli.evaluation.calibration.pair_heads import draw_pairs, pair_contexts
    from esa_cli.evaluation.calibration.question_pairs import read_training_texts

    read = read_training_texts(pairs, texts)
    drawn = draw_pairs(read, wanted.kinds, wanted.drawn, wanted.seed)

    def find(
        loaded: Any, chosen: Preset, reporter: Reporter, journal: VoteJournal
    ) -> RetrievalHeads:
        from esa_cli.evaluation.calibration.pair_heads import find_by_pairs
        from esa_cli.qa.answering.prompt import PromptTokens

        prompt, preparing = PromptTokens(loaded.tokenizer, chosen.prompt), "choosing windows"
        contexts = pair_contexts(
            read, drawn, prompt, chosen.context, wanted.seed, partial(reporter.stage, preparing)
        )
        count, asking = sum(map(len, drawn.values())), partial(reporter.stage, "reading questions")
        return find_by_pairs(loaded, chosen, [*contexts], count, asking, journal)

    facts = {"pairs": str(pairs), "texts": str(texts), "kinds": wanted.kinds}
    return HeadsSearch(0, lambda *_: None, find, {**facts, "samples": wanted.drawn})


def open_journal(
    wanted: HeadsRequest, chosen: Preset, facts: dict[str, Any], dtype: str
) -> VoteJournal:
    """The records of an earlier run with the same model, settings and questions.

    Raises:
        UsageError: the file of --journal has others. DocumentError: it cannot be read.
    """
    from esa_cli.evaluation.calibration.head_ranking import VoteJournal

    header = {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "model": chosen.model,
        "dtype": dtype,
        "seed": wanted.seed,
        **facts,
        "settings": chosen.model_dump(
            include={"context", "window", "selector", "score", "position", "reading", "prompt"}
        ),
    }
    return VoteJournal(wanted.journal, header)


SHOWN = 16
"""Heads in the table."""
EXPLAINED = {
    "needles": "found: the needle asked for has most of the head's votes; margin: 0.5 is a draw "
    "with another place, at 1 there are no votes elsewhere",
    "pairs": "found: of nine windows the answering one has most of the head's votes; margin: how "
    "many standard deviations more than the next",
}
"""Columns of the table, by what is found."""


@options.command
def heads(
    wanted: HeadsRequest,
    given: UncachedOptions,
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

    chosen = model.method_preset()
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
    from esa_cli.evaluation.calibration.retrieval_heads import voting
    from esa_cli.models.loading.quiet_transformers import quiet_transformers
    from esa_cli.qa.opening import inspect_model

    voting(chosen)
    place = model.place
    known = inspect_model(chosen, place, reporter)
    known.check({"preset": chosen}, by.tokens or chosen.context)
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
