"""Commands that change a library, killed at random moments or at once: nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from soak_commands import OF_CATALOGUE, TINY, SoakFolder, answer, asking, contents
from soak_part import SoakPart

DOCUMENTS = ["docs/a.txt", "docs/b.txt", "docs/c.txt"]


class SoakKills(SoakPart):
    name = "kills"

    def __init__(self, out: Path, seed: int) -> None:
        super().__init__(out, seed)
        self.folder: SoakFolder | None = None

    def _prepare(self) -> SoakFolder:
        folder = self.folder = SoakFolder()
        ingest = ["ingest", *DOCUMENTS, *TINY]
        self.commands = {
            "ingest rows": ingest,
            "ingest index": [*ingest, *folder.finder],
            "sync": ["ingest", "--words", "docs", *TINY],
            "push": ["library", "copy", "library", "remote"],
            "prune": ["library", "prune", "--max-size", "300KB"],
        }
        self.takes, self.wanted, self.right = dict[str, float](), dict[str, Any](), dict[str, Any]()
        self.whole = folder.use("whole")
        for command in ("ingest rows", "ingest index"):
            folder.done(*self.commands[command])
        for name in self.commands:
            self._begin(name)
            started = time.perf_counter()
            folder.done(*self.commands[name])
            self.takes[name] = time.perf_counter() - started
            self.wanted[name] = self._state(name)
        self._begin("push")
        self.asking = asking(folder)
        for kind in ("rows", "index"):
            self.right[kind] = answer(kind, folder.done(*self.asking[kind]))
        return folder

    def _begin(self, name: str) -> None:
        """The libraries as they are before a command."""
        assert self.folder is not None
        for folder in ("library", "remote"):
            shutil.rmtree(self.folder.root / folder, ignore_errors=True)
        library = self.folder.use("library")
        if name in ("push", "prune"):
            shutil.copytree(self.whole, library, copy_function=shutil.copy2)
            (library / OF_CATALOGUE).unlink(missing_ok=True)

    def _state(self, name: str) -> Any:
        """What the command must have done."""
        assert self.folder is not None
        if name == "sync":
            found = self.folder.done(*asking(self.folder)["find"])
            return answer("find", found)
        return contents(self.folder.root / ("remote" if name == "push" else "library"))

    def run(self, until: float) -> None:
        folder = self.folder or self._prepare()
        while True:
            for name in self.commands:
                self._kill(folder, name)
            self._at_once(folder)
            if time.monotonic() > until:
                return

    def _kill(self, folder: SoakFolder, name: str) -> None:
        self._begin(name)
        for _ in range(self.draw.choice((1, 1, 2, 3))):
            after = self.draw.uniform(0, 1.1 * self.takes[name])
            number = folder.start(*self.commands[name])
            time.sleep(after)
            os.kill(number, signal.SIGKILL)
            code = folder.result(number).code
            self.counts["killed" if code < 0 else "too late"] += 1
            self.takes[name] *= 1.05 if code < 0 else 0.95
            self._check(folder, f"{name}, killed after {after:.3f} s")
        found = folder.run(*self.commands[name])
        if found.code:
            self.finding(f"{found.err}\n{name} after a kill: code {found.code}")
        elif (state := self._state(name)) != self.wanted[name]:
            lacks = set(map(str, self.wanted[name])) ^ set(map(str, state))
            self.finding(f"{name} after a kill ends otherwise: {sorted(lacks)[:9]}")
        self._check(folder, f"{name}, killed and done again")

    def _check(self, folder: SoakFolder, what: str) -> None:
        found = folder.run("library", "verify")
        if found.code:
            self.finding(f"{found.out}\n{found.err}\nverify after {what}: code {found.code}")

    def _at_once(self, folder: SoakFolder) -> None:
        """Processes that ingest, ask, push and prune the same library."""
        self._begin("ingest rows")
        names = ["ingest rows", "ingest index", "sync"]  # the answers below need the first two
        work = [self.commands[name] for name in [*names[:2], self.draw.choice(names)]]
        work += [["library", "prune"], self.asking["rows"], self.asking["index"]]
        self.draw.shuffle(work)
        numbers = [(words, folder.start(*words)) for words in work]
        for words, number in numbers:
            found = folder.result(number)
            self.counts["at once"] += 1
            if found.code:
                self.finding(f"{found.err}\n{' '.join(words)}, with others: code {found.code}")
        self._check(folder, "six at once")
        for kind, wanted in self.right.items():
            found = folder.run(*self.asking[kind])
            if found.code or answer(kind, found) != wanted:
                self.finding(
                    f"{found.out}\n{found.err}\nanother answer of {kind} after six at once"
                )

    def end(self) -> None:
        if self.folder:
            self.folder.end()
