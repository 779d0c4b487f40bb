"""Content hashes that name documents and segments.

A segment's name covers all tokens up to its end, so two documents with the same beginning share
their first segments. The fitted projections depend on the first tokens (`Layout.fit`), which are
therefore in every name.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence

from esa_cli.storage.library.formats.checksummed_file import FORMAT
from esa_cli.storage.library.formats.row_layout import Layout
from esa_cli.system.text import text_digest


def _hash(*parts: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def document_key(identity: str, text: str) -> str:
    """The key of a text that was prefilled with what `identity` names."""
    return _hash(b"document", bytes([FORMAT]), identity.encode(), text_digest(text).encode()).hex()


def _token_bytes(ids: Sequence[int]) -> bytes:
    numbers = array("q", ids)
    if array("H", [1]).tobytes() != b"\x01\x00":
        numbers.byteswap()
    return numbers.tobytes()


def segment_names(identity: str, ids: Sequence[int], layout: Layout) -> list[str]:
    """The names of the document's segments, each a hash of all tokens up to its end."""
    shape = json.dumps(layout.as_json(), sort_keys=True).encode()
    first = _token_bytes(ids[: layout.fit])
    last = _hash(b"segment", bytes([FORMAT]), identity.encode(), shape, first)
    names = []
    for start in range(0, len(ids), layout.segment):
        last = _hash(last, _token_bytes(ids[start : start + layout.segment]))
        names.append(last.hex())
    return names
