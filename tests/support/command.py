"""What a command of `esa` gave, for tests that run one in their own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Result(NamedTuple):
    """Exit code, and what was printed."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What `--json` printed."""
        return json.loads(self.out)


Esa = Callable[..., Result]
ROOT = Path(__file__).parents[2]
TINY = ["--preset", "tiny-random", "--device", "cpu", "--dtype", "float32"]
QUICK = [*TINY, "--set", "window.chunk=256"]
"""An eighth of the forward passes, for tests that read many documents."""


def fail(result: Result, code: int, *words: str) -> None:
    """The exit code, nothing on stdout, one message and one hint, which say these words."""
    assert result.code == code, result.err
    assert result.out == ""
    lines = [line for line in result.err.splitlines() if line != "esa: starting"]
    assert lines[0].startswith("esa: ")
    assert 1 <= len(lines) <= 2
    assert all(line.startswith("     ") for line in lines[1:])
    for word in words:
        assert word in result.err


def environment(**more: str) -> dict[str, str]:
    """Of another process, which imports the package of this repository."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in another process, which must end well."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done


def listen() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
