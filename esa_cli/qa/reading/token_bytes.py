"""The bytes that each token of a vocabulary stands for.

Decoding one token alone loses what its neighbours complete: half a character becomes a replacement
character, and some decoders drop a first space.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
SPACE, BYTE_SPACE = "▁", "Ġ"
"""How a space is written in the vocabularies of sentencepiece and of byte-level BPE."""


def token_bytes(tokenizer: Any) -> Callable[[int], bytes]:
    """A function from a token id to the token's bytes; none for ids without a token."""
    example = tokenizer("a b", add_special_tokens=False)["input_ids"]
    names = "".join(tokenizer.convert_ids_to_tokens(example))
    letters = byte_letters()

    @cache
    def piece(token: int) -> bytes:
        name = tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return b""
        if BYTE_SPACE in names:
            known = all(letter in letters for letter in name)
            return bytes(letters[letter] for letter in name) if known else name.encode()
        if SPACE in names:
            found = BYTE_FALLBACK.fullmatch(name)
            return bytes([int(found[1], 16)]) if found else name.replace(SPACE, " ").encode()
        return str(tokenizer.decode([token])).encode()

    return piece


def byte_letters() -> dict[str, int]:
    """The letter that byte-level BPE writes for each byte: Latin-1's own where it can be seen, the
    others from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(seen)]
    return {chr(byte): byte for byte in seen} | {
        chr(0x100 + at): byte for at, byte in enumerate(hidden)
    }
