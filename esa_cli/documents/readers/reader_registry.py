"""Readers by name, and which of them reads a document.

A reader is a class with the members of `Reader`; `@register("name")` adds it: a built-in one,
one of a plugin file (`--plugin FILE`) or of a package's `esa.readers` entry point. The last
registered is asked first. A binary format is chosen by content, then the file's name counts; all
else is plain text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import PurePath
from typing import ClassVar, Protocol, TypeVar, cast

from esa_cli.documents.readers.text_builder import ExtractedText, label
from esa_cli.errors import NOT_BLAMED, DocumentError, EsaError, PluginError
from esa_cli.system.registry import Registry

PLAIN = "text"
"""The reader for everything that no other reader takes."""
T = TypeVar("T", bound=type)
READERS: Registry[type] = Registry("reader")


class Reader(Protocol):
    """Makes text out of one format.

    Attributes:
        what: what messages call such a file, as "a PDF".
        suffixes: in small letters, with the dot; or whole file names.
        binary: its files cannot be taken for text, so that content alone may choose it.
    """

    what: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    binary: ClassVar[bool]

    def sniff(self, head: bytes) -> bool:
        """True if a file that begins like this is of this format beyond doubt."""
        return False

    def read(self, data: bytes, name: str) -> ExtractedText:
        """The text of a document.

        Args:
            data: at least one byte. name: its path, or "standard input".

        Raises:
            DocumentError: what is wrong, and what to do. Any other exception is reported as damage.
        """
        ...


def register(name: str) -> Callable[[T], T]:
    """Class decorator: makes a reader known.

    Raises:
        PluginError: it lacks a member, or the name is taken by another class.
    """

    def add(cls: T) -> T:
        members = ("what", "suffixes", "binary", "sniff", "read")
        missing = [member for member in members if not hasattr(cls, member)]
        if missing:
            raise PluginError(
                f"reader {name!r} has no {' and no '.join(missing)}", "see docs/readers.md"
            )
        READERS.add(name, cls, cls)
        return cls

    return add


@cache
def _load_entry_points() -> None:
    for point in entry_points(group="esa.readers"):
        try:
            point.load()
        except NOT_BLAMED:
            raise
        except BaseException as error:
            raise PluginError(
                f"reader {point.name!r} ({point.value}) does not load: {error}",
                "update or uninstall the package it comes from",
            ) from error


def choose(head: bytes, name: str) -> Reader:
    """The reader of a document that begins with `head`.

    Raises:
        PluginError: an installed package's readers do not load.
    """
    _load_entry_points()
    known = [cast(Reader, READERS[key]()) for key in reversed(list(READERS))]
    claims = [reader for reader in known if reader.sniff(head)]
    binary = [reader for reader in claims if reader.binary]
    path = PurePath(name.lower())
    named = [r for r in known if path.suffix in r.suffixes or path.name in r.suffixes]
    return [*binary, *named, *claims, cast(Reader, READERS[PLAIN]())][0]


def read_by(reader: Reader, data: bytes, name: str) -> ExtractedText:
    """The text of a document, by this reader and in this process.

    Raises:
        DocumentError: it cannot be read. PluginError: the reader breaks the rules. MemoryError.
    """
    try:
        extracted = reader.read(data, name)
    except (EsaError, MemoryError, *NOT_BLAMED):
        raise
    except BaseException as error:  # a library's, about bytes that nobody foresaw, or a plugin's
        raise damage_error(name, reader.what, f"{type(error).__name__}: {error}") from error
    starts = [mark.start for mark in extracted.marks]
    ends = (-1, *starts, len(extracted.text) + 1)
    if any(a >= b for a, b in pairwise(ends)) or "\r" in extracted.text:
        raise PluginError(
            f"the reader for {reader.what} gives marks out of order or outside the text, or \\r",
            "marks ascend from 0 to the text's length; lines end in \\n",
        )
    return extracted


def damage_error(name: str, what: str, reason: str) -> DocumentError:
    """The error for a document that breaks the rules of its format; `reason` may have lines."""
    reason = " ".join(reason.split())
    return DocumentError(
        f"{label(name)} cannot be read as {what}; it is damaged or cut off ({reason})",
        "fetch or save it again; if other programs open it, save a new copy with one of them",
    )
