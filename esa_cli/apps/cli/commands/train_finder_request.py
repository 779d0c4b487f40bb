"""The options of `esa train-finder`, and their checks before the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from esa_cli.apps.cli.commands import training_request as training
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.evaluation.finder_training.finder_trainer import FinderTrainingSettings


@dataclass(frozen=True)
class FinderTrainingRequest(training.TrainingRequest):
    """Options of `esa train-finder` besides those of the model."""

    what: ClassVar = "finder"

    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where the finder goes; needed."),
    ] = None
    minutes: Annotated[float, typer.Option(metavar="MINUTES", min=0.0, help="Of training.")] = 45.0
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Train for so many, however long that takes."),
    ] = None
    start: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Train this finder on, with its sizes, not a new one."),
    ] = None
    layers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Of the model that run.", show_default="14"),
    ] = None
    first: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Of them that the adapter changes.", show_default="8"
        ),
    ] = None
    rank: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of the adapter.", show_default="32")
    ] = None
    dim: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Numbers of a token's reduced key.", show_default="128"
        ),
    ] = None
    lr: Annotated[
        float,
        typer.Option(
            metavar="RATE", min=0.0, help="The highest learning rate; that of the maps is twice it."
        ),
    ] = 5e-4
    batch: Annotated[
        int, typer.Option(metavar="N", min=2, help="Passages a step; they compete.")
    ] = 40
    held_out: training.HeldOut = None
    every: training.ScoreEvery = None
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**31, help="Other crops, other order.")
    ] = 1
    resume: training.Resume = False

    def check(self) -> None:
        """Raises UsageError, DocumentError: nothing can be written to --out, or not this, or the
        adapter would have no layers."""
        from esa_cli.evaluation.finder_training.finder_run import RESULTS, check_sizes

        if self.start is not None and (given := self._sizes()):
            names = ", ".join(f"--{name}" for name in given)
            raise UsageError(
                f"sizes must be absent with --start, whose finder has them, got {names}",
                "leave that out",
            )
        self.check_out(*RESULTS)
        check_sizes(self.settings())

    def settings(self) -> FinderTrainingSettings:
        from esa_cli.evaluation.finder_training.finder_trainer import FinderTrainingSettings

        return FinderTrainingSettings(
            minutes=self.minutes,
            steps=self.steps,
            lr=self.lr,
            batch=self.batch,
            seed=self.seed,
            **self._sizes(),
        )

    def _sizes(self) -> dict[str, int]:
        """Those that are given."""
        sizes = {"layers": self.layers, "first": self.first, "rank": self.rank, "dim": self.dim}
        return {name: size for name, size in sizes.items() if size is not None}
