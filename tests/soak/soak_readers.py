"""Mutated documents of every format through their readers."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

from reader_fuzz import Mutant, verdict
from reader_samples import SAMPLES
from soak_part import SoakPart

from esa_cli.documents import readers

SLOW_S = 5.0


class SoakReaders(SoakPart):
    name = "readers"

    def __init__(self, out: Path, seed: int) -> None:
        super().__init__(out, seed)
        os.environ["ESA_READ_SECONDS"] = "20"
        self._mutants = (Mutant(seed, name, number) for number in count() for name in SAMPLES)

    def run(self, until: float) -> None:
        for mutant in self._mutants:
            self._read(mutant.name, mutant.data(), str(mutant))
            if time.monotonic() > until:
                return

    def _read(self, name: str, data: bytes, what: str) -> None:
        started = time.monotonic()
        result = verdict(data, name, readers.read)
        seconds = time.monotonic() - started
        self.counts[result.partition(":")[0]] += 1
        if result not in ("text", "refused") or seconds > SLOW_S:
            self.finding(f"{what} after {seconds:.1f} s: {result}", name, data)

    def replay(self, path: Path) -> None:
        """Reads a file that was written as a finding."""
        name = path.name.split("-", 3)[-1]
        self._read(name, path.read_bytes(), str(path))
