"""Prints the way of one question through the package: files, and frames above the paper's Eq. (6).

    python tests/support/way.py [LINES]

`esa ask` answers from a small book, and once by `--method esa`. A file counts if at least LINES
(default 20) of its lines run, imports left out; the number of all files is printed, too.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'esa_cli'}{os.sep}"
BOOK = "The captain of the {} was called {}. The sea was calm that day, and the cook was tired.\n\n"
NAMES = ("Ann Brown", "Olaf Berg", "Mary Hall", "Jim Lee")
QUESTION = "Who was the captain of the Swallow 17?"


def is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def is_import(frame: FrameType | None) -> bool:
    """Whether a module of the package is being imported at this frame."""
    while frame is not None:
        if is_own(frame) and frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def run(*words: str) -> tuple[dict[str, int], list[str]]:
    """Runs a command; returns the lines that ran by file, and the frames above the selection."""
    lines, frames = defaultdict[str, set[int]](set), list[str]()

    def see_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename].add(frame.f_lineno)
        return see_line

    def see_call(frame: FrameType, _: str, __: Any) -> Any:
        if not is_own(frame) or is_import(frame):
            return None
        code = frame.f_code
        if code.co_name == "__call__" and code.co_filename.endswith("layer.py") and not frames:
            above: FrameType | None = frame
            while above is not None:
                if is_own(above):
                    name = above.f_code.co_filename.removeprefix(PACKAGE)
                    frames.insert(0, f"{name}: {above.f_code.co_qualname}")
                above = above.f_back
        return see_line

    from esa_cli.__main__ import main

    threading.settrace(see_call)
    sys.settrace(see_call)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(list(words))
    except SystemExit as stop:
        if stop.code:
            raise
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return {file.removeprefix(PACKAGE): len(seen) for file, seen in lines.items()}, frames


def main() -> None:
    sys.path.insert(0, str(ROOT))
    minimum = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as place:
        os.environ["ESA_LIBRARY"] = os.path.join(place, "library")
        book = Path(place) / "book.txt"
        ships = (BOOK.format(f"Swallow {i}", NAMES[i % len(NAMES)]) for i in range(300))
        book.write_text("".join(ships), "utf-8")
        files, _ = run("ask", str(book), QUESTION, "--quiet")
        _, frames = run("ask", str(book), QUESTION, "--quiet", "--method", "esa")
    long = sorted(
        ((count, file) for file, count in files.items() if count >= minimum), reverse=True
    )
    for count, file in long:
        print(f"  {count:4} {file}")
    print(f"{len(long)} files with {minimum} or more lines, {len(files)} in all")
    print("\n".join(f"  {frame}" for frame in frames))
    print(f"{len(frames)} frames to the selection of a layer")


if __name__ == "__main__":
    main()
