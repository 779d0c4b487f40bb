"""A token index as the library stores it: its layout, its rows, and its identity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.interfaces import KVStore
from esa_cli.qa.finding.token_encoder import CONTEXT_TOKENS, SEGMENT_TOKENS
from esa_cli.storage.library import SEGMENT, Layout
from esa_cli.storage.library.int8_rows import decode, encode

FORMAT = 1
"""Raised when indexes computed by an older version would differ."""
PIECE = 4 * SEGMENT_TOKENS
"""Tokens encoded at once; a segment of the library is whole pieces."""
INDEX = "index"
"""What `provenance` says in place of the kind of rows."""


def index_layout(dim: int) -> Layout:
    """The layout of a token index with reduced keys of R = `dim` numbers, an even number.

    A reduced key is a row of one layer with one head: its first half stands in the place of the
    key, its second half in that of the value, each with a scale of its own. Eight bits, for the
    keys have unit length. Nothing is reduced further, and no prompt's head is before the text.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"the numbers of a reduced key must be even, got {dim}")
    return Layout(layers=1, heads=1, dim=dim // 2, dtype="float32", kind="int8", segment=SEGMENT)


def index_identity(model: Mapping[str, Any], digest: str) -> str:
    """What an index depends on, beside its text, as JSON.

    Args:
        model: of `cache_key.model_facts`. digest: the encoder's.
    """
    facts = {
        "index": FORMAT,
        "model": model,
        "encoder": digest,
        "segment_tokens": SEGMENT_TOKENS,
        "context_tokens": CONTEXT_TOKENS,
    }
    return json.dumps(facts, sort_keys=True)


def append_keys(store: KVStore, keys: Tensor) -> None:
    """Appends reduced keys (n, R) to the one layer of an index."""
    halves = keys.view(keys.shape[0], 2, -1)
    store.append(halves[:, 0][None], halves[:, 1][None])


def read_keys(store: KVStore) -> Tensor:
    """All reduced keys (N, R) of an index. Raises LibraryError: a row is damaged."""
    keys = torch.empty(len(store), 2 * store.dim)
    for start in range(0, len(store), SEGMENT):  # a book's halves would be a second copy of it
        stop = min(start + SEGMENT, len(store))
        first, second = store.span(start, stop)
        keys[start:stop] = torch.cat((first[0], second[0]), dim=1)
    return keys


def rounded(keys: Tensor) -> Tensor:
    """Reduced keys (n, R) as they would be read from the library."""
    layout = index_layout(keys.shape[1])
    return decode(encode(keys, layout), layout)
