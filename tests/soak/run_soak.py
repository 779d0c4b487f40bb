"""Attacks esa until the time is up: mutated documents, damaged and killed libraries, hostile
requests.

    python tests/soak/run_soak.py --minutes 30
    python tests/soak/run_soak.py --part readers --seed 7
    python tests/soak/run_soak.py --replay soak-findings/readers-7-01-a.docx

Prints rates and findings; exit code 1 where there are any. What failed is in the folder of --out,
with the seed that gives the same tests again.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / "tests" / name) for name in ("support", "storage", "apps/cli")),
]

from soak_damage import SoakDamage  # noqa: E402
from soak_kills import SoakKills  # noqa: E402
from soak_part import SoakPart  # noqa: E402
from soak_readers import SoakReaders  # noqa: E402
from soak_server import SoakServer  # noqa: E402

PARTS: dict[str, type[SoakPart]] = {
    part.name: part for part in (SoakReaders, SoakDamage, SoakKills, SoakServer)
}


def main() -> int:
    asked = _parser().parse_args()
    # Absolute, for parts work in folders of their own.
    out, seed = Path(asked.out).resolve(), asked.seed
    if asked.replay:
        reader = SoakReaders(out / "replayed", seed)
        for path in asked.replay:
            reader.replay(Path(path))
        reader.end()
        return _report([reader])
    print(f"seed {seed}, {asked.minutes:g} minutes, findings go to {out}", flush=True)
    parts = [PARTS[name](out, seed) for name in dict.fromkeys(asked.part or PARTS)]
    ends = time.monotonic() + 60 * asked.minutes
    for turn in range(asked.turns, 0, -1):
        for number, part in enumerate(parts):
            left = turn * len(parts) - number
            started = time.monotonic()
            part.run(started + max(0.0, ends - started) / left)
            part.seconds += time.monotonic() - started
            print(part, flush=True)
    for part in parts:
        part.end()
    print()
    return _report(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="30 by default")
    parser.add_argument("--turns", type=int, default=4, help="of each part; 4")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--part", choices=PARTS, action="append", help="all by default")
    parser.add_argument("--out", default="soak-findings", help="a folder; soak-findings")
    parser.add_argument("--replay", nargs="+", metavar="FILE", help="documents that failed")
    return parser


def _report(parts: list[SoakPart]) -> int:
    for part in parts:
        print(part)
    return 1 if any(part.findings for part in parts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
