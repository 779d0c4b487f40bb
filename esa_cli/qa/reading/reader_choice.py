"""Opens another model that words answers, by name: on a server, or on this machine."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

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
from esa_cli.qa.reading.reader import Reader
from esa_cli.qa.reading.server_address import ServerAddress
from esa_cli.system.progress import StageProgress
from esa_cli.system.registry import nearest

LONGEST_S = 86_400
"""The longest time limit that can be set: a day."""


@dataclass(frozen=True)
class ReaderChoice:
    """A reader that is named, and not opened yet: either an `address` or a model's `ref`.

    Args:
        model: its name on the server. timeout_s: the longest wait for a whole answer and for its
            next words; None: those of `ServerReader`.
    """

    address: ServerAddress | None = None
    ref: models.ModelRef | None = None
    model: str | None = None
    timeout_s: float | None = None

    @classmethod
    def of(
        cls, name: str, model: str | None = None, timeout_s: float | None = None
    ) -> ReaderChoice:
        """The reader of a name: a web address; a name of the table of models; a model reference;
        or a preset, whose model is meant. `model` and `timeout_s` are for web addresses alone.

        Raises UsageError, PresetError, ModelError: there cannot be one of this name."""
        if timeout_s is not None and not 0 < timeout_s <= LONGEST_S:
            raise UsageError(
                f"$ESA_READER_TIMEOUT must be above 0 and at most {LONGEST_S} seconds, "
                f"got {timeout_s:g}",
                "leave it out for 900",
            )
        if is_address(name):
            if importlib.util.find_spec("requests") is None:
                hint = "pip install 'esa-cli[reader]'"
                raise UsageError("a reader on a server needs requests", hint)
            return cls(ServerAddress.parse(name), None, model, timeout_s)
        for option, value in (("model", model), ("timeout", timeout_s)):
            if value is not None:
                wrong = f"--reader-{option} is of a server, and --reader {name} is none"
                raise UsageError(wrong, "leave it out; --reader names the model itself")
        return cls(ref=_reference(name))

    def open(
        self, device: str = "auto", dtype: str = "auto", progress: StageProgress | None = None
    ) -> Reader:
        """The reader; a model on this machine is loaded, a server is asked for its models.
        Raises ReaderError, ModelError, ResourceError."""
        if self.address is not None:
            from esa_cli.qa.reading.server import ServerReader

            return ServerReader(self.address, self.model, self.timeout_s)
        assert self.ref is not None
        from esa_cli.qa.reading.chat import ChatReader

        return ChatReader(models.load(self.ref, device=device, dtype=dtype, progress=progress))


def reader_bytes(choice: ReaderChoice, size: int, packing: str = "") -> int | None:
    """Bytes of memory that a reader's weights will take, with numbers of `size` bytes or a packing
    of `QUANTIZATIONS`; None: not known before its model is fetched. Raises ModelError: its files
    cannot be read."""
    if choice.ref is None:
        return 0
    folder = models.path_of(choice.ref)
    if folder is not None:
        return bytes_needed(folder, size, packing)
    facts = facts_of(choice.ref.name)
    return None if facts is None else facts.bytes_in(size)


def reader_of(chosen: preset.Preset) -> ReaderChoice | None:
    """The preset's other model that words answers; None: there is none, or answers are from rows.
    Raises: as `ReaderChoice.of`."""
    answer = chosen.answer
    return None if answer.reader is None or answer.needs_rows else ReaderChoice.of(answer.reader)


def check_passages_for(reader: object | None, chosen: preset.Preset) -> None:
    """Raises UsageError where there is a reader, and the preset gives it no passages."""
    if reader is not None and chosen.answer.source != "text":
        raise UsageError(
            "a reader words answers from passages, and this method answers from rows",
            "use the setting answer.from=text, and no method or part of one",
        )


def _reference(name: str) -> models.ModelRef:
    """The model for a name or a reference. Raises ModelError: no model has this name."""
    if name not in known_models() and (name in available() or name.endswith(SUFFIXES)):
        return models.parse_reference(preset.load(name).model)
    ref = models.parse_reference(reference(name))
    if ref.kind == "hub" and "/" not in ref.repo:
        raise ModelError(
            f"unknown model {name!r}",
            f"{nearest(name, list(known_models()))}; a hub id is OWNER/NAME, and a server such as "
            "Ollama is --reader http://localhost:11434",
        )
    return ref
