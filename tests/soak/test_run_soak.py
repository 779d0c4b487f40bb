"""Parts of `make soak`, for as short a time as can be; kills take half a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sample_files

RUN = Path(__file__).with_name("run_soak.py")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), "--out", str(folder / "found"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["readers", "damage", "server"])
def test_a_part_finds_nothing_in_its_first_moments(tmp_path: Path, part: str) -> None:
    done = run(tmp_path, "--minutes", "0", "--seed", "3", "--turns", "1", "--part", part)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{part} " in done.stdout.splitlines()[-1]
    assert " 0 findings" in done.stdout.splitlines()[-1]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_document_that_was_found_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "readers-3-01-a.pdf"
    path.write_bytes(sample_files.pdf(["Hello"]))
    done = run(tmp_path, "--replay", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 text" in done.stdout
