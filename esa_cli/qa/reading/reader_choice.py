"""Names another model that words answers, on a server or on this machine, and opens it."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from esa_cli import models
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.loading.quantization import bytes_needed
from esa_cli.qa.presets import preset, preset_files
from esa_cli.system.machine import is_loopback
from esa_cli.system.progress import StageProgress
from esa_cli.system.registry import nearest

if TYPE_CHECKING:  # it imports torch
    from esa_cli.qa.reading.reader import Reader

KEY = "ESA_READER_KEY"
"""Environment variable of the server's key."""
OPENAI_KEY, OPENAI_HOST = "OPENAI_API_KEY", "api.openai.com"
"""The key that other programs use is sent to this server alone."""
MAX_TIMEOUT_S = 86_400


@dataclass(frozen=True)
class ServerAddress:
    """The base URL of a server of OpenAI's chat completions, and the key that is sent there."""

    url: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Parses an address, and takes the key from the environment. Raises UsageError: one of them
        is not valid, or the key would go unencrypted to another machine."""
        url = text.strip().rstrip("/")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if "@" in url:
            hint = f"set the environment variable {KEY} to the key"
            raise UsageError("the address of --reader must have no user and password", hint)
        other = not host or any(letter.isspace() for letter in url)
        if other or parts.query or parts.fragment or url.endswith("/chat/completions"):
            raise UsageError(
                f"--reader must be a web address that /chat/completions follows, got {text!r}",
                "for example --reader http://127.0.0.1:11434/v1",
            )
        is_openai = parts.scheme == "https" and host == OPENAI_HOST
        address = cls(url, _key_of(KEY) or (_key_of(OPENAI_KEY) if is_openai else None))
        if address.key is not None and parts.scheme == "http" and not address.here:
            raise UsageError(
                f"the key in {KEY} would go to {url} unencrypted",
                f"use an https:// address or a tunnel to this machine, or unset {KEY}",
            )
        return address

    @property
    def here(self) -> bool:
        """Whether the server runs on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")


def _key_of(variable: str) -> str | None:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UsageError(f"{variable} must be printable ASCII without spaces", "set it again")
    return key or None


@dataclass(frozen=True)
class ReaderChoice:
    """A reader that is not opened yet: a model's `ref`, or an `address` of a server."""

    address: ServerAddress | None = None
    ref: models.ModelRef | None = None
    model: str | None = None
    timeout_s: float | None = None

    @classmethod
    def of(
        cls, name: str, model: str | None = None, timeout_s: float | None = None
    ) -> ReaderChoice:
        """Chooses a reader by a web address, a name of the table of models, a model reference, or
        a preset, whose model is meant. Raises UsageError, PresetError, ModelError."""
        if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
            wrong = f"$ESA_READER_TIMEOUT must be above 0 and at most a day, got {timeout_s:g} s"
            raise UsageError(wrong, "leave it out for 900 s")
        if preset_files.is_address(name):
            if importlib.util.find_spec("requests") is None:
                hint = "pip install 'esa-cli[reader]'"
                raise UsageError("a reader on a server needs requests", hint)
            return cls(ServerAddress.parse(name), None, model, timeout_s)
        if model is not None or timeout_s is not None:
            raise UsageError(
                f"a model's name and a time limit are of a server, and --reader {name} is none",
                "leave them out; --reader names the model itself",
            )
        known = list(preset_files.known_models())
        is_preset = name in preset_files.available() or name.endswith(preset_files.SUFFIXES)
        if is_preset and name not in known:
            return cls(ref=models.parse_reference(preset.load(name).model))
        ref = models.parse_reference(preset_files.reference(name))
        if ref.kind == "hub" and "/" not in ref.repo:
            raise ModelError(
                f"unknown model {name!r}",
                f"{nearest(name, known)}; a hub id is OWNER/NAME, and a server such as Ollama is "
                "--reader http://localhost:11434",
            )
        return cls(ref=ref)

    def open(
        self, device: str = "auto", dtype: str = "auto", progress: StageProgress | None = None
    ) -> Reader:
        """Loads the model, or asks the server. Raises ReaderError, ModelError, ResourceError."""
        if self.address is not None:
            from esa_cli.qa.reading.server import ServerReader

            address = self.address
            return ServerReader(address.url, address.key, self.model, self.timeout_s)
        from esa_cli.qa.reading.reader import ChatReader

        assert self.ref is not None
        return ChatReader(models.load(self.ref, device=device, dtype=dtype, progress=progress))


def reader_bytes(choice: ReaderChoice, size: int, packing: str = "") -> int | None:
    """Returns the bytes that a reader's weights will take; None: they are not known yet."""
    if choice.ref is None:
        return 0
    folder = models.path_of(choice.ref)
    if folder is not None:
        return bytes_needed(folder, size, packing)
    facts = preset_files.facts_of(choice.ref.name)
    return None if facts is None else facts.bytes_in(size)


def reader_of(chosen: preset.Preset) -> ReaderChoice | None:
    """Returns the preset's other model that words answers, if it has one."""
    answer = chosen.answer
    return None if answer.reader is None or answer.needs_rows else ReaderChoice.of(answer.reader)


def check_passages_for(reader: object | None, chosen: preset.Preset) -> None:
    """Raises UsageError where there is a reader and the preset finds no passages."""
    if reader is not None and chosen.answer.source != "text":
        raise UsageError(
            "a reader words answers from passages, and this method answers from rows",
            "use the setting answer.from=text, and no method or part of one",
        )
