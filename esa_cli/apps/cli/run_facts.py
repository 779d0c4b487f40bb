"""What commands write about themselves."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from pathlib import Path

from esa_cli.version import __version__


def run_facts() -> dict[str, str]:
    """What made a file of results."""
    return {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def goes_on(out: Path | None) -> str:
    """How a command that was stopped is continued, behind what is said about that."""
    return f"; the same command with --out {out} goes on" if out else ""
