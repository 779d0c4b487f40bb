"""The scripts that train: a finder and a reader from the command line, one run each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import train_finder
import train_reader
from reader_pairs import ANIMALS, write_text

from esa_cli.models.text_passes.lora_adapter import CONFIG, WEIGHTS
from esa_cli.qa.presets.adapter_files import MAPS

pytestmark = pytest.mark.training

TINY = ["--preset", "tiny-random", "--batch", "3", "--rank", "2", "--held-out", "two"]
FINDER = ["--steps", "2", "--layers", "2", "--first", "1", "--dim", "8"]


@pytest.mark.parametrize(
    ("script", "more", "files"),
    [
        (train_finder, FINDER, {CONFIG, WEIGHTS, MAPS}),
        (train_reader, ["--examples", "6"], {CONFIG, WEIGHTS}),
    ],
)
def test_a_training(
    script: object,
    more: list[str],
    files: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_text(tmp_path, "one", animals=ANIMALS[:4])
    folders = write_text(tmp_path, "two", hour=3, animals=ANIMALS[:4])
    argv = [*map(str, folders), "--out", str(tmp_path / "out"), *TINY, *more]
    script.main(argv)  # type: ignore[attr-defined]
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "training.json").read_text("utf-8"))
    assert printed["held_out"].keys() == {"two"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*files, "training.json"}
    with pytest.raises(SystemExit) as refused:
        script.main(argv)  # type: ignore[attr-defined]
    assert refused.value.code == 2
