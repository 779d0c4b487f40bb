"""Commands of engines in a process of their own, and a reporter that keeps what they say."""

from __future__ import annotations

import subprocess
import sys

from command import TINY, listen

from esa_cli.apps.cli.output.terminal import Reporter

LONGEST_S = 100


class Notes(Reporter):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines = list[str]()

    def warn(self, text: str) -> None:
        self.lines.append(text)


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
