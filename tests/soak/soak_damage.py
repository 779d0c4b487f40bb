"""Files of a library damaged at random: the right answer, or an error that names the damage."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

from command import Result
from soak_commands import OF_CATALOGUE, TINY, SoakFolder, answer, asking
from soak_part import SoakPart

OWN = (".doc", ".text", ".tokens", ".seg", ".fit")
"""Files that a document needs, which `verify` reads."""


def damage(path: Path, others: list[Path], draw: random.Random) -> str:
    """Damages a file; how."""
    data = path.read_bytes()
    at = draw.randrange(max(len(data), 1))
    kinds = {
        "flip": lambda: data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :],
        "noise": lambda: data[:at] + draw.randbytes(16) + data[at + 16 :],
        "zeros": lambda: data[:at] + bytes(len(data[at : at + 512])) + data[at + 512 :],
        "cut": lambda: data[:at],
        "longer": lambda: data + draw.randbytes(9),
        "swapped": lambda: draw.choice(others).read_bytes(),
        "gone": lambda: None,
    }
    kind = draw.choice(list(kinds))
    made = kinds[kind]() if data or kind in ("longer", "swapped", "gone") else b"\0"
    path.unlink() if made is None else path.write_bytes(made)
    return "nothing" if made == data else kind


class SoakDamage(SoakPart):
    name = "damage"

    def __init__(self, out: Path, seed: int) -> None:
        super().__init__(out, seed)
        self.folder: SoakFolder | None = None
        self.right: dict[str, Any] = {}

    def _prepare(self) -> SoakFolder:
        folder = self.folder = SoakFolder()
        self.whole, self.library = folder.use("whole"), folder.root / "library"
        folder.done("ingest", "docs/a.txt", "docs/b.txt", *TINY)
        folder.done("ingest", "docs/a.txt", "docs/b.txt", *TINY, *folder.finder)
        folder.done("ingest", "--words", "docs", *TINY)
        self.commands = asking(folder)
        for kind, words in self.commands.items():
            self.right[kind] = answer(kind, folder.done(*words))
        return folder

    def run(self, until: float) -> None:
        folder = self.folder or self._prepare()
        folder.use("library")
        while True:
            self._damage_one(folder)
            if time.monotonic() > until:
                return

    def _damage_one(self, folder: SoakFolder) -> None:
        shutil.rmtree(self.library, ignore_errors=True)
        shutil.copytree(self.whole, self.library, copy_function=shutil.copy2)
        files = sorted(
            path
            for path in self.library.rglob("*")
            if path.is_file() and path.suffix not in (".lock", ".used")
        )
        by_kind = sorted({path.suffix or path.name for path in files})
        chosen = self.draw.choice(by_kind)
        of_kind = [path for path in files if (path.suffix or path.name) == chosen]
        path = self.draw.choice(of_kind)
        kind = damage(path, of_kind, self.draw)
        if kind == "nothing":
            return
        what = f"{kind} of {path.relative_to(self.library)}"
        data = path.read_bytes() if path.exists() else b""
        self._verify(folder, path, what, data)
        asked = self.draw.choice(list(self.commands))
        self._ask(folder, asked, path, what, data)

    def _verify(self, folder: SoakFolder, path: Path, what: str, data: bytes) -> None:
        found = folder.run("library", "verify")
        named = path.name in found.out + found.err
        lost = path.suffix == ".doc" and not path.exists()
        if path.suffix in OWN and not lost and not (found.code == 3 and named):
            self._wrong(f"verify misses: {what}", path, data, found)
        elif found.code not in (0, 3) or (path.suffix not in OWN and found.code and not named):
            self._wrong(f"verify: {what}", path, data, found)

    def _ask(self, folder: SoakFolder, kind: str, path: Path, what: str, data: bytes) -> None:
        found = folder.run(*self.commands[kind])
        if found.code == 0:
            good = answer(kind, found) == self.right[kind]
            # A document without its manifest is found by its words, as one that was not read.
            lost = path.suffix == ".doc" and kind in ("list", "find")
            named = kind == "list" and path.stem[:12] in found.out and '"damage"' in found.out
            named = named or path.name in found.err  # it is left out
            said = "right" if good else "named" if named else "document gone" if lost else "wrong"
            self.counts[said] += 1
            if said != "wrong":
                return
            if path.name == OF_CATALOGUE and kind == "find":
                self.counts["known: words of the catalogue"] += 1
                return
            self._wrong(f"another answer of {kind} after {what}", path, data, found)
        elif found.code == 3 and (
            path.name in found.err
            or path.parent.name in found.err
            or path.stem[:12] in found.err
            or str(self.library) in found.err
        ):
            self.counts["named"] += 1
        else:
            self._wrong(f"{kind} after {what}", path, data, found)

    def _wrong(self, what: str, path: Path, data: bytes, found: Result) -> None:
        self.finding(f"{found.out[-1500:]}\n{found.err[-1500:]}\ncode {found.code}; {what}",
                     path.name, data)  # fmt: skip

    def end(self) -> None:
        if self.folder:
            self.folder.end()
