"""Damaged copies of files: bits flipped, cut, repeated, spliced with another, numbers changed; of
archives also the parts inside, packed again, so that damage gets past the checksums."""

from __future__ import annotations

import io
import random
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence

NUMBERS = (b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"18446744073709551616", b"1e309")
PIECES = (b"\0", b"\xff\xfe", b"\r", b"<", b">", b"&#0;", b"]]>", b'"', b"\xed\xa0\x80")
MOST_REPEATS = 64
"""Copies of a piece: more is a test of size, not of form."""


def flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 20))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    start, stop = _span(data, draw)
    return data[:start] if draw.random() < 0.5 else data[:start] + data[stop:]


def repeat(data: bytes, draw: random.Random) -> bytes:
    start, stop = _span(data, draw)
    return data[:stop] + data[start:stop] * draw.randrange(1, MOST_REPEATS) + data[stop:]


def insert(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(PIECES) * draw.choice((1, 1, 9)) + data[at:]


def change_number(data: bytes, draw: random.Random) -> bytes:
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return flip(data, draw)
    one = draw.choice(found)
    number = draw.choice((*NUMBERS, b"%d" % draw.randrange(1 << draw.randrange(1, 40))))
    return data[: one.start()] + number + data[one.end() :]


PLAIN: tuple[Callable[[bytes, random.Random], bytes], ...]
PLAIN = (flip, cut, repeat, insert, change_number)


def mutate(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """A damaged copy with one to four changes, at least a byte.

    Args:
        others: files whose pieces it may get.
    """
    for _ in range(draw.choice((1, 1, 2, 4))):
        data = _once(data, others, draw) or b"\n"
    return data


def _once(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    inside = draw.random() < 0.7
    if inside and data.startswith(b"PK\3\4") and (changed := _in_zip(data, draw)):
        return changed
    if others and draw.random() < 0.1:
        other = draw.choice(others)
        start, stop = _span(other, draw)
        at = draw.randrange(len(data) + 1)
        return data[:at] + other[start:stop] + data[at:]
    return draw.choice(PLAIN)(data, draw)


def _in_zip(data: bytes, draw: random.Random) -> bytes | None:
    """A part changed, doubled, removed or renamed; None where the archive itself is damaged."""
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = [(one, archive.read(one)) for one in archive.infolist()]
    except Exception:  # zipfile raises whatever its arithmetic meets
        return None
    if not parts:
        return None
    at, what = draw.randrange(len(parts)), draw.random()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # two parts of one name
        for number, (one, content) in enumerate(parts):
            name = one.filename
            if number == at and what < 0.85:
                content = draw.choice(PLAIN)(content or b"\n", draw)
            elif number == at and what < 0.9:
                continue
            elif number == at:
                name = draw.choice(parts)[0].filename
            archive.writestr(zipfile.ZipInfo(name), content, one.compress_type)
    return out.getvalue()


def _span(data: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(data))
    return start, min(len(data), start + 1 + int(draw.expovariate(1 / 40)))
