"""The options of `esa calibrate` as one object, and their checks before the long reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli.apps.cli import output_paths as files
from esa_cli.errors import UsageError
from esa_cli.system.registry import nearest

CHOICES = {"method": ("all", "closed-form", "pca", "learned"), "loss": ("mse", "rank")}


@dataclass(frozen=True)
class CalibrationRequest:
    """Options of `esa calibrate` besides `options.ModelOptions`."""

    aim: str
    tokens: int
    rank: int | None
    ks: Sequence[int]
    method: str
    training: dict[str, Any]
    out: Path
    recall_out: Path | None
    plot: Path | None
    report: Path | None
    work: Path
    resume: bool

    def check(self, texts: Sequence[str]) -> None:
        """Refuses, before an hour of reading, what would fail after it.

        Raises:
            UsageError: an unknown choice; two options name one place; a file of somebody else's at
                `out`; or no matplotlib for `plot` and `report`.
            UsageError, DocumentError: as `output_paths.check`, `output_paths.spare`,
                `document.source_files`.
        """
        for option, word in {"method": self.method, **self.training}.items():
            if word not in CHOICES.get(option, (word,)):
                raise UsageError(
                    f"--{option} {word!r} is unknown", nearest(word, [*CHOICES[option]])
                )
        from esa_cli.evaluation.report.chart import require_matplotlib

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
            "--work": self.work,
        }
        sources = [*texts, *(path for path, _ in source_files(texts).sources)]
        files.apart(options)
        for option, path in options.items():
            files.spare(option, path, sources)
            if option != "--work":
                files.check(option, path)
        if self.work.exists() and not self.work.is_dir():
            raise UsageError(f"--work {self.work} is not a folder", "name another")
        files.check("--work", self.work / "parts", makes_folders=True)
