"""Commands of engines in a process of their own."""

from __future__ import annotations

import subprocess
import sys

from command import TINY, listen

LONGEST_S = 100


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "esa_cli", *words, *TINY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
    )


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """What it printed on standard error."""
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return err
