"""`esa train-finder`: trains what finds the passage that answers a question.

preset -> output folder -> pairs and texts -> model -> texts tokenised -> training -> scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from esa_cli.apps.cli.commands import training_request as training
from esa_cli.apps.cli.commands.train_finder_request import FinderTrainingRequest
from esa_cli.apps.cli.commands.training_output import TrainingDisplay
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.uncached_options import UNCACHED, UncachedOptions

if TYPE_CHECKING:
    from pathlib import Path

    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.finder_training.finder_run import FinderRun
    from esa_cli.evaluation.finder_training.finder_scores import FinderScores
    from esa_cli.evaluation.training.training_checkpoint import TrainingState

DEFAULT_REQUEST = FinderTrainingRequest()
RANKS = ("first", "among_3", "among_8")


@options.command
def train_finder(
    pairs: training.Pairs,
    texts: training.Texts,
    wanted: FinderTrainingRequest = DEFAULT_REQUEST,
    given: UncachedOptions = UNCACHED,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a finder of the passages that answer questions.

    esa train-finder benchmarks/reader_training/pairs texts/ --out finder/
    """
    display = FinderTrainingDisplay(wanted, quiet)
    display.train(partial(_open, pairs, texts, wanted, given.model_options()), as_json)


def _open(
    pairs: Path, texts: Path, wanted: FinderTrainingRequest, model: ModelOptions, reporter: Reporter
) -> FinderRun:
    """Reads the data, loads the model."""
    chosen = model.load_preset()
    reporter.stage("import", 0, None)
    from esa_cli.apps.cli.model_choice.known_model import inspect_model
    from esa_cli.evaluation.finder_training.finder_run import FinderRun, StartFinder, check_sizes
    from esa_cli.evaluation.training.training_pairs import read_training_texts, split_texts

    kept, held_out = split_texts(read_training_texts(pairs, texts), wanted.held_out or ())
    place = wanted.place(model)
    known = inspect_model(chosen, place, reporter)
    settings, start = wanted.settings(), None
    if wanted.start is None:
        check_sizes(settings, known.config)
    loaded = known.load(reporter)
    if wanted.start is not None:
        start = StartFinder.load(wanted.start, loaded.model, loaded.tokenizer)
        settings = start.sizes(settings)
    return FinderRun(loaded, kept, held_out, wanted.folder, settings, wanted.every, start)


class FinderTrainingDisplay(TrainingDisplay):
    prepares: ClassVar = "tokenising texts"
    headers: ClassVar = (
        "held out", "steps", "by", "passages", "questions", "first", "among 3", "among 8",
        "reworded", "first", "among 3", "among 8",
    )  # fmt: skip
    use: ClassVar = ("answer.finder={}",)

    def pace(self, state: TrainingState) -> str:
        return f"{state.steps:,} steps, {state.seconds / state.steps:.1f} s each"

    def total(self, record: dict[str, Any]) -> str:
        return (
            f"{record['steps']:,} steps with {record['examples']:,} of {record['passages']:,} "
            "passages"
        )

    def row(self, text: dict[str, Any], scores: dict[str, Any]) -> list[str]:
        found = [text["text"], f"{scores['steps']:,}", text["by"], str(text["passages"])]
        return [*found, *_cells(text["all"]), *_cells(text["reworded"])]

    def scored(self, scores: Sequence[FinderScores], steps: int, /) -> None:
        for one in scores:
            cells = [
                f"{name} {' / '.join(_cells(ranks)[1:])}"
                for name, ranks in asdict(one).items() if name in ("all", "reworded")
            ]  # fmt: skip
            self.reporter.note(
                f"esa: {one.text} after {steps:,} steps, by {one.by}, first / among 3 / among 8: "
                f"{', '.join(cells)}"
            )


def _cells(ranks: dict[str, Any] | None) -> list[str]:
    """The number of questions, and the shares of `RANKS`."""
    if ranks is None:
        return ["0", *("-" for _ in RANKS)]
    return [str(ranks["questions"]), *(f"{100 * ranks[name]:.1f} %" for name in RANKS)]
