"""What one `esa ask` is to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.options import GenerationOptions, ModelOptions

SelectorName = Annotated[
    str | None,
    typer.Option("--selector", metavar="NAME", help="Answer from rows by this selector."),
]
ScoreName = Annotated[
    str | None, typer.Option("--score", metavar="NAME", help="Answer from rows by this score.")
]
PositionName = Annotated[
    str | None,
    typer.Option("--position", metavar="NAME", help="Answer from rows at these positions."),
]
InLibrary = Annotated[
    bool, typer.Option("--library", help="Ask about all documents of the library, too.")
]
Shown = Annotated[
    int | None,
    typer.Option(
        "--evidence", metavar="N", min=0, max=50, help="Passages below the answer, up to 50; 3."
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE", help="Write a page with the text and what was looked at."
    ),
]
Read = Annotated[
    Literal["after", "first", "never"],
    typer.Option(
        "--read",
        metavar="after|first|never",
        help="When the finder reads a new document: after a first answer, before, never.",
    ),
]
Lines = Annotated[bool, typer.Option("--stdin", help="Every line of standard input is a question.")]


@dataclass(frozen=True)
class AskOptions:
    """Options of `esa ask` besides those of the model and of generation."""

    keep: options.Keep = None
    read: Read = "after"
    library: InLibrary = False
    evidence: Shown = None
    report: Report = None
    stdin: Lines = False
    method: options.Method = None
    selector: SelectorName = None
    score: ScoreName = None
    position: PositionName = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    @property
    def parts(self) -> dict[str, str | None]:
        """Setting -> name of a part of the method."""
        names = {"selector": self.selector, "score": self.score, "position": self.position}
        return {f"{part}.name": name for part, name in names.items()}

    @property
    def overrides(self) -> dict[str, str | None]:
        """Setting -> value: the parts, and answers from rows where there are any."""
        return {**self.parts, "answer.from": "rows" if any(self.parts.values()) else None}

    @property
    def answers_first(self) -> bool:
        """Whether a document that has not been read is asked at once, and again when it is read. A
        script gets one answer only, the better one."""
        one = not self.stdin and not self.as_json
        return self.read == "after" and one and sys.stdout.isatty()

    @property
    def passages(self) -> int:
        """Passages of an answer to show, or to put into its JSON object."""
        from esa_cli.apps.cli.output.answer_output import passage_count

        return passage_count(self.evidence, self.quiet and not self.as_json)


@dataclass(frozen=True)
class AskRequest:
    """The documents, the question and the options of one `esa ask`."""

    documents: Sequence[str]
    question: str
    options: AskOptions
    model: ModelOptions
    generation: GenerationOptions
    answer: AnswerOptions


AS_NAMED = AskOptions()
