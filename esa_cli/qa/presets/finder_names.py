"""Finds out which kind of finder the setting `answer.finder` names, and where its files are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from esa_cli.errors import ModelError, PresetError
from esa_cli.models.files.model_reference import ModelRef, parse_reference
from esa_cli.qa.presets.preset_files import find_shipped_preset_folder, is_web_address
from esa_cli.system.machine import expand_home_folder

MAPS = "maps.safetensors"
"""The name of the file with a trained finder's projections."""
MODULES = "modules.json"
"""The name of the file that lists the modules of a sentence-transformers model."""
WORDS = "words"
"""The name that stands for no finder, so that passages are found with BM25 alone."""


class FinderPlace(NamedTuple):
    """The kind of a finder, and where the finder is.

    Args:
        kind: `trained` by benchmarks/training, of `late interaction` in the format of
            sentence-transformers, or on a `server` of embeddings.
        name: as in the setting, such as the server's address. folder: of the finder's files.
        ref: of a model on the hub, instead of `folder`."""

    kind: Literal["trained", "late interaction", "server"]
    name: str
    folder: Path | None = None
    ref: ModelRef | None = None


def locate_finder(name: str) -> FinderPlace:
    """Returns the kind and place of a finder. Raises PresetError: the name is none of a finder."""
    if is_web_address(name):
        return FinderPlace("server", name)
    own = expand_home_folder(name, "answer.finder", PresetError)
    if (own / MODULES).is_file():
        return FinderPlace("late interaction", name, own)
    if (folder := find_folder_with_file(name, "finder", MAPS)) is not None:
        return FinderPlace("trained", name, folder)
    try:
        ref = parse_reference(name)
    except ModelError:
        ref = None
    if ref is not None and ref.kind == "hub" and "/" in ref.repo:
        return FinderPlace("late interaction", name, None, ref)
    raise PresetError(
        f"answer.finder must be a folder with {MAPS} or {MODULES}, a hub id OWNER/NAME, or the "
        f"address of a server, got {name!r}",
        "check the name, or use --finder words, which finds with BM25 alone",
    )


def find_folder_with_file(folder_name: str, setting_name: str, required_file: str) -> Path | None:
    """Finds a shipped or own folder with a file of an adapter or finder; None if there is none."""
    own = expand_home_folder(folder_name, f"answer.{setting_name}", PresetError)
    shipped = find_shipped_preset_folder() / f"{setting_name}s" / folder_name
    for folder in (*([] if "/" in folder_name else [shipped]), own):
        if folder_name and (folder / required_file).is_file():
            return folder
    return None
