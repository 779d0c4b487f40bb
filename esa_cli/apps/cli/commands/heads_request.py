"""Options of `esa heads`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.options.options import ModelOptions

LENGTH, QUESTIONS, SAMPLES = "16k", 32, 400
KINDS = ("reworded",)


@dataclass(frozen=True)
class HeadsRequest:
    """Options of `esa heads` besides those of the model."""

    model_name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="As --model; else the preset's.", show_default=False
        ),
    ] = None
    length: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS", help=f"Tokens of the text with needles, as 32k; else {LENGTH}."
        ),
    ] = None
    questions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=8,
            max=32,
            help=f"How many needles are asked for, 8 to 32; else {QUESTIONS}.",
        ),
    ] = None
    haystack: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR", help="A text file, or a folder of them; else a generated text."
        ),
    ] = None
    pairs: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="PAIRS TEXTS",
            help="By real questions instead of needles: folders of questions and of their texts.",
        ),
    ] = None
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=4,
            help=f"With --pairs: how many questions, one a passage; else {SAMPLES}.",
        ),
    ] = None
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="With --pairs: questions of this kind; else reworded. Repeatable."
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Other places, other text; other pairs.")
    ] = 0
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write a preset with the set."),
    ] = None

    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Each question's votes as a line; the same command continues it.",
        ),
    ] = None

    @property
    def tokens(self) -> int:
        """Tokens of the text with needles. Raises UsageError."""
        from esa_cli.evaluation.selftest.run_plan import tokens

        return tokens(self.length or LENGTH)

    @property
    def needles(self) -> int:
        return self.questions or QUESTIONS

    @property
    def drawn(self) -> int:
        return self.samples or SAMPLES

    @property
    def kinds(self) -> list[str]:
        return self.kind or [*KINDS]

    def named(self, model: ModelOptions) -> ModelOptions:
        """The options with MODEL for --model. Raises UsageError: both are given."""
        from esa_cli.errors import UsageError

        if self.model_name is None:
            return model
        if model.model is not None:
            raise UsageError(
                f"the model must be given once, got {self.model_name} and {model.model}",
                "leave --model out",
            )
        return replace(model, model=self.model_name)

    def check(self, preset: str) -> None:
        """Checks the options before anything is loaded.

        Args:
            preset: the one that the written preset extends.

        Raises:
            UsageError: an option of the other way, no length, or --out must not be written.
        """
        from esa_cli.apps.cli.options import output_paths as files
        from esa_cli.errors import UsageError
        from esa_cli.evaluation.calibration.heads_preset import refuse_foreign

        names = ("samples", "kind") if self.pairs is None else ("length", "questions", "haystack")
        for name in names:
            if getattr(self, name) is not None:
                way = "with" if self.pairs is None else "without"
                raise UsageError(f"--{name} must be given {way} --pairs", f"leave --{name} out")
        files.check("--journal", self.journal)
        files.apart({"--out": self.out, "--journal": self.journal})
        if self.tokens and self.out is not None:
            files.check("--out", self.out)
            refuse_foreign(self.out, preset)
