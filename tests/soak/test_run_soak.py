"""Parts of `make soak`, for as short a time as can be; kills take half a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run_soak.py")


@pytest.mark.process
@pytest.mark.timeout(300)
def test_parts_find_nothing_in_their_first_moments(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--out", str(tmp_path / "found"), "--minutes", "0"]
    command += ["--seed", "3", "--part", "readers", "--part", "damage"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 findings") == 2
