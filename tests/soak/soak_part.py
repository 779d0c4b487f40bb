"""What the parts of a soak share: counts, findings, and a folder for what failed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

MOST_SHOWN = 20


class SoakPart(ABC):
    """One kind of test. The same seed gives the same tests; `out` gets what failed."""

    name: str

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.seed, self.draw = out, seed, random.Random(f"{self.name} {seed}")
        self.counts, self.findings = Counter[str](), 0

    @abstractmethod
    def run(self, until: float) -> None:
        """Tests until the time (`time.monotonic`), and at least once."""

    def end(self) -> None:  # noqa: B027
        """Called after the last run."""

    def finding(self, what: str, name: str = "", data: bytes = b"") -> None:
        """Counts a finding, prints it, and writes the first ones to files."""
        self.findings += 1
        if self.findings > MOST_SHOWN:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        stem = f"{self.name}-{self.seed}-{self.findings:02d}"
        (self.out / f"{stem}.txt").write_text(f"{what}\n", "utf-8", "backslashreplace")
        if data:
            (self.out / f"{stem}-{name}").write_bytes(data)
        print(f"FOUND {self.out / stem}: {what.strip().splitlines()[-1][:200]}", flush=True)

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"{self.name} {self.findings} findings   {counts}"
