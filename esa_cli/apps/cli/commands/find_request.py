"""What one `esa find` is to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import UsageError

TOP = 8

Top = Annotated[int | None, typer.Option("--top", metavar="N", min=1, help="Passages at most; 8.")]
Minimum = Annotated[
    float | None,
    typer.Option(
        "--min",
        metavar="SCORE",
        help="The least score, in standard deviations above the mean; 0. With --all and --files "
        "passages are ranked, and those above it shown, in place of those with the words.",
    ),
]
Every = Annotated[
    bool, typer.Option("--all", help="Every place with the words, in document order.")
]
Files = Annotated[
    bool, typer.Option("--files", help="Only the names of all files with the words, best first.")
]
InLibrary = Annotated[
    bool, typer.Option("--library", help="Search all documents of the library, too.")
]
Read = Annotated[
    Literal["first", "never"],
    typer.Option(
        "--read",
        metavar="first|never",
        help="Whether the finder reads a new document before it is searched.",
    ),
]


@dataclass(frozen=True)
class FindOptions:
    """Options of `esa find` besides those of the model."""

    top: Top = None
    minimum: Minimum = None
    every: Every = False
    files: Files = False
    library: InLibrary = False
    read: Read = "never"
    keep: options.Keep = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    @property
    def by_words(self) -> bool:
        """Whether every passage with the words is wanted, and none else."""
        return (self.every or self.files) and self.minimum is None

    @property
    def count(self) -> int | None:
        """The most passages to find; None: all."""
        return None if self.every or self.files else self.top or TOP

    def check(self) -> None:
        """Raises UsageError where options exclude each other, or --min is no number."""
        if self.every and (self.files or self.top is not None):
            other = "--files" if self.files else f"--top {self.top}"
            raise UsageError(f"--all and {other} exclude each other", "give one of them")
        if self.minimum is not None and math.isnan(self.minimum):
            raise UsageError("--min must be a number, got nan", "for example: --min 3")
        if self.keep and self.read == "never":
            raise UsageError("--keep needs --read first, or nothing is read", "add --read first")
        if self.by_words and self.read == "first":
            option = "--all" if self.every else "--files"
            raise UsageError(
                f"{option} goes by the words alone, for which nothing is read",
                f"leave out --read first, or add --min 2: {option} then goes by the score",
            )


@dataclass(frozen=True)
class FindRequest:
    """The documents, the words and the options of one `esa find`."""

    documents: Sequence[str]
    question: str
    options: FindOptions
    model: ModelOptions


AS_FOUND = FindOptions()
