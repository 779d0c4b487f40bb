"""Where adapters are found, and what is said of one that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from esa_cli.errors import PresetError
from esa_cli.models.text_passes.lora_adapter import CONFIG
from esa_cli.qa.presets import adapter_files
from esa_cli.qa.presets.adapter_files import adapter_folder


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of shipped adapters; the working directory is an empty one."""
    monkeypatch.setattr(adapter_files, "shipped_dir", lambda: tmp_path / "presets")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "presets" / "adapters"


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}", "utf-8")
    return folder


def test_a_name_is_a_shipped_one(shipped: Path) -> None:
    folder = made(shipped / "small")
    assert adapter_folder("small") == folder
    made(Path("small"))
    assert adapter_folder("small") == folder
    assert adapter_folder("./small") == Path("small")


@pytest.mark.parametrize("name", ["", ".", "none", "/none", "../presets/adapters/empty", "~nobody"])
def test_a_missing_one_is_refused(shipped: Path, name: str) -> None:
    (shipped / "empty").mkdir(parents=True)
    with pytest.raises(PresetError, match=r"answer\.adapter|~nobody"):
        adapter_folder(name)
