"""The options of `esa train-reader`, and their checks before the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.options import output_paths as files
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.evaluation.reader_training.reader_trainer import ReaderTrainingSettings


@dataclass(frozen=True)
class ReaderTrainingRequest:
    """Options of `esa train-reader` besides those of the model."""

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
    held_out: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Score by this text, do not train on it. Repeatable."),
    ] = None
    every: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="MINUTES", help="Score before the training and so often, too."
        ),
    ] = None
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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")
    ] = False

    @property
    def folder(self) -> Path:
        """Raises UsageError: --out is missing."""
        if self.out is None:
            raise UsageError("--out must be a folder for the adapter, got none", "add --out FOLDER")
        return self.out

    def check(self) -> None:
        """Raises UsageError, DocumentError: nothing can be written to --out, or not this."""
        from esa_cli.evaluation.reader_training.reader_run import RESULTS
        from esa_cli.evaluation.training.training_folder import check_folder

        if self.start is not None and self.rank is not None:
            raise UsageError(
                "--rank must be absent with --start, whose adapter has one", "leave out --rank"
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"--out must be a folder, got the file {self.folder}", "name another")
        files.check("--out", self.folder / "adapter", makes_folders=True)
        check_folder(self.folder, self.resume, *RESULTS)

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
