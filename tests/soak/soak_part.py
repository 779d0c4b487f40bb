"""What the parts of a soak have in common: counts, findings, and a folder for what failed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

MOST_SHOWN = 20
"""Findings of one part that are written; further ones are counted."""


class SoakPart(ABC):
    """One kind of test, which goes on for as long as it is given.

    Args:
        out: gets what failed. seed: the same one gives the same tests, in the same order.
    """

    name: str

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.seed, self.draw = out, seed, random.Random(f"{self.name} {seed}")
        self.counts, self.findings, self.seconds = Counter[str](), 0, 0.0

    @abstractmethod
    def run(self, until: float) -> None:
        """Tests until the time (`time.monotonic`), and at least once."""

    def end(self) -> None:  # noqa: B027
        """Called after the last run."""

    def finding(self, what: str, name: str = "", data: bytes = b"") -> None:
        """Counts a finding, says it, and writes what it takes to see it again."""
        self.findings += 1
        if self.findings > MOST_SHOWN:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        stem = f"{self.name}-{self.seed}-{self.findings:02d}"
        (self.out / f"{stem}.txt").write_text(f"{what}\n", "utf-8", "backslashreplace")
        if data:
            (self.out / f"{stem}-{name}").write_bytes(data)
        first = what.strip().splitlines()[-1][:200]
        print(f"FOUND {self.out / stem}: {first}", flush=True)

    def __str__(self) -> str:
        done, rate = self.counts.total(), self.counts.total() / max(self.seconds, 1e-9)
        of = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"{self.name:<11} {done:>9,} {rate:>8.1f}/s {self.findings:>4} findings   {of}"
