"""Commands in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from command import ROOT, TINY, listen

LONGEST_S = 100


def start(*words: str) -> subprocess.Popen[str]:
    """With the tiny model; Ctrl-C is heard, also where the tests' shell ignores it."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests/support")))
    return subprocess.Popen(
        [sys.executable, "-m", "esa_cli", *words, *TINY],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
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
