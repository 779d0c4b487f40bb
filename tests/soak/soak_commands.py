"""Commands of `esa` in forked children, in a folder with a small library of each kind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from command import Result
from forked import ended
from tiny_finder import tiny_finder

from esa_cli.__main__ import main
from esa_cli.qa.planning import plan

LIMIT_S = 300.0
STARTED = Path.cwd()
TEXTS = {
    "a.txt": "The gate opens at nine, and Ann Lee has the only key to it. " * 12,
    "b.txt": "The ferry leaves from pier four when the red flag is up. " * 14,
    "c.txt": "The gate opens at nine, and Ann Lee has the only key to it. " * 12 + "Tom knows. ",
}
QUESTION = "Who has the only key?"
TINY = ["--preset", "tiny-random", "--device", "cpu", "--dtype", "float32", "--quiet"]
ANSWER = ("answer", "found", "answered_from", "quotation", "evidence")
OF_CATALOGUE = "catalogue-1.sqlite"


class SoakFolder:
    """Documents, a finder and libraries; this process is in their folder from `use` to `end`."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="esa-soak-"))
        torch.set_num_threads(1)
        plan.SECONDS = 0.001
        self.use("first")
        Path("docs").mkdir()
        for name, text in TEXTS.items():
            Path("docs", name).write_text(text, "utf-8")
        self.finder = ["--set", "answer.from=text", "--set", "answer.finder=finder"]
        tiny_finder(Path("finder"))
        with contextlib.redirect_stdout(io.StringIO()):  # so that children have all modules
            main(["ask", "docs/a.txt", QUESTION, "--no-keep", *TINY, *self.finder])

    def use(self, library: str) -> Path:
        """Makes this the library of all commands, and this the folder where they are given."""
        os.environ |= {
            "ESA_HOME": str(self.root / "home"),
            "ESA_LIBRARY": str(self.root / library),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "HF_HUB_OFFLINE": "1",
        }
        os.chdir(self.root)
        return self.root / library

    def start(self, *words: str) -> int:
        """A child that does a command; its number."""
        sys.stdout.flush()
        number = os.fork()
        if number == 0:
            code = 1
            try:
                for stream, handle in (("out", 1), ("err", 2)):
                    path = self.root / f"{os.getpid()}.{stream}"
                    os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), handle)
                sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
                sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
                code = main(list(words))
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        return number

    def result(self, number: int, limit_s: float = LIMIT_S) -> Result:
        """What a child printed; its code is below 0 where a signal ended it, -SIGKILL after the
        limit."""
        until = time.monotonic() + limit_s
        while os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > until:
                os.kill(number, signal.SIGKILL)
            time.sleep(0.005)
        code, texts = ended(number), list[str]()
        for stream in ("out", "err"):
            path = self.root / f"{number}.{stream}"
            texts.append(path.read_text("utf-8", "replace") if path.exists() else "")
            path.unlink(missing_ok=True)
        return Result(code, *texts)

    def run(self, *words: str) -> Result:
        return self.result(self.start(*words))

    def done(self, *words: str) -> Result:
        """The result of a command that must succeed."""
        result = self.run(*words)
        if result.code:
            raise RuntimeError(f"{' '.join(words)}: {result.code} {result.err}")
        return result

    def end(self) -> None:
        os.chdir(STARTED)
        shutil.rmtree(self.root, ignore_errors=True)


def asking(folder: SoakFolder) -> dict[str, list[str]]:
    """Commands whose answers must be right, by what they need."""
    rows = ["ask", "docs/a.txt", "docs/b.txt", QUESTION, "--json", "--no-keep", *TINY]
    return {
        "rows": rows,
        "index": [*rows, *folder.finder],
        "find": ["find", "--library", "--json", "--all", "pier four", *TINY, *folder.finder],
        "list": ["library", "list", "--json"],
    }


def answer(kind: str, result: Result) -> Any:
    """What must be the same in each run."""
    data = json.loads(result.out)
    if kind == "list":
        return sorted((one["id"], one.get("name", "damaged")) for one in data["documents"])
    if kind == "find":
        return data["passages"]
    return {name: data[name] for name in ANSWER}


def contents(library: Path) -> dict[str, bytes]:
    """Files whose bytes do not depend on time or chance."""
    kept = [
        path for path in library.rglob("*") if path.suffix in (".text", ".tokens", ".seg", ".fit")
    ]
    found = {str(path.relative_to(library)): path.read_bytes() for path in kept}
    return found | {str(path.relative_to(library)): b"" for path in library.rglob("*.doc")}
