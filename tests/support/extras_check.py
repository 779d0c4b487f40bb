"""`make extras-check`: resolves every extra with pip under constraints.txt, and prints a table.

Nothing is installed or compiled: only wheels count. Those that an extra adds to what esa-cli needs
itself are downloaded into a temporary folder, to be measured. Beside the extras, all of them at
once must resolve together. Exit code 1 where one does not.

    python tests/support/extras_check.py [EXTRA...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name
from requirement_tree import needed

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


class Resolved(NamedTuple):
    """What pip says about some requirements: distribution -> version, or its error."""

    found: dict[str, str]
    error: str


def resolve(requirements: list[str]) -> Resolved:
    """Without regard to what is installed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        given = ["--dry-run", "--ignore-installed", "--report", str(report)]
        given += ["--only-binary=:all:"]
        done = subprocess.run(
            [*PIP, "install", *given, "-c", str(ROOT / "constraints.txt"), *requirements],
            capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "rror" in line]
            return Resolved({}, (errors or done.stderr.splitlines() or ["no output"])[-1])
        data = json.loads(report.read_text("utf-8"))
    rows = [one["metadata"] for one in data["install"]]
    return Resolved({canonicalize_name(row["name"]): row["version"] for row in rows}, "")


def licence(wheel: Path) -> str:
    """Its SPDX expression, or what the metadata has instead; a whole text by its first line."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        row = message_from_bytes(archive.read(name))
    stated = row["License-Expression"]
    named = [one for one in row.get_all("Classifier", []) if one.startswith("License ::")]
    last = " / ".join(one.rpartition(" :: ")[2] for one in named)
    return str(stated or last or row["License"] or "not said").strip().splitlines()[0]


def wheels(found: dict[str, str]) -> tuple[int, set[str]]:
    """The bytes and licences of these versions' wheels for this machine."""
    if not found:
        return 0, set()
    with tempfile.TemporaryDirectory() as folder:
        pinned = [f"{name}=={version}" for name, version in found.items()]
        command = [*PIP, "download", "--no-deps", "--only-binary=:all:", "-d", folder, *pinned]
        subprocess.run(command, check=True, capture_output=True, timeout=900)
        files = list(Path(folder).iterdir())
        return sum(path.stat().st_size for path in files), {licence(path) for path in files}


def main(chosen: list[str]) -> int:
    base = needed(PROJECT["dependencies"])
    failed, together = False, []
    print("| extra | adds | to download | licences |\n|-|-|-|-|")
    for extra in chosen or [name for name in EXTRAS if name != "dev"]:
        together += EXTRAS[extra]
        resolved = resolve(EXTRAS[extra])
        if resolved.error:
            failed = True
            print(f"| `{extra}` | cannot be installed: {resolved.error} | | |", flush=True)
            continue
        new = {name: version for name, version in resolved.found.items() if name not in base}
        size, licences = wheels(new)
        added = ", ".join(f"{name} {version}" for name, version in new.items()) or "nothing"
        row = f"| `{extra}` | {added} | {size / 1e6:.1f} MB | {', '.join(sorted(licences))} |"
        print(row, flush=True)
    all_of_them = resolve(together)
    outcome = all_of_them.error or f"resolve together: {len(all_of_them.found)} distributions"
    print(f"\n{outcome}, Python {sys.version.split()[0]}, {sys.platform}")
    return int(failed or bool(all_of_them.error))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
