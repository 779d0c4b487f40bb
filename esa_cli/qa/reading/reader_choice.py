"""Chooses and opens the model that words answers: on a server or on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from esa_cli import models
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files.checkpoint_files import compute_weight_bytes
from esa_cli.models.loading.quantization import get_bytes_per_weight
from esa_cli.qa.finding.model_server import ServerConnection
from esa_cli.qa.presets import preset, preset_files
from esa_cli.system.local_servers import SERVERS, is_server_address
from esa_cli.system.registry import suggest_name

MAX_TIMEOUT_S = 86_400


@dataclass(frozen=True)
class ReaderChoice:
    """The reader that will be opened: a local model by its reference, or a server."""

    server: ServerConnection | None = None
    ref: models.ModelRef | None = None
    model: str | None = None
    timeout_s: float | None = None

    @classmethod
    def parse(
        cls, name: str, server_model: str | None = None, timeout_s: float | None = None
    ) -> ReaderChoice:
        """Chooses a reader by a server's name or address, also with `#MODEL`, by a model's name or
        reference, or by a preset's name. Raises UsageError, PresetError, ModelError."""
        if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
            wrong = f"$ESA_READER_TIMEOUT must be above 0 and at most a day, got {timeout_s:g} s"
            raise UsageError(wrong, "unset $ESA_READER_TIMEOUT to wait for up to 900 s")
        if is_server_address(name):
            url, _, model = name.partition("#")
            server = ServerConnection.parse(url, "reader")
            return cls(server, None, server_model or model or None, timeout_s)
        if server_model is not None or timeout_s is not None:
            raise UsageError(
                f"a model's name and a time limit need a server, but --reader {name} is no server",
                "omit the model's name and the time limit; --reader names the model itself",
            )
        known = list(preset_files.load_known_models())
        is_preset = name in preset_files.list_preset_files() or name.endswith(preset_files.SUFFIXES)
        if is_preset and name not in known:
            return cls(ref=models.parse_reference(preset.load_preset(name).model))
        if re.fullmatch(r"[\w.-]+:[\w.-]+", name) and not name.startswith("random:"):
            hint = f"a model of Ollama is --reader ollama#{name}"
            raise ModelError(f"unknown model {name!r}", hint)
        ref = models.parse_reference(preset_files.resolve_to_hub_id(name))
        if ref.kind == "hub" and "/" not in ref.repo:
            raise ModelError(
                f"unknown model {name!r}",
                "a hub id is OWNER/NAME, and a server's model is --reader ollama; "
                + suggest_name(name, [*known, *SERVERS]),
            )
        return cls(ref=ref)


def count_reader_weight_bytes(
    choice: ReaderChoice, bytes_per_weight: int, packing: str = ""
) -> int | None:
    """Returns how many bytes a reader's weights will take; None if the model's size is unknown."""
    if choice.ref is None:
        return 0
    folder = models.find_model_folder(choice.ref)
    if folder is not None:
        packed_bytes = get_bytes_per_weight(packing, bytes_per_weight)
        return compute_weight_bytes(folder, bytes_per_weight, packed_bytes)
    facts = preset_files.find_known_model_facts(choice.ref.name)
    return None if facts is None else facts.count_weight_bytes(bytes_per_weight)


def find_preset_reader(chosen_preset: preset.Preset) -> ReaderChoice | None:
    """Returns the reader that a preset names, or None if the preset's own model answers."""
    answer = chosen_preset.answer
    if answer.reader is None or answer.needs_kv_cache:
        return None
    return ReaderChoice.parse(answer.reader)


def check_reader_gets_passages(reader: object | None, chosen_preset: preset.Preset) -> None:
    """Raises UsageError if there is a reader, but the preset finds no passages for the reader."""
    if reader is not None and chosen_preset.answer.source != "text":
        wrong = "a reader writes answers from passages, but this method answers from the KV cache"
        hint = "to answer with a reader, add --set answer.from=text, and leave out --method"
        raise UsageError(wrong, hint)
