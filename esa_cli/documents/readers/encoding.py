"""From the bytes of a plain text to its characters: refuses binary files and doubtful encodings.

The order is: byte order mark, UTF-16 by its NUL bytes, strict UTF-8, Windows-1252 where its bytes
leave no doubt (statistics do: a dozen encodings share its letters), and last charset-normalizer.
Its answer is taken only when enough bytes speak for it and no other encoding comes close. Other
text is refused with the command that converts it.
"""

from __future__ import annotations

import codecs
import re
import string
from contextlib import suppress

from esa_cli.documents.readers.text_builder import STDIN, label
from esa_cli.errors import DocumentError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark its own begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
BYTE_ORDER_MARKS = tuple(mark for mark, _ in _MARKS)
WIDER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
    "tis-620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
    "euc_kr": "cp949",
}  # fmt: skip
"""Declared encoding -> what browsers read it as, and pages rely on: the same characters, and
more."""
_ASCII = bytes(range(32, 127)) + b"\\u0041 +AGE-"
"""What encodings of files have in common, but not EBCDIC nor notations such as `unicode_escape`,
some of which take minutes."""

_BY_HAND = {
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": (
        "an old Office file (doc, xls, ppt)",
        "open it and save it as docx, xlsx or pptx, without a password",
    ),
    b"PK\3\4": (
        "a ZIP archive",
        "unpack it and give the file inside, or, if a program can open it, save it as docx or xlsx",
    ),
    b"\x1f\x8b\x08": ("gzip-compressed data", "unpack it first: gunzip -k {name}"),
    b"{\\rtf": ("an RTF document", "convert it: pandoc -t plain {name} -o document.txt"),
}
"""Beginning of a file -> what it is, and how to get text out of it."""

# Bytes of Windows-1252 that text of other encodings does not use for something else: signs, and
# accented letters of Western languages without those where Turkish and Baltic encodings differ.
_SIGNS = bytes(
    [0x80, 0x85, *range(0x91, 0x98), 0xA0, 0xA1, 0xA3, 0xA7, 0xAA, 0xAB, 0xB0, 0xB7, 0xBB]
)
_OTHERS = (0xD0, 0xD7, 0xDD, 0xDE, 0xF0, 0xF7, 0xFD, 0xFE)
_WESTERN = frozenset(_SIGNS + b"\x8c\x9c") | set(range(0xC0, 0x100)).difference(_OTHERS)
# The question mark of Spanish stands before a capital; the same byte is a Polish letter.
_QUESTION = re.compile(rb"(?:^|[\s\"(\xab])\xbf(?=[A-Z\xc0-\xdc])")
_HIGH = bytes(range(0x80, 0x100))
# A capital with an accent inside a word of small letters is another encoding's small letter; three
# accented letters in a row are rare in Western words, and the rule in Cyrillic.
_NOT_WESTERN = re.compile(rb"[a-z][\xc0-\xde][a-z]|[\xc0-\xff]{3}")
_MOST_FOREIGN = 0.3

# charset-normalizer says how messy a decoding looks (chaos) and how much like a language it
# reads (coherence), both from 0 to 1. These bounds refuse every wrong answer seen among samples
# in a dozen European and Asian languages, at the price of refusing many right ones.
_SAMPLE = 1 << 20
_MIN_FOREIGN_BYTES = 16
_MAX_CHAOS = 0.06
_MIN_COHERENCE = 0.25
_CLEAR_LEAD = 0.1


def decode(data: bytes, name: str) -> tuple[str, str]:
    """The text of a document and the Python name of its encoding.

    Args:
        data: at least one byte. name: its path, or "standard input".

    Raises:
        DocumentError: it is binary, or its encoding is broken or cannot be told.
    """
    encoding = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "")
    encoding = encoding or _utf16_order(data)
    if not encoding:
        _refuse_binary(data, name)
    try:
        return data.decode(encoding or "utf-8"), encoding or "utf-8"
    except UnicodeDecodeError as error:
        problem = f"starts as {encoding or 'UTF-8'} but breaks at byte {error.start}"
    if not encoding:
        guess, clear = ("cp1252", True) if looks_like_cp1252(data) else guess_encoding(data)
        with suppress(UnicodeDecodeError):  # only a sample was looked at
            if clear:
                return data.decode(guess), guess
        problem += ", and its encoding cannot be told for sure"
        encoding = guess or "ENCODING"
    path = "FILE" if name == STDIN else name
    raise DocumentError(
        f"{label(name)} {problem}",
        "convert it to UTF-8, naming the encoding it is in, for example: "
        f"iconv -f {encoding.upper()} -t UTF-8 {path} > utf8.txt",
    )


def declared_codec(charset: str) -> str:
    """The Python name of the encoding that a file declares. Raises LookupError, ValueError: there
    is none, or it is not used for files."""
    codec = codecs.lookup(charset).name
    if codec == "idna":  # of names of hosts
        raise LookupError(charset)
    if not codec.startswith(("utf-16", "utf-32")) and _ASCII.decode(codec) != _ASCII.decode():
        raise LookupError(charset)
    return codec


def guess_encoding(data: bytes) -> tuple[str, bool]:
    """The most likely encoding, empty if there is none; and whether it is clearly the best."""
    from charset_normalizer import from_bytes

    sample = data[:_SAMPLE]
    if len(data) > _SAMPLE:
        # A character cut in half at the end would rule out the right multi-byte encoding.
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    matches = list(from_bytes(sample))
    if not matches:
        return "", False
    best, *others = matches
    good = best.chaos <= _MAX_CHAOS and best.coherence >= _MIN_COHERENCE
    close = any(
        other.coherence > best.coherence - _CLEAR_LEAD and other.chaos < best.chaos + _CLEAR_LEAD
        for other in others
    )
    few = sum(byte > 127 for byte in sample) < _MIN_FOREIGN_BYTES
    # Encodings differ in few letters: a byte the sample lacks may be the one that tells them apart.
    unseen = data.translate(None, bytes(set(sample)))
    return best.encoding, good and not (close or few or unseen)


def looks_like_cp1252(data: bytes) -> bool:
    """True if the bytes are, beyond reasonable doubt, text in Windows-1252."""
    high = len(data) - len(data.translate(None, _HIGH))
    letters = len(data) - len(data.translate(None, string.ascii_letters.encode()))
    if not high or high > _MOST_FOREIGN * letters:
        return False
    used = set(data).intersection(_HIGH)
    if len(_QUESTION.findall(data)) == data.count(b"\xbf"):
        used.discard(0xBF)
    if not used <= _WESTERN or used >= {0xF5, 0xFB}:  # the Hungarian long o and u
        return False
    return not _NOT_WESTERN.search(data)


def _refuse_binary(data: bytes, name: str) -> None:
    for magic, (what, hint) in _BY_HAND.items():
        if data.startswith(magic):
            raise DocumentError(
                f"{label(name)} looks like {what}, which is not among the formats that are read",
                hint.format(name=name),
            )
    if b"\0" in data:
        raise DocumentError(
            f"{label(name)} is binary: it has a NUL at byte {data.index(0)}",
            "give a document with text in it; unpack an archive first",
        )


def is_binary(head: bytes) -> bool:
    """True if a file that begins like this is not text, whatever its encoding."""
    if head.startswith(BYTE_ORDER_MARKS):
        return False
    return head.startswith(tuple(_BY_HAND)) or (b"\0" in head and not _utf16_order(head))


def _utf16_order(data: bytes) -> str:
    """The byte order of UTF-16 without a mark: every other byte of the beginning is mostly NUL."""
    head = data[:4096]
    half = len(head) // 2
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if half > 1 and odd > 0.7 * half and even == 0:
        return "utf-16le"
    return "utf-16be" if half > 1 and even > 0.7 * half and odd == 0 else ""
