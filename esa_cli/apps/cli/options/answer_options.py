"""Options of how a question is answered, shared by the commands that ask."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.qa.reading.reader_choice import ReaderChoice

Form = Annotated[
    Literal["auto", "span", "text"] | None,
    option(
        "--answer auto|span|text",
        "span: a quotation; text: in free words; auto: as the question asks for.",
    ),
]
ReaderName = Annotated[
    str | None,
    option(
        "--reader URL#MODEL|REF",
        "What words answers from the passages: an OpenAI-compatible server, to which they are "
        "sent, and its model (its first by default), or a model as for --model.",
    ),
]
ReaderModel = Annotated[str | None, option("--reader-model NAME", "", hidden=True)]
ReaderTimeout = Annotated[
    float | None, option("--reader-timeout SECONDS", "", hidden=True, envvar="ESA_READER_TIMEOUT")
]


@dataclass(frozen=True)
class AnswerOptions:
    """The form of answers, and what words them."""

    answer: Form = None
    reader: ReaderName = None
    reader_model: ReaderModel = None
    reader_timeout: ReaderTimeout = None

    @property
    def _server(self) -> tuple[str | None, str | None]:
        """The reader without a model of the server, and that model."""
        from esa_cli.qa.presets.preset_files import is_address

        if self.reader is None or not is_address(self.reader):
            return self.reader, self.reader_model
        address, _, model = self.reader.partition("#")
        return address, self.reader_model or model or None

    @property
    def dependencies(self) -> dict[str, str | None]:
        """What answers depend on besides the preset; empty without a reader."""
        return {} if self.reader is None else {"reader_model": self._server[1]}

    def reader_choice(self) -> ReaderChoice | None:
        """The reader that is named, not opened yet.

        Raises:
            UsageError, PresetError, ModelError: there cannot be one of this name.
        """
        reader, model = self._server
        if reader is None:
            if model is not None:
                raise UsageError("--reader-model needs --reader", "use --reader URL#MODEL")
            return None
        from esa_cli.qa.presets.preset_files import is_address
        from esa_cli.qa.reading.reader_choice import ReaderChoice

        timeout = self.reader_timeout if is_address(reader) else None
        return ReaderChoice.of(reader, model, timeout)

    def load_preset(
        self, model: ModelOptions, method: str | None = None, asked_by: str | None = None
    ) -> Preset:
        """`ModelOptions.load_preset` with these settings below those of --set.

        Args:
            asked_by: a method that will be applied to the preset later.

        Raises:
            UsageError: they are of passages, and answers come from rows.
        """
        reader = self._server[0]
        settings = [] if self.answer is None else [f"answer.form={json.dumps(self.answer)}"]
        if reader is not None:
            settings += [f"answer.reader={json.dumps(reader)}", "answer.from=text"]
        chosen = model.load_preset(method, settings)
        if self.answer is not None and chosen.answer.reader is not None:
            raise UsageError(
                f"--answer {self.answer} is of the model that finds, and {chosen.answer.reader} "
                "words answers in its own way",
                "leave out --answer, or --model and --reader",
            )
        options = {"--answer": self.answer, "--reader": self.reader}
        option = next((f"{name} {value}" for name, value in options.items() if value), None)
        if option and (asked_by or chosen.answer.source == "rows"):
            rows = f"--method {asked_by}" if asked_by else f"preset {chosen.name}"
            raise UsageError(
                f"{option} needs answers from passages, and {rows} answers from the rows it "
                "selects",
                "add --set answer.from=text, and name no method or part of one",
            )
        return chosen
