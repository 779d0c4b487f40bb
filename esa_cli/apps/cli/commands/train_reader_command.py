"""`esa train-reader`: trains an adapter with which a model quotes answers from a passage.

preset -> output folder -> pairs and texts -> model -> wrong windows found -> training -> scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from esa_cli.apps.cli.commands import training_request as training
from esa_cli.apps.cli.commands.train_reader_request import ReaderTrainingRequest
from esa_cli.apps.cli.commands.training_output import TrainingDisplay
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.uncached_options import UNCACHED, UncachedOptions

if TYPE_CHECKING:
    from pathlib import Path

    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.reader_training.reader_run import ReaderRun
    from esa_cli.evaluation.reader_training.reader_scores import ReaderScores
    from esa_cli.evaluation.reader_training.reader_trainer import ReaderTrainer
    from esa_cli.evaluation.training.training_checkpoint import TrainingState

DEFAULT_REQUEST = ReaderTrainingRequest()
COLUMNS = ("exact", "f1", "missed", "auc", "noticed")


@options.command
def train_reader(
    pairs: training.Pairs,
    texts: training.Texts,
    wanted: ReaderTrainingRequest = DEFAULT_REQUEST,
    given: UncachedOptions = UNCACHED,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train an adapter that quotes answers from passages.

    esa train-reader benchmarks/reader_training/pairs texts/ --out adapter/
    """
    display = ReaderTrainingDisplay(wanted, quiet)
    display.train(partial(_open, pairs, texts, wanted, given.model_options()), as_json)


def _open(
    pairs: Path, texts: Path, wanted: ReaderTrainingRequest, model: ModelOptions, reporter: Reporter
) -> ReaderRun:
    """Reads the data, loads the model."""
    chosen = model.load_preset()
    reporter.stage("import", 0, None)
    from esa_cli.apps.cli.model_choice.known_model import inspect_model
    from esa_cli.evaluation.reader_training.ranked_windows import read_ranked_windows
    from esa_cli.evaluation.reader_training.reader_run import ReaderRun, StartAdapter
    from esa_cli.evaluation.training.training_pairs import read_training_texts, split_texts
    from esa_cli.qa.reading.passage_prompt import PassagePrompt

    every = read_training_texts(pairs, texts)
    windows = read_ranked_windows(wanted.windows, every) if wanted.windows else {}
    kept, held_out = split_texts(every, wanted.held_out or ())
    place = wanted.place(model)
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


class ReaderTrainingDisplay(TrainingDisplay):
    prepares: ClassVar = "finding wrong passages"
    headers: ClassVar = (
        "held out", "after", "answered", "exact", "F1", "missed", "AUC", "absent", "noticed",
    )  # fmt: skip
    use: ClassVar = ("answer.from=text", "answer.adapter={}")

    def step(self, trainer: ReaderTrainer) -> None:
        if self._begun is None and trainer.batches.left_out:
            self.reporter.warn(
                f"esa: {trainer.batches.left_out} examples of the first round are left out: "
                f"they have more than {trainer.settings.longest} tokens"
            )
        super().step(trainer)

    def pace(self, state: TrainingState) -> str:
        rate = state.examples / max(state.seconds, 1e-9)
        return f"{state.examples:,} examples, {rate:,.1f} examples/s"

    def total(self, record: dict[str, Any]) -> str:
        return f"{record['examples']:,} examples of {record['pairs']:,} pairs and their texts"

    def row(self, text: dict[str, Any], scores: dict[str, Any]) -> list[str]:
        shares = [_percent(text[name]) for name in COLUMNS]
        answered, absent = str(text["answered"]), str(text["absent"])
        found = [text["text"], f"{scores['examples']:,}", answered, *shares[:4]]
        return [*found, absent, shares[4]]

    def scored(self, scores: Sequence[ReaderScores], examples: int, /) -> None:
        for one in scores:
            cells = ", ".join(f"{name} {_percent(asdict(one)[name])}" for name in COLUMNS)
            self.reporter.note(f"esa: {one.text} after {examples:,} examples: {cells}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
