"""Ctrl-C at any line of some files: KeyboardInterrupt is raised in front of it, as a signal may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any


def interrupted(action: Callable[[], Any], after: int, folders: list[Path]) -> bool:
    """Runs an action until `after` lines of files in these folders have run; False if it ended."""
    left, names = [after], tuple(str(one) for one in folders)

    def line(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return line

    def call(frame: FrameType, event: str, value: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(names) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
