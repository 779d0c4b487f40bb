"""Where adapters are: shipped beside the presets by name, or in a folder of the user's."""

from __future__ import annotations

from pathlib import Path

from esa_cli.errors import PresetError
from esa_cli.models.lora_adapter import CONFIG
from esa_cli.qa.answer_settings import AnswerSettings
from esa_cli.qa.preset_files import shipped_dir
from esa_cli.system.machine import in_home


def check_adapter(settings: AnswerSettings) -> None:
    """Raises PresetError where answers need an adapter and there is none."""
    if settings.source == "text" and settings.adapter is not None:
        adapter_folder(settings.adapter)


def adapter_folder(name: str) -> Path:
    """The folder of an adapter: a path, or the name of a shipped one.

    Raises:
        PresetError: there is none.
    """
    own = in_home(name, "answer.adapter", PresetError)
    shipped = [] if "/" in name else [shipped_dir() / "adapters" / name]
    for folder in (*shipped, own):
        if name and (folder / CONFIG).is_file():
            return folder
    raise PresetError(
        f"answer.adapter must be a folder with {CONFIG}, got {name!r}",
        "write the path of one, or use --no-adapter",
    )
