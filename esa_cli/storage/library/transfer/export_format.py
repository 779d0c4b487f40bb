"""The format of a file of `esa library export`: a tar archive of which every byte is determined.

    esa-export        a checksummed file: one line `DIGEST SIZE NAME` for each member behind it
    documents/*.doc   the manifests
    segments/*, fits/*, documents/*.text, documents/*.tokens, documents/*.states
                      as they are in the library, each once, however many documents need it

Nothing is compressed. A member's header and padding follow from its name and size, so the reader
compares them with the bytes that must be there: no other kind of member, and no flipped bit, can
hide in them. A digest is BLAKE2b of 256 bits.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from esa_cli.errors import LibraryError
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.library_paths import LibraryPaths

INDEX = "esa-export"
BLOCK = 512
END = bytes(2 * BLOCK)
"""What ends a tar archive."""
MOST_INDEX = 64 << 20
"""Bytes of the index, at most: some 450,000 members."""
MOST_MANIFEST = 64 << 20
PENDING = "0" * 64
"""In place of a digest that is not known yet."""
_LINE = re.compile(r"([0-9a-f]{64}) (0|[1-9][0-9]{0,14}) ([a-z]+/[0-9a-z.-]+)")
_KINDS = re.compile(r"documents/.*\.(?:doc|text|tokens|states)|segments/.*|fits/.*")
_OCTAL = 8**11


class Member(NamedTuple):
    """One file in an export: its name in the library, bytes, digest, and where its bytes begin."""

    name: str
    size: int
    digest: str
    start: int

    @property
    def stop(self) -> int:
        """Where its padding ends."""
        return self.start + padded(self.size)


def new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32)


def padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def tar_header(name: str, size: int) -> bytes:
    """The header (512 bytes) of a file that only its owner may read, without owner and date."""
    length = b"%011o\0" % size if size < _OCTAL else b"\x80" + size.to_bytes(11, "big")
    fields = (name.encode(), b"0000600\0", b"0000000\0", b"0000000\0", length, b"%011o\0" % 0)
    rest = struct.pack("=1s100s6s2s247s", b"0", b"", b"ustar\0", b"00", b"")
    start = struct.pack("=100s8s8s8s12s12s", *fields)
    total = sum(start) + sum(rest) + 8 * ord(" ")
    return start + b"%06o\0 " % total + rest


def index_bytes(members: Iterable[tuple[str, int, str]]) -> bytes:
    """The first member, of (name, size, digest); its length does not depend on the digests."""
    given = list(members)
    lines = "".join(f"{digest} {size} {name}\n" for name, size, digest in given)
    has_states = any(name.endswith(".states") for name, _, _ in given)
    form = checksummed_file.WITH_STATES if has_states else checksummed_file.FORMAT
    return checksummed_file.encode("export", lines.encode(), form)[0]


def members_of(sizes: Iterable[tuple[str, int, str]], start: int) -> list[Member]:
    """The members in their order, the first header at `start`."""
    found = []
    for name, size, digest in sizes:
        found.append(Member(name, size, digest, start + BLOCK))
        start = found[-1].stop
    return found


def read_index(data: bytes, path: Path) -> list[Member]:
    """The members that an index names; `path` is the export's, for messages. Raises
    ForeignVersionError: it is of another format. LibraryError: it is damaged, or names what is no
    file of a library, or one twice."""
    lines = checksummed_file.decode(data, "export", path, "").split(b"\n")
    made, given = LibraryPaths(Path()), list[tuple[str, int, str]]()
    for line in lines[:-1]:
        found = _LINE.fullmatch(line.decode("ascii", "replace"))
        name = found[3] if found else ""
        if not found or not _KINDS.fullmatch(name) or not made.is_whole(made.root / name):
            shown = line.decode("utf-8", "replace")[80:180] if not found else name
            raise LibraryError(f"it names {shown!r}, which is no file of a library")
        given.append((name, int(found[2]), found[1]))
    if lines[-1]:
        raise LibraryError("its index does not end with a line")
    (name, times), *_ = Counter(name for name, _, _ in given).most_common(1) or [("", 0)]
    if times > 1:
        raise LibraryError(f"it has {name} twice")
    return members_of(given, BLOCK + padded(len(data)))
