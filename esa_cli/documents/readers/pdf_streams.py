"""Checks a PDF's bytes before PDFium reads them: the size of its streams, and its count of pages.

Streams that are packed with Flate alone are unpacked once, pictures and fonts excepted. What is
encrypted or packed otherwise is bounded by the process that reads it (`reading_process`).
"""

from __future__ import annotations

import re
import zlib

from esa_cli.documents.reading_limits import PART, limit_error, mebibytes, reading_limits

_STREAM = re.compile(rb"(?<!end)stream\r?\n")
_APART = re.compile(rb"/Image\b|/FontFile|/Length1\b|/Type1C|/CIDFontType0C|/OpenType|/ICCBased")
_KIDS = re.compile(rb"/Kids\s{0,9}\[([^\[\]]*)\]")
_COUNT = re.compile(rb"/Count\s{1,9}(\d{1,9})")
_DICTIONARY = 512
"""Bytes before a stream in which its dictionary is looked for."""
_STEP = 1 << 14
_PIECE = 1 << 20


def check_streams(data: bytes, name: str) -> None:
    """Raises DocumentError when a stream has, or unpacks to, more bytes than a part may."""
    most = reading_limits().part
    for found in _STREAM.finditer(data):
        before = data[max(0, found.start() - _DICTIONARY) : found.start()]
        before = before[before.rfind(b" obj") + 1 :]
        if _APART.search(before) or b"/FlateDecode" not in before:
            continue
        if _unpacks_beyond(data, found.end(), most):
            what = f"its stream at byte {found.start():,}"
            raise limit_error(name, what, f"unpack to at most {mebibytes(most)}", PART)


def has_more_pages(data: bytes) -> bool:
    """Whether a node of the tree of pages has more kids than it counts pages: PDFium believes the
    count. Nodes that are packed are not seen."""
    for found in _KIDS.finditer(data):
        before = data[max(0, found.start() - _DICTIONARY) : found.start()]
        after = data[found.end() : found.end() + _DICTIONARY]
        node = before[before.rfind(b" obj") + 1 :] + after.partition(b"endobj")[0]
        count = _COUNT.search(node)
        if count and b"/Pages" in node and int(count[1]) < found[1].count(b"R"):
            return True
    return False


def _unpacks_beyond(data: bytes, at: int, most: int) -> bool:
    """Whether what is packed from byte `at` on has more than `most` bytes."""
    packed, size = zlib.decompressobj(), 0
    piece = data[at : at + _STEP]
    try:
        while piece and not packed.eof:
            size += len(packed.decompress(piece, _PIECE))
            if size > most:
                return True
            at += len(piece) - len(packed.unconsumed_tail)
            piece = data[at : at + _STEP]
    except zlib.error:
        pass  # encrypted or damaged, which PDFium says
    return False
