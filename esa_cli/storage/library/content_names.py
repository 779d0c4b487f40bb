"""Names of what is stored: a document by its text, a segment by all tokens up to its end.

A segment's name says which tokens stand before it, so two documents with the same beginning have
the same first segments. Eq. 4's maps depend on the first tokens alone (`Layout.fit`), which are
therefore in every name of the chain.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence

from esa_cli.storage.library.checksummed_file import FORMAT
from esa_cli.storage.library.row_layout import Layout
from esa_cli.system.digest import text_digest


def _hash(*parts: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def document_key(identity: str, text: str) -> str:
    """The key of a document: its text, read in the way that `identity` stands for."""
    return _hash(b"document", bytes([FORMAT]), identity.encode(), text_digest(text).encode()).hex()


def _token_bytes(ids: Sequence[int]) -> bytes:
    numbers = array("q", ids)
    if array("H", [1]).tobytes() != b"\x01\x00":
        numbers.byteswap()
    return numbers.tobytes()


def segment_names(identity: str, ids: Sequence[int], layout: Layout) -> list[str]:
    """One name a segment of the document's tokens; each depends on all tokens up to its end."""
    shape = json.dumps(layout.as_json(), sort_keys=True).encode()
    first = _token_bytes(ids[: layout.fit])
    last = _hash(b"segment", bytes([FORMAT]), identity.encode(), shape, first)
    names = []
    for start in range(0, len(ids), layout.segment):
        last = _hash(last, _token_bytes(ids[start : start + layout.segment]))
        names.append(last.hex())
    return names
