"""The property tests with many examples, other ones each time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from soak_part import SoakPart

ROOT = Path(__file__).parents[2]
EXAMPLES = 300


class SoakProperties(SoakPart):
    name = "properties"

    def run(self, until: float) -> None:
        files = sorted(map(str, ROOT.glob("tests/**/test_*_properties.py")))
        while True:
            self._test(self.draw.choice(files), self.draw.randrange(10**6))
            if time.monotonic() > until:
                return

    def _test(self, file: str, seed: int) -> None:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file]
        command.append(f"--hypothesis-seed={seed}")
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, errors="replace",
            env={**os.environ, "ESA_SOAK_EXAMPLES": str(EXAMPLES)},
        )  # fmt: skip
        found = dict[str, int]()
        for times, what in re.findall(r"(\d+) (passed|failed|error)", done.stdout[-300:]):
            found[what] = int(times)
        self.counts["tests of 300 examples"] += sum(found.values())
        if done.returncode:
            last = f"ESA_SOAK_EXAMPLES={EXAMPLES} {' '.join(command)}"
            self.finding(f"{done.stdout[-20_000:]}\n{done.stderr[-2000:]}\n{last}")
