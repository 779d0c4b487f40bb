"""The text around planted facts: the generated chronicle, or the user's own files.

A haystack is a list of paragraphs, cut to about n tokens by a given counting function, which sees
each paragraph once. Nothing is repeated: a text that is too short is an error.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path

from esa_cli.documents.document import read_documents
from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks import chronicle_task as chronicle

SUFFIXES = (".txt", ".md")
SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)")
WORD = re.compile(r"\S(?=\s)")
CHARACTER = re.compile(r"\S")
SLACK = 30
"""Allowed difference in tokens, so that the text ends with a whole sentence."""

Size = Callable[[str], int]


class Haystack:
    """A long text in paragraphs.

    Args:
        name: for messages and reports. parts: the paragraphs, consumed as far as needed.
        text: the whole text of the files; empty when it is generated.
    """

    def __init__(self, name: str, parts: Iterable[str], text: str = "") -> None:
        self.name, self.text = name, text
        self._rest = iter(parts)
        self._kept: list[str] = []
        self._ends: dict[Size, list[int]] = {}

    @classmethod
    def of(cls, name: str, text: str) -> Haystack:
        """A haystack of one text; blank lines divide paragraphs."""
        parts = (part.strip("\n") for part in re.split(r"\n[^\S\n]*\n", text))
        return cls(name, [part for part in parts if part.strip()], text)

    @classmethod
    def chronicle(cls, seed: int) -> Haystack:
        """The generated chronicle, without the demo's facts: more than a million tokens."""
        return cls("the chronicle", chronicle.paragraphs(seed))

    @classmethod
    def read(cls, source: str) -> Haystack:
        """A text file, or all .txt and .md files of a folder in the order of their names. Raises
        UsageError: a folder without such files. DocumentError: a file that cannot be read."""
        names = [source]
        if Path(source).is_dir():
            found = (path for path in Path(source).iterdir() if path.is_file())
            names = sorted(str(path) for path in found if path.suffix.lower() in SUFFIXES)
            if not names:
                raise UsageError(
                    f"the haystack's folder must have text files, got {source}",
                    "put .txt or .md files into it",
                )
        texts = [document.text.strip("\n") for document in read_documents(names)]
        return cls.of(Path(source).name or source, "\n\n".join(texts))

    def cut(self, size: Size, n: int, unit: str = "tokens") -> list[str]:
        """The first paragraphs, n tokens together; the last one may be cut after a sentence.

        Blank lines join them. Headings are never cut, nor left at the end.

        Raises:
            UsageError: the text is shorter.
        """
        ends = self._count(size, n)
        if not ends or ends[-1] < n:
            have = ends[-1] if ends else 0
            raise UsageError(
                f"{self.name} must have at least {n:,} {unit}, got {have:,}",
                "ask for a shorter length, or give more text",
            )
        whole = bisect_left(ends, n)
        before = ends[whole - 1] if whole else 0
        last = start_of(self._kept[whole], size, n - before, ends[whole] - before)
        out = [*self._kept[:whole], *([last] if last else [])]
        while out and is_heading(out[-1]):
            out.pop()
        return out

    def _grow(self) -> bool:
        part = next(self._rest, None)
        if part is not None:
            self._kept.append(part)
        return part is not None

    def _count(self, size: Size, n: int) -> list[int]:
        """Numbers of tokens up to the end of each paragraph, as far as the n-th token."""
        ends = self._ends.setdefault(size, [])
        while (not ends or ends[-1] < n) and (len(ends) < len(self._kept) or self._grow()):
            more = added_tokens(size, self._kept[len(ends)], "\n\n")
            ends.append((ends[-1] if ends else 0) + more)
        return ends


def added_tokens(size: Size, text: str, joint: str) -> int:
    """Tokens that `text` adds after a sentence, since tokenizers may merge the two."""
    return size(f"a.{joint}{text}") - size("a.")


def is_heading(paragraph: str) -> bool:
    """True if a paragraph is a Markdown heading of one line."""
    return paragraph.startswith("#") and "\n" not in paragraph


def start_of(paragraph: str, size: Size, n: int, total: int) -> str:
    """About the first n of a paragraph's `total` tokens: whole sentences if they come close."""
    if n >= total:
        return paragraph
    if is_heading(paragraph):
        return ""

    def tokens(end: int) -> int:
        return added_tokens(size, paragraph[:end], "\n\n") if end else 0

    near = 0
    for boundary in (SENTENCE, WORD, CHARACTER):
        ends = [0, *(match.end() for match in boundary.finditer(paragraph)), len(paragraph)]
        over = min(bisect_right(ends, n, key=tokens), len(ends) - 1)
        near = min(ends[max(over - 1, 0)], ends[over], key=lambda end: abs(tokens(end) - n))
        if abs(tokens(near) - n) <= SLACK:
            break
    return paragraph[:near]
