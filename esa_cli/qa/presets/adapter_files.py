"""Where adapters and finders are: shipped beside the presets by name, or in a user's folder."""

from __future__ import annotations

from pathlib import Path

from esa_cli.errors import PresetError
from esa_cli.models.text_passes.lora_adapter import CONFIG
from esa_cli.qa.presets.preset import AnswerSettings, Preset
from esa_cli.qa.presets.preset_files import shipped_dir
from esa_cli.system.machine import in_home

MAPS = "maps.safetensors"
"""The file of a finder's maps."""


def check_adapter(settings: AnswerSettings) -> None:
    """Raises PresetError where answers need an adapter or a finder and there is none."""
    if settings.source == "text":
        if settings.adapter is not None:
            adapter_folder(settings.adapter)
        if settings.finder is not None:
            finder_folder(settings.finder)


def without_adapter(preset: Preset) -> Preset:
    """The preset for reading documents alone, which needs no adapter and no other model."""
    answer = preset.answer.model_copy(update={"adapter": None, "reader": None})
    return preset.model_copy(update={"answer": answer})


def for_finding(preset: Preset, words_alone: bool = False) -> Preset:
    """The preset for passages without an answer: from text, without adapter; for words alone
    without a finder, too."""
    answer = preset.answer
    finder = None if words_alone else answer.finder
    update = {"source": "text", "adapter": None, "reader": None, "finder": finder}
    return preset.model_copy(update={"answer": answer.model_copy(update=update)})


def adapter_folder(name: str) -> Path:
    """The folder of an adapter: a path, or the name of a shipped one. Raises PresetError."""
    return _folder(name, "adapter", CONFIG)


def finder_folder(name: str) -> Path:
    """The folder of a finder: a path, or the name of a shipped one. Raises PresetError."""
    return _folder(name, "finder", MAPS)


def _folder(name: str, kind: str, file: str) -> Path:
    own = in_home(name, f"answer.{kind}", PresetError)
    shipped = [] if "/" in name else [shipped_dir() / f"{kind}s" / name]
    for folder in (*shipped, own):
        if name and (folder / file).is_file():
            return folder
    raise PresetError(
        f"answer.{kind} must be a folder with {file}, got {name!r}",
        f"write the path of one, or use --set answer.{kind}=null",
    )
