"""What one `esa collect` or `esa count` is to do."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.options import answer_options, options
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.qa.books import Book
    from esa_cli.qa.presets.preset import Preset

Minimum = Annotated[
    float | None,
    typer.Option(
        "--min",
        metavar="SCORE",
        help="The least score in finding of a passage that is read again, in standard deviations "
        "above the mean; 2, and those nearly as good as the best. Of up to 200 passages all are.",
    ),
]
Every = Annotated[bool, typer.Option("--all", help="Read all passages again.")]
Least = Annotated[
    float | None,
    typer.Option(
        "--least",
        metavar="NUMBER",
        help="The log-odds, with how well it fits, from which a passage tells a place; 2.5. Higher "
        "gives fewer, surer places.",
    ),
]
Distinct = Annotated[
    bool, typer.Option("--distinct", help="Places with the same words once, the first of them.")
]
InLibrary = Annotated[bool, typer.Option("--library", help="All documents of the library, too.")]
Read = Annotated[
    Literal["first", "never"],
    typer.Option(
        "--read", metavar="first|never", help="Whether the finder reads a new document first."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Places as JSON lines, as they are found; what is there is continued.",
    ),
]


@dataclass(frozen=True)
class CollectOptions:
    """Options of `esa collect` and `esa count` besides those of the model."""

    minimum: Minimum = None
    every: Every = False
    least: Least = None
    distinct: Distinct = False
    library: InLibrary = False
    read: Read = "first"
    keep: options.Keep = None
    out: Out = None
    no_adapter: answer_options.NoAdapter = False
    reader: answer_options.ReaderName = None
    reader_model: answer_options.ReaderModel = None
    reader_timeout: answer_options.ReaderTimeout = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    def check(self) -> None:
        """Raises UsageError where options exclude each other, or a number is none."""
        if self.every and self.minimum is not None:
            raise UsageError("--all and --min exclude each other", "give one of them")
        if self.least is not None and self.reader is not None:
            raise UsageError(
                "--least is of the preset's own reader, and --reader decides by its words",
                "give one of them",
            )
        for option, value in {"--min": self.minimum, "--least": self.least}.items():
            if value is not None and math.isnan(value):
                raise UsageError(f"{option} must be a number, got nan", f"for example: {option} 1")
        if self.keep and self.read == "never":
            raise UsageError("--read never has nothing to keep", "give --read never or --keep")

    @property
    def answer(self) -> AnswerOptions:
        """What reads the passages."""
        return AnswerOptions(
            no_adapter=self.no_adapter,
            reader=self.reader,
            reader_model=self.reader_model,
            reader_timeout=self.reader_timeout,
        )

    @property
    def how(self) -> dict[str, Any]:
        """Keyword arguments of `Esa.collect`."""
        least = {} if self.least is None else {"least": self.least}
        return {"minimum": self.minimum, "every": self.every, **least}


@dataclass(frozen=True)
class CollectRequest:
    """The documents, the question and the options of one command."""

    documents: Sequence[str]
    question: str
    options: CollectOptions
    model: ModelOptions

    def load_preset(self) -> Preset:
        """The preset with answers from text, which are its own or those that `from` leaves open.

        Raises:
            UsageError: it says that its answers come from rows. Others as
                `AnswerOptions.load_preset`.
        """
        from esa_cli.apps.cli.model_choice.by_words import from_text

        chosen = self.options.answer.load_preset(self.model)
        if chosen.answer.source == "text":
            return chosen
        if chosen.answer.says_source:
            raise UsageError(
                f"places are collected from text, and preset {chosen.name} answers from rows",
                "add --set answer.from=text",
            )
        return from_text(chosen)

    def key(self, chosen: Preset, books: Sequence[Book]) -> str:
        """A digest of all that the places depend on."""
        from esa_cli.qa.collecting.told_spans import FIT, NEAR, SIEVE, WHOLE
        from esa_cli.qa.presets.settings_hash import text_settings_hash
        from esa_cli.system.text import text_digest

        facts = {
            "question": self.question,
            "documents": [(text_digest(b.document.text), b.index is not None) for b in books],
            "preset": text_settings_hash(chosen),
            "sieve": (WHOLE, SIEVE, NEAR, FIT),
            **self.options.how,
            **self.options.answer.dependencies,
        }
        return text_digest(json.dumps(facts, sort_keys=True))[:16]


AS_COLLECTED = CollectOptions()
