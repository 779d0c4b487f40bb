"""Finds out which kind of finder the setting `answer.finder` names, and where its files are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from esa_cli.errors import ModelError, PresetError
from esa_cli.models.files.model_reference import ModelRef, parse_reference
from esa_cli.qa.presets.preset_files import find_shipped_preset_folder, is_web_address
from esa_cli.system.machine import expand_home_folder

MAPS, MODULES = "maps.safetensors", "modules.json"
"""The names of the files with a trained finder's projections, and with the list of the modules of a
late interaction model."""
WORDS = "words"
"""The name that stands for no finder, so that passages are found with BM25 alone."""


class FinderPlace(NamedTuple):
    """Where a finder is: in the folder of a `trained` finder, in the folder of a `late` interaction
    model or as a model `ref` of the hub, or on the `server` of an address."""

    trained: Path | None = None
    late: Path | None = None
    ref: ModelRef | None = None
    server: str | None = None


def locate_finder(name: str) -> FinderPlace:
    """Returns the place of a finder. Raises PresetError: there is none of this name."""
    if is_web_address(name):
        return FinderPlace(server=name)
    if (folder := find_folder_with_file(name, "finder", MAPS)) is not None:
        return FinderPlace(folder)
    if (folder := find_folder_with_file(name, "finder", MODULES)) is not None:
        return FinderPlace(late=folder)
    try:
        ref = parse_reference(name)
    except ModelError:
        ref = None
    if ref is None or ref.kind != "hub" or "/" not in ref.repo:
        raise PresetError(
            f"answer.finder must be a folder with {MAPS} or {MODULES}, a hub id OWNER/NAME, or the "
            f"address of a server, got {name!r}",
            "check the name, or use --finder words, which finds with BM25 alone",
        )
    return FinderPlace(ref=replace(ref, folders=True))


def find_folder_with_file(name: str, setting_name: str, required_file: str) -> Path | None:
    """Finds a shipped or own folder with a file of an adapter or finder; None if there is none."""
    own = expand_home_folder(name, f"answer.{setting_name}", PresetError)
    shipped = find_shipped_preset_folder() / f"{setting_name}s" / name
    folders = [*([] if "/" in name else [shipped]), own] if name else []
    return next((folder for folder in folders if (folder / required_file).is_file()), None)
