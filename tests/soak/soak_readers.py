"""Mutated documents of every format through their readers."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

from reader_fuzz import Mutant, limited_reader, request
from reader_samples import SAMPLES
from soak_part import SoakPart

SLOW_S = 5.0


class SoakReaders(SoakPart):
    name = "readers"

    def __init__(self, out: Path, seed: int) -> None:
        super().__init__(out, seed)
        self._reader, self._mutants = limited_reader(), self._every()

    def _every(self) -> object:
        for number in count():
            for name in SAMPLES:
                yield Mutant(self.seed, name, number)

    def run(self, until: float) -> None:
        for mutant in self._mutants:
            self._read(mutant.name, mutant.data(), str(mutant))
            if time.monotonic() > until:
                return

    def _read(self, name: str, data: bytes, what: str) -> None:
        said, seconds = self._reader.do(request(data, name))
        kind = said.partition(":")[0]
        self.counts[kind] += 1
        if kind not in ("text", "refused"):
            self.finding(f"{what} after {seconds:.1f} s: {said}", name, data)
        elif seconds > SLOW_S:
            self.finding(f"{what} took {seconds:.1f} s", name, data)

    def replay(self, path: Path) -> None:
        """Reads a file that was written as a finding."""
        name = path.name.split("-", 3)[-1]
        self._read(name, path.read_bytes(), str(path))

    def end(self) -> None:
        self._reader.end()
