"""`esa train-finder`: trains what finds the passage that answers a question.

preset -> output folder -> pairs and texts -> model -> texts tokenised -> training -> scores
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.commands.train_finder_request import FinderTrainingRequest
from esa_cli.apps.cli.commands.train_reader_command import Pairs, Texts
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions

if TYPE_CHECKING:
    from pathlib import Path

    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.finder_training.finder_run import FinderRun
    from esa_cli.evaluation.finder_training.finder_scores import FinderScores
    from esa_cli.evaluation.finder_training.finder_trainer import FinderTrainer

DEFAULT_REQUEST = FinderTrainingRequest()
HEADERS = (
    "held out", "steps", "by", "passages", "questions", "first", "among 3", "among 8",
    "reworded", "first", "among 3", "among 8",
)  # fmt: skip
RANKS = ("first", "among_3", "among_8")


@options.command
def train_finder(
    pairs: Pairs,
    texts: Texts,
    wanted: FinderTrainingRequest = DEFAULT_REQUEST,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a finder of the passages that answer questions.

    esa train-finder benchmarks/reader_training/pairs texts/ --out finder/
    """
    from esa_cli.apps.cli.output.terminal import Reporter, print_json
    from esa_cli.evaluation.training.training_checkpoint import FILE

    reporter = Reporter(quiet)
    wanted.check()
    try:
        run = _open(pairs, texts, wanted, model, reporter)
        record = run.run(FinderTrainingDisplay(reporter), wanted.resume)
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
    reporter.note(f"the finder is in {wanted.folder}; use it with", dim=False)
    use = ["--set", f"answer.finder={wanted.folder}"]
    reporter.note(f"  {shlex.join(use)}", dim=False)


def _open(
    pairs: Path, texts: Path, wanted: FinderTrainingRequest, model: ModelOptions, reporter: Reporter
) -> FinderRun:
    """Reads the data, loads the model."""
    chosen = model.load_preset()
    reporter.stage("import", 0, None)
    from esa_cli.apps.cli.model_choice.known_model import inspect_model
    from esa_cli.apps.cli.model_choice.model_place import ModelPlace
    from esa_cli.errors import UsageError
    from esa_cli.evaluation.finder_training.finder_run import FinderRun, StartFinder, check_sizes
    from esa_cli.evaluation.training.training_pairs import read_training_texts, split_texts

    kept, held_out = split_texts(read_training_texts(pairs, texts), wanted.held_out or ())
    place = ModelPlace.without_cache(model)
    if place.dtype_name not in ("float32", "bfloat16"):
        raise UsageError(
            f"dtype must be float32 or bfloat16 for training, got {place.dtype_name}",
            "add --dtype float32",
        )
    known = inspect_model(chosen, place, reporter)
    settings, start = wanted.settings(), None
    if wanted.start is None:
        check_sizes(settings, known.config)
    loaded = known.load(reporter)
    if wanted.start is not None:
        start = StartFinder.load(wanted.start, loaded.model, loaded.tokenizer)
        settings = start.sizes(settings)
    return FinderRun(loaded, kept, held_out, wanted.folder, settings, wanted.every, start)


class FinderTrainingDisplay:
    """The `FinderRunEvents` of the command: a spinner, or a line now and then."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self._note = reporter.throttled()
        self._begun: tuple[float, float] | None = None

    def preparing(self, done: int, total: int) -> None:
        self.reporter.stage("tokenising texts", done, total)

    def step(self, trainer: FinderTrainer) -> None:
        from esa_cli.system.machine import time_text

        state, share = trainer.state, trainer.settings.share(trainer.state)
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, share
            return
        begun, before = self._begun
        left = (1 - share) * (now - begun) / max(share - before, 1e-9)
        losses = ", ".join(f"{name} {loss:.2f}" for name, loss in sorted(state.losses.items()))
        text = (
            f"training: {share:.0%}, {state.steps:,} steps, {state.seconds / state.steps:.1f} s "
            f"each, {time_text(left)} left; losses {losses}"
        )
        if self.reporter.live:
            self.reporter.waiting(text)
        else:
            self._note(text)

    def scoring(self, text: str, done: int, total: int) -> None:
        self.reporter.stage(f"scoring {text}", done, total)

    def scored(self, scores: Sequence[FinderScores], steps: int) -> None:
        from dataclasses import asdict

        for one in scores:
            cells = [
                f"{name} {' / '.join(_cells(ranks)[1:])}"
                for name, ranks in asdict(one).items() if name in ("all", "reworded")
            ]  # fmt: skip
            self.reporter.note(
                f"esa: {one.text} after {steps:,} steps, by {one.by}, first / among 3 / among 8: "
                f"{', '.join(cells)}"
            )


def _show(record: dict[str, Any]) -> None:
    """Prints what was trained, and the scores of held-out texts after so many steps."""
    from esa_cli.apps.cli.output.terminal import print_table
    from esa_cli.system.machine import time_text

    print(
        f"{record['steps']:,} steps with {record['examples']:,} of {record['passages']:,} passages "
        f"in {time_text(record['seconds'])}"
    )
    rows = [
        [one["text"], f"{scores['steps']:,}", one["by"], str(one["passages"]),
         *_cells(one["all"]), *_cells(one["reworded"])]
        for scores in record["scores"] for one in scores["texts"]
    ]  # fmt: skip
    if rows:
        print()
        print_table(HEADERS, rows)


def _cells(ranks: dict[str, Any] | None) -> list[str]:
    """The number of questions, and the shares of `RANKS`."""
    if ranks is None:
        return ["0", *("-" for _ in RANKS)]
    return [str(ranks["questions"]), *(f"{100 * ranks[name]:.1f} %" for name in RANKS)]
