"""The options of `esa bench` as one object, and the header of the file that keeps the answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.run_facts import run_facts

if TYPE_CHECKING:
    from esa_cli.apps.cli.model_choice.model_place import ModelPlace
    from esa_cli.apps.cli.options.options import ModelOptions
    from esa_cli.qa.presets.preset import Preset


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
        **run_facts(),
        "benchmark": request.name,
        "model": request.preset.model,
        "preset": request.preset.name,
        "settings": {
            "preset": method,
            "dtype": place.packing or str(place.dtype),
            "length": length,
        },
    }


def check_files(out: Path | None, markdown: Path | None, data: Path) -> None:
    """Raises UsageError, DocumentError: a file cannot be written, or would take another's place."""
    from esa_cli.apps.cli.commands import bench_output as bench_table
    from esa_cli.apps.cli.options import output_paths as files

    files.check("--markdown", markdown)
    files.check("--out", out)
    files.apart({"--out": out, "--markdown": markdown})
    # The journal continues results only; a table of an earlier run may lie among the data, too.
    if markdown is not None and markdown.is_file() and not bench_table.is_table(markdown):
        below = (str(path) for path in data.rglob("*"))
        files.spare("--markdown", markdown, below, "one of the files in --data")
