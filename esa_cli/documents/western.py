"""Tells Western text in Windows-1252 (and so Latin-1) from its look-alikes.

Statistics of languages leave this most common of the old encodings in doubt, because a dozen
others share its letters. Bytes settle it: curly quotes and Western accents in mostly plain text,
and none of the bytes that Central European, Baltic, Turkish, Cyrillic, DOS or Macintosh text would
also use.
"""

from __future__ import annotations

import re

# Euro sign, ellipsis, quotes, dashes, bullet, no-break space, pound, section, guillemets, degree,
# middle dot, inverted marks, ordinals.
_SIGNS = bytes([0x80, 0x85, *range(0x91, 0x98), 0xA0, 0xA3, 0xA7, 0xAB, 0xB0, 0xB7, 0xBB])
_SIGNS += bytes([0xA1, 0xAA])
# Accented letters of French, German, Spanish, Portuguese, Italian, Dutch and the Nordic languages;
# without eth, y acute and thorn, where Turkish and Baltic encodings have letters of their own.
_LETTERS = bytes(
    code
    for code in range(0xC0, 0x100)
    if code not in (0xD0, 0xD7, 0xDD, 0xDE) and code not in (0xF0, 0xF7, 0xFD, 0xFE)
)
_LIGATURES = b"\x8c\x9c"
# The question mark of Spanish stands before a capital; the same byte is a Polish letter.
_QUESTION = re.compile(rb"(?:^|[\s\"(\xab])\xbf(?=[A-Z\xc0-\xdc])")
_HIGH = re.compile(rb"[\x80-\xff]")
# A capital with an accent inside a word of small letters: another encoding's small letter.
_MISPLACED = re.compile(rb"[a-z][\xc0-\xde][a-z]")
# Two accented letters after each other are rare in Western words, and the rule in Cyrillic.
_RUN = re.compile(rb"[\xc0-\xff]{3}")
_MOST_FOREIGN = 0.3


def is_western(data: bytes) -> bool:
    """Whether the bytes are, beyond reasonable doubt, text in Windows-1252."""
    high = _HIGH.findall(data)
    letters = sum(byte < 128 and chr(byte).isalpha() for byte in data)
    if not high or len(high) > _MOST_FOREIGN * letters:
        return False
    used = set(b"".join(high))
    if len(_QUESTION.findall(data)) == data.count(b"\xbf"):
        used.discard(0xBF)
    if not used <= set(_SIGNS + _LETTERS + _LIGATURES):
        return False
    if 0xF5 in used and 0xFB in used:  # the Hungarian long o and u
        return False
    return not _MISPLACED.search(data) and not _RUN.search(data)
