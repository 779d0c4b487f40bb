"""Arguments and options that the commands that train have in common, and their checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from esa_cli.apps.cli.options import output_paths as files
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.model_choice.model_place import ModelPlace
    from esa_cli.apps.cli.options.options import ModelOptions

Pairs = Annotated[
    Path, typer.Argument(metavar="PAIRS", help="The folder of questions: NAME.jsonl.")
]
Texts = Annotated[Path, typer.Argument(metavar="TEXTS", help="The folder of their texts: NAME.*.")]
HeldOut = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Score by this text, do not train on it. Repeatable."),
]
ScoreEvery = Annotated[
    float | None,
    typer.Option(min=0.0, metavar="MINUTES", help="Score before the training and so often, too."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")]


class TrainingRequest(ABC):
    """Options of a command that trains; subclasses are data classes of all its options."""

    what: ClassVar[str]
    """What is trained."""

    out: Path | None
    held_out: list[str] | None
    every: float | None
    resume: bool

    @property
    def folder(self) -> Path:
        """Raises UsageError: --out is missing."""
        if self.out is None:
            raise UsageError(
                f"--out must be a folder for the {self.what}, got none", "add --out FOLDER"
            )
        return self.out

    @abstractmethod
    def check(self) -> None:
        """Raises EsaError: what can be known before the model is loaded."""

    def check_out(self, *results: str) -> None:
        """Raises UsageError, DocumentError: nothing can be written to --out, or not this.

        Args:
            results: as `check_folder` has them.
        """
        from esa_cli.evaluation.training.training_folder import check_folder

        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"--out must be a folder, got the file {self.folder}", "name another")
        files.check("--out", self.folder / self.what, makes_folders=True)
        check_folder(self.folder, self.resume, *results)

    def place(self, model: ModelOptions) -> ModelPlace:
        """Where the model is trained. Raises UsageError: in numbers that cannot be trained with."""
        from esa_cli.apps.cli.model_choice.model_place import ModelPlace

        place = ModelPlace.of(model)
        if place.dtype_name not in ("float32", "bfloat16"):
            raise UsageError(
                f"dtype must be float32 or bfloat16 for training, got {place.dtype_name}",
                "add --dtype float32",
            )
        return place
