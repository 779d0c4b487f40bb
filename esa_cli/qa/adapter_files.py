"""Where adapters are: shipped beside the presets by name, or in a folder of the user's."""

from __future__ import annotations

from pathlib import Path

from esa_cli.errors import PresetError
from esa_cli.models.lora_adapter import CONFIG
from esa_cli.qa.preset_files import shipped_dir


def adapter_folder(name: str) -> Path:
    """The folder of an adapter: a path, or the name of a shipped one.

    Raises:
        PresetError: there is none.
    """
    shipped = shipped_dir() / "adapters" / name
    for folder in (Path(name).expanduser(), shipped):
        if (folder / CONFIG).is_file():
            return folder
    raise PresetError(
        f"answer.adapter must be a folder with {CONFIG}, got {name!r}", "or use --no-adapter"
    )
