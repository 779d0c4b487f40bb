"""A worker without a model, for engines."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import ResourceError


class SquareWorker:
    """Squares numbers. Its process ends when it sees the task 3 for the first time; always where
    the folder is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def open(self, reporter: Reporter) -> Iterator[Callable[[int], int]]:
        def square(task: int) -> int:
            if task == 3 and not (self.folder / "tried").exists():
                if self.folder.is_dir():
                    (self.folder / "tried").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if task < 0:
                reporter.warn("below zero")
                raise ResourceError(f"no root of {task}", "take another")
            return task * task

        yield square
