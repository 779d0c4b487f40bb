"""`esa train-reader`: trains an adapter with which a model quotes answers from a passage.

preset -> output folder -> pairs and texts -> model -> wrong windows found -> training -> scores
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli.commands.train_reader_request import ReaderTrainingRequest
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.reader_training.reader_run import ReaderRun
    from esa_cli.evaluation.reader_training.reader_scores import ReaderScores
    from esa_cli.evaluation.reader_training.reader_trainer import ReaderTrainer

Pairs = Annotated[
    Path, typer.Argument(metavar="PAIRS", help="The folder of questions: NAME.jsonl.")
]
Texts = Annotated[Path, typer.Argument(metavar="TEXTS", help="The folder of their texts: NAME.*.")]
DEFAULT_REQUEST = ReaderTrainingRequest()
HEADERS = (
    "held out", "after", "answered", "exact", "F1", "missed", "AUC", "absent", "noticed",
)  # fmt: skip
COLUMNS = ("exact", "f1", "missed", "auc", "noticed")


@options.command
def train_reader(
    pairs: Pairs,
    texts: Texts,
    wanted: ReaderTrainingRequest = DEFAULT_REQUEST,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train an adapter that quotes answers from passages.

    esa train-reader benchmarks/reader_training/pairs texts/ --out adapter/
    """
    from esa_cli.apps.cli.output.terminal import Reporter, print_json
    from esa_cli.evaluation.training.training_checkpoint import FILE

    reporter = Reporter(quiet)
    wanted.check()
    try:
        run = _open(pairs, texts, wanted, model, reporter)
        record = run.run(ReaderTrainingDisplay(reporter), wanted.resume)
    except KeyboardInterrupt:
        reporter.settle()
        if (wanted.folder / FILE).exists():
            reporter.note(f"esa: {wanted.folder} has a checkpoint; --resume goes on from it")
        raise
    finally:
        reporter.settle()
    if as_json:
        print_json(record)
        return
    _show(record)
    reporter.note(f"the adapter is in {wanted.folder}; use it with", dim=False)
    use = ["--set", "answer.from=text", "--set", f"answer.adapter={wanted.folder}"]
    reporter.note(f"  {shlex.join(use)}", dim=False)


def _open(
    pairs: Path, texts: Path, wanted: ReaderTrainingRequest, model: ModelOptions, reporter: Reporter
) -> ReaderRun:
    """Reads the data, loads the model."""
    chosen = model.load_preset()
    reporter.stage("import", 0, None)
    from esa_cli.apps.cli.model_choice.known_model import inspect_model
    from esa_cli.apps.cli.model_choice.model_place import ModelPlace
    from esa_cli.errors import UsageError
    from esa_cli.evaluation.reader_training.ranked_windows import read_ranked_windows
    from esa_cli.evaluation.reader_training.reader_run import ReaderRun, StartAdapter
    from esa_cli.evaluation.training.training_pairs import read_training_texts, split_texts
    from esa_cli.qa.reading.passage_prompt import PassagePrompt

    every = read_training_texts(pairs, texts)
    windows = read_ranked_windows(wanted.windows, every) if wanted.windows else {}
    kept, held_out = split_texts(every, wanted.held_out or ())
    place = ModelPlace.without_cache(model)
    if place.dtype_name not in ("float32", "bfloat16"):
        raise UsageError(
            f"dtype must be float32 or bfloat16 for training, got {place.dtype_name}",
            "add --dtype float32",
        )
    known = inspect_model(chosen, place, reporter)
    prompt = PassagePrompt(known.tokenizer, chosen.answer.prompt, chosen.answer.unanswered)
    loaded = known.load(reporter)
    settings = wanted.settings(chosen.context)
    start = StartAdapter.load(wanted.start, loaded.model) if wanted.start else None
    if start is not None:
        settings = replace(settings, rank=start.adapter.rank)
    return ReaderRun(
        loaded, prompt, kept, held_out, wanted.folder, settings, wanted.every, windows, start
    )


class ReaderTrainingDisplay:
    """The `RunEvents` of the command: a spinner, or a line now and then."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self._note = reporter.throttled()
        self._begun: tuple[float, float] | None = None

    def preparing(self, done: int, total: int) -> None:
        self.reporter.stage("finding wrong passages", done, total)

    def step(self, trainer: ReaderTrainer) -> None:
        from esa_cli.system.machine import time_text

        state, share = trainer.state, trainer.settings.share(trainer.state)
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, share
            if trainer.batches.left_out:
                self.reporter.warn(
                    f"esa: {trainer.batches.left_out} examples of the first round are left out: "
                    f"they have more than {trainer.settings.longest} tokens"
                )
            return
        begun, before = self._begun
        left = (1 - share) * (now - begun) / max(share - before, 1e-9)
        rate = state.examples / max(state.seconds, 1e-9)
        losses = ", ".join(f"{name} {loss:.2f}" for name, loss in sorted(state.losses.items()))
        text = (
            f"training: {share:.0%}, {state.examples:,} examples, {rate:,.1f} examples/s, "
            f"{time_text(left)} left; losses {losses}"
        )
        if self.reporter.live:
            self.reporter.waiting(text)
        else:
            self._note(text)

    def scoring(self, text: str, done: int, total: int) -> None:
        self.reporter.stage(f"scoring {text}", done, total)

    def scored(self, scores: Sequence[ReaderScores], examples: int) -> None:
        from dataclasses import asdict

        for one in scores:
            cells = ", ".join(f"{name} {_percent(asdict(one)[name])}" for name in COLUMNS)
            self.reporter.note(f"esa: {one.text} after {examples:,} examples: {cells}")


def _show(record: dict[str, Any]) -> None:
    """Prints what was trained, and the scores of held-out texts after so many examples."""
    from esa_cli.apps.cli.output.terminal import print_table
    from esa_cli.system.machine import time_text

    print(
        f"{record['examples']:,} examples of {record['pairs']:,} pairs and their texts in "
        f"{time_text(record['seconds'])}"
    )
    rows = [
        [one["text"], f"{scores['examples']:,}", str(one["answered"]),
         *(_percent(one[name]) for name in COLUMNS[:4]), str(one["absent"]),
         _percent(one["noticed"])]
        for scores in record["scores"] for one in scores["texts"]
    ]  # fmt: skip
    if rows:
        print()
        print_table(HEADERS, rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
