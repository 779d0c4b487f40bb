"""The choice of another model that words answers: a server's address, or a model."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from esa_cli import models
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.loading.quantization import bytes_needed
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.preset_files import (
    SUFFIXES,
    available,
    facts_of,
    is_address,
    known_models,
    reference,
)
from esa_cli.qa.second_model.server_address import ServerAddress
from esa_cli.system.progress import StageProgress
from esa_cli.system.registry import nearest

if TYPE_CHECKING:
    from esa_cli.qa.second_model.answer_reader import AnswerReader

LONGEST_S = 86_400
"""The longest time limit that can be set: a day."""


class ReaderChoice:
    """A reader that is named, and not opened yet.

    Args:
        named: a web address; a name of the table of models; a model reference; or a preset, of
            which the model is taken.
        model: its name on the server; for web addresses alone, as the next.
        timeout_s: the longest wait for a whole answer and for its next words; None: those of
            `ServerReader`.

    Raises:
        UsageError, PresetError, ModelError: there cannot be one of this name.
    """

    def __init__(
        self, named: str, model: str | None = None, timeout_s: float | None = None
    ) -> None:
        self.address: ServerAddress | None = None
        self.ref: models.ModelRef | None = None
        self.model, self.timeout_s = model, timeout_s
        if timeout_s is not None and not 0 < timeout_s <= LONGEST_S:
            raise UsageError(
                f"--reader-timeout must be above 0 and at most {LONGEST_S} seconds, "
                f"got {timeout_s:g}",
                "leave it out for 900",
            )
        if is_address(named):
            if importlib.util.find_spec("requests") is None:
                raise UsageError(
                    "a reader on a server needs requests", "pip install 'esa-cli[reader]'"
                )
            self.address = ServerAddress.parse(named)
            return
        if model is not None:
            raise UsageError(
                f"--reader-model is of a server, and --reader {named} is none",
                "give the model itself to --reader",
            )
        if timeout_s is not None:
            raise UsageError(
                f"--reader-timeout is of a server, and --reader {named} is none", "leave it out"
            )
        self.ref = _reference(named)

    def connect(self) -> AnswerReader | None:
        """The reader on a server, or None for one on this machine, which `open` loads.

        Raises:
            ReaderError: the server cannot be used.
        """
        if self.address is None:
            return None
        from esa_cli.qa.second_model.server_reader import ServerReader

        if self.timeout_s is None:
            return ServerReader(self.address, self.model)
        return ServerReader(
            self.address, self.model, silence_s=self.timeout_s, whole_s=self.timeout_s
        )

    def open(
        self, device: str = "auto", dtype: str = "auto", progress: StageProgress | None = None
    ) -> AnswerReader:
        """The reader, its model loaded. Raises ReaderError, ModelError, ResourceError."""
        if (server := self.connect()) is not None:
            return server
        assert self.ref is not None
        from esa_cli.qa.second_model.local_reader import LocalReader

        return LocalReader(models.load(self.ref, device=device, dtype=dtype, progress=progress))


def reader_bytes(choice: ReaderChoice, size: int, packing: str = "") -> int | None:
    """Bytes of memory that a reader's weights will take; None: they are not known before its model
    is fetched.

    Args:
        size: of a number. packing: of `QUANTIZATIONS`; "": none.

    Raises:
        ModelError: its files cannot be read.
    """
    if choice.ref is None:
        return 0
    folder = models.path_of(choice.ref)
    if folder is not None:
        return bytes_needed(folder, size, packing)
    facts = facts_of(choice.ref.name)
    return None if facts is None else facts.bytes_in(size)


def reader_of(chosen: preset.Preset) -> ReaderChoice | None:
    """The preset's other model that words answers; None: there is none, or answers are from rows.

    Raises:
        UsageError, PresetError, ModelError: as the class.
    """
    answer = chosen.answer
    return None if answer.reader is None or answer.needs_rows else ReaderChoice(answer.reader)


def check_passages_for(reader: object | None, chosen: preset.Preset) -> None:
    """Raises UsageError where there is a reader, and the preset gives it no passages."""
    if reader is not None and chosen.answer.source != "text":
        raise UsageError(
            "a reader words answers from passages, and this method answers from rows",
            "use the setting answer.from=text, and no method or part of one",
        )


def _reference(named: str) -> models.ModelRef:
    """The model for a name or a reference. Raises ModelError: no model has this name."""
    if named not in known_models() and (named in available() or named.endswith(SUFFIXES)):
        return models.parse_reference(preset.load(named).model)
    ref = models.parse_reference(reference(named))
    if ref.kind == "hub" and "/" not in ref.repo:
        raise ModelError(
            f"unknown model {named!r}",
            f"{nearest(named, list(known_models()))}; a hub id is OWNER/NAME, and a server such as "
            "Ollama is --reader http://localhost:11434",
        )
    return ref
