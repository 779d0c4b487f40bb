"""Options of how a question is answered, shared by the commands that ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.qa.reading.reader_choice import ReaderChoice

Form = Annotated[
    Literal["auto", "span", "text"] | None,
    typer.Option(
        "--answer",
        metavar="auto|span|text",
        help="span: a quotation; text: in free words; auto: as the question asks for.",
    ),
]
ReaderName = Annotated[
    str | None,
    typer.Option(
        "--reader",
        metavar="URL|REF",
        help="What words answers from the passages: an OpenAI-compatible server, to which they are "
        "sent, or a model as for --model.",
    ),
]
ReaderModel = Annotated[
    str | None,
    typer.Option(
        "--reader-model", metavar="NAME", help="The model of the server; its first by default."
    ),
]
ReaderTimeout = Annotated[
    float | None,
    typer.Option(
        "--reader-timeout",
        metavar="SECONDS",
        help="The longest an answer of the server may take, or be silent; else 900, or 300.",
    ),
]


@dataclass(frozen=True)
class AnswerOptions:
    """The form of answers, what reads the passages, and what words the answer."""

    answer: Form = None
    reader: ReaderName = None
    reader_model: ReaderModel = None
    reader_timeout: ReaderTimeout = None

    @property
    def given(self) -> list[str]:
        """The options of the command line that need passages, as `--answer span`."""
        named = {f"--answer {self.answer}": self.answer, f"--reader {self.reader}": self.reader}
        return [option for option, value in named.items() if value]

    @property
    def dependencies(self) -> dict[str, str | None]:
        """What answers depend on besides the preset; empty without a reader."""
        if self.reader is None:
            return {}
        return {"reader_model": self.reader_model}

    def reader_choice(self) -> ReaderChoice | None:
        """The reader that is named, not opened yet.

        Raises:
            UsageError, PresetError, ModelError: there cannot be one of this name.
        """
        if self.reader is None:
            needing = {"model": self.reader_model, "timeout": self.reader_timeout}
            for name, value in needing.items():
                if value is not None:
                    raise UsageError(f"--reader-{name} needs --reader", "give the server's address")
            return None
        from esa_cli.qa.reading.reader_choice import ReaderChoice

        return ReaderChoice.of(self.reader, self.reader_model, self.reader_timeout)

    def overrides(self) -> list[str]:
        """`key=value` texts for `preset.load`."""
        form = [] if self.answer is None else [f"answer.form={json.dumps(self.answer)}"]
        reader = [] if self.reader is None else [f"answer.reader={json.dumps(self.reader)}"]
        passages = [*reader, "answer.from=text"] if reader else []
        return passages + form

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
        if self.answer is not None and chosen.answer.reader is not None:
            raise UsageError(
                f"--answer {self.answer} is of the model that finds, and {chosen.answer.reader} "
                "words answers in its own way",
                "leave out --answer, or --model and --reader",
            )
        if self.given and chosen.answer.source == "rows":
            raise UsageError(
                f"{self.given[0]} needs answers from passages: preset {chosen.name} answers from "
                "the rows that its method selects",
                "add --set answer.from=text, and name no method or part of one",
            )
        return chosen

    def check_no_method(self, method: str | None, parts: Mapping[str, str | None]) -> None:
        """Raises UsageError where they are given beside a method or parts of one."""
        named = {"method": method, **parts}
        rows = [f"--{name.partition('.')[0]} {one}" for name, one in named.items() if one]
        if rows and self.given:
            raise UsageError(
                f"{self.given[0]} and {rows[0]}: a method answers from the rows it selects",
                "give one of them",
            )


AS_ANSWERED = AnswerOptions()
