"""Attacks esa until the time is up: mutated documents, damaged and killed libraries.

    python tests/soak/run_soak.py --minutes 30
    python tests/soak/run_soak.py --part readers --seed 7

Prints counts and findings; exit code 1 where there are any. What failed is in the folder of --out.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / name) for name in ("tests/support", "benchmarks/training"))]

from reader_fuzz import Mutant, verdict  # noqa: E402
from reader_samples import SAMPLES  # noqa: E402
from soak_damage import SoakDamage  # noqa: E402
from soak_kills import SoakKills  # noqa: E402
from soak_part import SoakPart  # noqa: E402

from esa_cli.documents import readers  # noqa: E402

SLOW_S = 5.0


class SoakReaders(SoakPart):
    """Mutated documents of every format through their readers."""

    name = "readers"

    def __init__(self, out: Path, seed: int) -> None:
        super().__init__(out, seed)
        os.environ["ESA_READ_SECONDS"] = "20"
        self._mutants = (Mutant(seed, name, number) for number in count() for name in SAMPLES)

    def run(self, until: float) -> None:
        for mutant in self._mutants:
            data, started = mutant.data(), time.monotonic()
            result = verdict(data, mutant.name, readers.read)
            seconds = time.monotonic() - started
            self.counts[result.partition(":")[0]] += 1
            if result not in ("text", "refused") or seconds > SLOW_S:
                self.finding(f"{mutant} after {seconds:.1f} s: {result}", mutant.name, data)
            if time.monotonic() > until:
                return


PARTS: dict[str, type[SoakPart]] = {
    part.name: part for part in (SoakReaders, SoakDamage, SoakKills)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="30 by default")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--part", choices=PARTS, action="append", help="all by default")
    parser.add_argument("--out", default="soak-findings", help="a folder; soak-findings")
    options = parser.parse_args()
    # Absolute, for parts work in folders of their own.
    out, names = Path(options.out).resolve(), list(dict.fromkeys(options.part or PARTS))
    print(f"seed {options.seed}, {options.minutes:g} minutes, findings go to {out}", flush=True)
    findings = 0
    for name in names:
        part = PARTS[name](out, options.seed)
        part.run(time.monotonic() + 60 * options.minutes / len(names))
        part.end()
        print(part, flush=True)
        findings += part.findings
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
