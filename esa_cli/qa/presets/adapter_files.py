"""Finds the folders of adapters and finders, either by path or by the name of a shipped one."""

from __future__ import annotations

from pathlib import Path

from esa_cli.errors import PresetError
from esa_cli.models.text_passes.text_forward import CONFIG
from esa_cli.qa.presets.preset import AnswerSettings, Preset
from esa_cli.qa.presets.preset_files import shipped_preset_folder
from esa_cli.system.machine import expand_home_folder

MAPS = "maps.safetensors"
"""The name of the file with a finder's projections."""


def check_adapter(settings: AnswerSettings) -> None:
    """Raises PresetError if the preset's adapter or finder is missing."""
    if settings.source == "text":
        if settings.adapter is not None:
            adapter_folder(settings.adapter)
        if settings.finder is not None:
            finder_folder(settings.finder)


def preset_without_adapter(preset: Preset) -> Preset:
    """Returns a copy of the preset for ingesting documents, without adapter and reader."""
    answer = preset.answer.model_copy(update={"adapter": None, "reader": None})
    return preset.model_copy(update={"answer": answer})


def preset_for_finding(preset: Preset, words_alone: bool = False) -> Preset:
    """Returns a copy of the preset for finding passages, without adapter and reader. With
    `words_alone`, it has no finder either, so that passages are found with BM25 alone."""
    answer = preset.answer
    finder = None if words_alone else answer.finder
    update = {"source": "text", "adapter": None, "reader": None, "finder": finder}
    return preset.model_copy(update={"answer": answer.model_copy(update=update)})


def adapter_folder(name: str) -> Path:
    """Finds the folder of an adapter by its path or its shipped name. Raises PresetError."""
    return _find_folder(name, "adapter", CONFIG)


def finder_folder(name: str) -> Path:
    """Finds the folder of a finder by its path or its shipped name. Raises PresetError."""
    return _find_folder(name, "finder", MAPS)


def _find_folder(name: str, kind: str, file: str) -> Path:
    own = expand_home_folder(name, f"answer.{kind}", PresetError)
    shipped = [] if "/" in name else [shipped_preset_folder() / f"{kind}s" / name]
    for folder in (*shipped, own):
        if name and (folder / file).is_file():
            return folder
    raise PresetError(
        f"answer.{kind} must be a folder with {file}, got {name!r}",
        f"give the path of such a folder, or use --set answer.{kind}=null",
    )
