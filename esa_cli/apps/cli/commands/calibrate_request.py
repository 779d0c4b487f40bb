"""The options of `esa calibrate`, and their checks before the long prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from esa_cli.apps.cli.options import output_paths as files
from esa_cli.errors import UsageError
from esa_cli.system.registry import nearest

CHOICES = {"method": ("all", "closed-form", "pca", "learned"), "loss": ("mse", "rank")}


def _file(help_: str, *names: str) -> Any:
    return typer.Option(*names, metavar="FILE", help=help_)


@dataclass(frozen=True)
class TrainingOptions:
    """Fields of `train_maps.TrainingSettings`."""

    epochs: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of learned: passes over the text.")
    ] = 10
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of learned: queries and keys a step.")
    ] = 128
    lr: Annotated[
        float, typer.Option(metavar="RATE", min=0.0, help="Of learned: Adam's learning rate.")
    ] = 5e-4
    loss: Annotated[
        str,
        typer.Option(
            metavar="mse|rank", help="Of learned: mse, the paper's, or rank, the keys' order."
        ),
    ] = "mse"
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31, help="Of learned.")] = 0


@dataclass(frozen=True)
class CalibrationRequest:
    """Options of `esa calibrate` besides those of the model and the training."""

    aim: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="METHOD",
            help="Whose queries to fit: a name from `esa methods`, or preset for the preset as it "
            "is.",
        ),
    ] = "esa"
    tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Read at most so many tokens.")
    ] = 50_000
    method: Annotated[
        str,
        typer.Option(metavar="METHOD", help="all, closed-form, pca or learned: what is fitted."),
    ] = "all"
    rank: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Numbers per token and layer, in every layer."),
    ] = None
    k: Annotated[
        list[int] | None, typer.Option(metavar="N", min=1, help="Recall at k. Repeatable.")
    ] = None
    out: Annotated[Path, _file("Where the maps go: safetensors.", "--out", "-o")] = Path(
        "compressor.safetensors"
    )
    recall_out: Annotated[Path | None, _file("Write the JSON object there.")] = None
    plot: Annotated[Path | None, _file("Draw recall per layer as PNG.")] = None
    report: Annotated[Path | None, _file("Draw it as a page of HTML.")] = None
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep what was read there, not beside --out."),
    ] = None
    resume: Annotated[bool, typer.Option(help="Go on where an earlier run stopped.")] = True

    @property
    def ks(self) -> list[int]:
        return self.k or [1024]

    @property
    def folder(self) -> Path:
        """The work folder."""
        return self.work or self.out.with_suffix(".work")

    def check(self, texts: Sequence[str], training: TrainingOptions) -> None:
        """Refuses, before an hour of reading, what would fail after it.

        Raises:
            UsageError: an unknown choice; two options name one place; a file of somebody else's at
                `out`; or no matplotlib for `plot` and `report`.
            UsageError, DocumentError: as `output_paths.check`, `output_paths.spare`,
                `document.source_files`.
        """
        for option, word in {"method": self.method, **asdict(training)}.items():
            if word not in CHOICES.get(option, (word,)):
                raise UsageError(
                    f"--{option} must be one of {', '.join(CHOICES[option])}, got {word!r}",
                    nearest(word, [*CHOICES[option]]),
                )
        from esa_cli.evaluation.report.figures import require_matplotlib

        self._check_files(texts)
        for option, drawn in {"--plot": self.plot, "--report": self.report}.items():
            if drawn is not None:
                require_matplotlib(option)
        if self.out.exists():
            from esa_cli.evaluation.calibration.calibration_pipeline import refuse_foreign

            refuse_foreign(self.out)

    def _check_files(self, texts: Sequence[str]) -> None:
        from esa_cli.documents.document import source_files

        options = {
            "--out": self.out,
            "--recall-out": self.recall_out,
            "--plot": self.plot,
            "--report": self.report,
            "--work": self.folder,
        }
        sources = [*texts, *(path for path, _ in source_files(texts).sources)]
        files.apart(options)
        for option, path in options.items():
            files.spare(option, path, sources)
            if option != "--work":
                files.check(option, path)
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"--work must be a folder, got the file {self.folder}", "name another")
        files.check("--work", self.folder / "parts", makes_folders=True)
