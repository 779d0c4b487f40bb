"""The options of `esa train-reader`, and their checks before the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from esa_cli.apps.cli.commands import training_request as training
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.evaluation.reader_training.reader_trainer import ReaderTrainingSettings


@dataclass(frozen=True)
class ReaderTrainingRequest(training.TrainingRequest):
    """Options of `esa train-reader` besides those of the model."""

    what: ClassVar = "adapter"

    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where the adapter goes; needed."),
    ] = None
    minutes: Annotated[float, typer.Option(metavar="MINUTES", min=0.0, help="Of training.")] = 60.0
    examples: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Train on so many, however long that takes."),
    ] = None
    rank: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of a new adapter.", show_default="16")
    ] = None
    lr: Annotated[
        float, typer.Option(metavar="RATE", min=0.0, help="The highest learning rate.")
    ] = 6e-4
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Examples a step.")] = 16
    held_out: training.HeldOut = None
    every: training.ScoreEvery = None
    start: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Train this adapter on, with its rank, not a new one."),
    ] = None
    windows: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Windows that a finder ranks first: NAME.jsonl, not BM25's."
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**31, help="Other examples, other order.")
    ] = 1
    resume: training.Resume = False

    def check(self) -> None:
        """Raises UsageError, DocumentError: nothing can be written to --out, or not this."""
        from esa_cli.evaluation.reader_training.reader_run import RESULTS

        if self.start is not None and self.rank is not None:
            raise UsageError(
                "--rank must be absent with --start, whose adapter has one", "leave out --rank"
            )
        self.check_out(*RESULTS)

    def settings(self, context: int) -> ReaderTrainingSettings:
        """Settings of a training of a model with a window of `context` tokens."""
        from esa_cli.evaluation.reader_training.reader_trainer import ReaderTrainingSettings

        return ReaderTrainingSettings(
            minutes=self.minutes,
            examples=self.examples,
            rank=self.rank or ReaderTrainingSettings.rank,
            lr=self.lr,
            batch=self.batch,
            seed=self.seed,
            longest=min(context, ReaderTrainingSettings.longest),
        )
