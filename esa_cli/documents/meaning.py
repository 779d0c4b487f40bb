"""What names of documents mean, as plain data: files, and what was left out and why.

Knows no files and no formats; `sources` looks, `document` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Source(NamedTuple):
    """A path; `of` is the folder or pattern it was found in, empty where it was named."""

    path: str
    of: str = ""


class LeftOut(NamedTuple):
    """What is not read: a file, or the files of a folder or pattern that cannot be documents.

    Args:
        source: the file, folder or pattern. why: in words.
        files: how many files of the folder or pattern are left to read.
    """

    source: str
    why: str
    files: int | None = None

    @property
    def line(self) -> str:
        """What to tell a person."""
        if self.files is None:
            return f"left out: {self.why}"
        files = "file" if self.files == 1 else "files"
        return f"{self.source}: {self.files} {files} to read; left out: {self.why}"

    def as_dict(self) -> dict[str, str]:
        """What to tell a program."""
        return {"source": self.source, "why": self.why}


@dataclass(frozen=True)
class Meant:
    """What sources mean: files, in order, each as often as it is named; and what they leave out."""

    sources: tuple[Source, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The files; what folders and patterns mean is named once."""
        paths: list[str] = []
        known: set[str] = set()
        for path, of in self.sources:
            if not of or path not in known:
                paths.append(path)
                known.add(path)
        return tuple(paths)
