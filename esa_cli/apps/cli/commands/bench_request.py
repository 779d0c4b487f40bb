"""The options of `esa bench` as one object, and the header of the file that keeps the answers."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.apps.cli.options import ModelOptions
    from esa_cli.apps.cli.preflight import ModelPlace
    from esa_cli.qa.preset import Preset


@dataclass(frozen=True)
class BenchRequest:
    """Options of `esa bench`, beside the records."""

    name: str
    preset: Preset
    methods: tuple[str, ...]
    model: ModelOptions
    minutes: float | None
    out: Path | None
    markdown: Path | None
    as_json: bool
    joined: tuple[Path, ...] = ()


def header(request: BenchRequest, length: int, place: ModelPlace) -> dict[str, Any]:
    """The first line of its file: what rows must have in common, and what made them.

    Args:
        length: tokens that position encodings are stretched to.
    """
    method = request.preset.model_dump(exclude={"name", "description", "prompt", "generation"})
    return {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "benchmark": request.name,
        "model": request.preset.model,
        "preset": request.preset.name,
        "settings": {"preset": method, "dtype": str(place.dtype), "length": length},
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
