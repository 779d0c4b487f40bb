"""Options of how a question is answered, shared by the commands that ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli.options import ModelOptions
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.qa.preset import Preset

Form = Annotated[
    Literal["auto", "span", "text"] | None,
    typer.Option(
        "--answer",
        help="span: a quotation; text: in free words; auto: as the question asks for.",
    ),
]
NoAdapter = Annotated[
    bool,
    typer.Option("--no-adapter", help="Read passages with the bare model, without its adapter."),
]


@dataclass(frozen=True)
class AnswerOptions:
    """The form of answers, and what reads the passages."""

    answer: Form = None
    no_adapter: NoAdapter = False

    @property
    def given(self) -> list[str]:
        """The options of the command line that need passages, as `--answer span`."""
        named = {f"--answer {self.answer}": self.answer, "--no-adapter": self.no_adapter}
        return [option for option, value in named.items() if value]

    def overrides(self) -> list[str]:
        """`key=value` texts for `preset.load`."""
        form = [] if self.answer is None else [f"answer.form={json.dumps(self.answer)}"]
        return form + ["answer.adapter=null"] * self.no_adapter

    def load_preset(
        self,
        model: ModelOptions,
        parts: Mapping[str, str | None] | None = None,
        method: str | None = None,
    ) -> Preset:
        """`ModelOptions.load_preset` with these settings below those of --set.

        Raises:
            UsageError: they are of passages, and the preset answers from rows.
        """
        chosen = model.load_preset(parts, method, self.overrides())
        if self.given and chosen.answer.source == "rows":
            raise UsageError(
                f"{self.given[0]} needs answers from passages: preset {chosen.name} answers from "
                "the rows that its method selects",
                "add --set answer.from=text, and name no method or part of one",
            )
        return chosen

    def check_no_method(self, method: str | None) -> None:
        """Raises UsageError where they are given beside a whole method."""
        if method is not None and self.given:
            raise UsageError(
                f"{self.given[0]} and --method {method}: a method answers from the rows it selects",
                "give one of them",
            )


AS_ANSWERED = AnswerOptions()
