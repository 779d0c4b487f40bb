"""Writes a preset file with chosen heads; it extends the preset that they were found with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.errors import PresetError, UsageError
from esa_cli.qa.presets.preset import load, merge, parse_override, way_of
from esa_cli.qa.presets.preset_files import SUFFIXES, find
from esa_cli.system.files import replacing
from esa_cli.system.machine import in_home
from esa_cli.system.strict_yaml import dump_yaml

if TYPE_CHECKING:
    from esa_cli.evaluation.calibration.head_ranking import HeadSet

MARK = "# Made by `esa heads`"


def refuse_foreign(path: Path, given: str) -> None:
    """Checks, before the model is loaded, that a preset may be written at `path`.

    Args:
        given: the preset to extend, a name or a path.

    Raises:
        UsageError: no YAML file, the extended preset itself, or a file that `write` did not write.
        PresetError: there is no such preset.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"--out must name a {SUFFIXES[0]} file, got {path}", "presets are YAML files"
        )
    if not path.exists():
        return
    if path.resolve() == find(way_of(given)[0]).resolve():
        raise UsageError(
            f"--out must be another file than the preset that it extends, got {path}",
            "name another file",
        )
    with path.open("rb") as file:
        if file.read(len(MARK)) != MARK.encode():
            raise UsageError(
                f"--out must be new or a file of `esa heads`, got {path}", "name another file"
            )


def write(path: Path, given: str, overrides: Sequence[str], heads: HeadSet, about: str) -> None:
    """Writes the preset atomically, and only if it can be loaded.

    Args:
        overrides: as of `preset.load`. about: one line of results, as a comment.

    Raises:
        OSError: it cannot be written.
    """
    data: dict[str, Any] = {}
    for text in overrides:
        data = merge(data, parse_override(text))
    data = merge(_rows(given, overrides, data), {"score": {"heads": [list(p) for p in heads]}})
    whole = {"extends": _parent(given, path), "description": f"{given} with chosen heads", **data}
    with replacing(path, durable=True) as part:
        part.write_text(f"{MARK}: {about}\n{dump_yaml(whole)}", "utf-8")
        load(str(part.absolute()))


def _rows(given: str, overrides: Sequence[str], data: dict[str, Any]) -> dict[str, Any]:
    """The settings, with answers from rows where they name the model that the heads are of: else it
    would word the answers from passages."""
    if "answer" in data or load(given, overrides).answer.reader is None:
        return data
    return {**data, "answer": {"from": "rows"}}


def _parent(given: str, path: Path) -> str:
    """The value of `extends`: a name, a file beside `path`, or an absolute path."""
    if not given.endswith(SUFFIXES) and "/" not in given:
        return given
    parent = in_home(given, "preset", PresetError).resolve()
    beside = parent.parent == path.resolve().parent and parent.suffix in SUFFIXES
    return parent.name if beside else str(parent)
