"""Finds out which kind of finder the setting `answer.finder` names, and where its files are."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from esa_cli.errors import ModelError, PresetError
from esa_cli.models.files.model_reference import ModelRef, parse_reference
from esa_cli.qa.presets.preset_files import find_shipped_preset_folder
from esa_cli.system.local_servers import complete_server_address, is_server_address
from esa_cli.system.machine import expand_home_folder

MAPS, MODULES = "maps.safetensors", "modules.json"
"""Files: a trained finder's projections, and the list of modules of a late interaction model."""
WORDS = "words"
"""The name that stands for no finder, so that passages are found with BM25 alone."""


def locate_finder(name: str) -> Path | ModelRef | str:
    """Returns where a finder is: the folder of its files, a model on the hub, or the address of a
    server. Raises PresetError: there is none of this name."""
    if is_server_address(name):
        return complete_server_address(name)
    for required_file in (MAPS, MODULES):
        if (folder := find_folder_with_file(name, "finder", required_file)) is not None:
            return folder
    with suppress(ModelError):
        ref = parse_reference(name)
        if ref.kind == "hub" and "/" in ref.repo:
            return replace(ref, folders=True)
    raise PresetError(
        f"answer.finder must be a folder with {MAPS} or {MODULES}, a hub id OWNER/NAME, or the "
        f"address of a server, got {name!r}",
        "check the name, or use --finder words, which finds with BM25 alone",
    )


def find_folder_with_file(name: str, setting_name: str, required_file: str) -> Path | None:
    """Finds a shipped or own folder with a file of an adapter or finder; None if there is none."""
    own = expand_home_folder(name, f"answer.{setting_name}", PresetError)
    shipped = find_shipped_preset_folder() / f"{setting_name}s" / name
    folders = [*([] if "/" in name else [shipped]), own] if name else []
    return next((folder for folder in folders if (folder / required_file).is_file()), None)
