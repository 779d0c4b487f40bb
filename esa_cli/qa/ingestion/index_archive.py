"""A token index as the library stores it: its rows, its identity, and its document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from esa_cli.attention.step import KVStore
from esa_cli.qa.finding.reduced_keys import ReducedKeys
from esa_cli.qa.finding.segments import CONTEXT_TOKENS, SEGMENT_TOKENS
from esa_cli.qa.ingestion.archive import provenance
from esa_cli.qa.ingestion.tokenised_document import TokenisedDocument
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import Entry, Layout
from esa_cli.storage.library.disk_store import DiskStore
from esa_cli.storage.library.entry_writer import Writer
from esa_cli.storage.memory_store import split_rows

FORMAT = 1
"""Raised when indexes computed by an older version would differ."""
PIECE = 4 * SEGMENT_TOKENS
"""Tokens encoded at once; a segment of the library is whole pieces."""
INDEX = "index"
"""What `provenance` says in place of the kind of rows."""


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
    """Appends keys (n, R) to the one layer of an index."""
    store.append(*split_rows(keys, store.heads, store.shared))


def finish_index(writer: Writer, text: TokenisedDocument, preset: Preset) -> Entry:
    """Writes the rest of an index, and its document. Raises ResourceError: the disk is full."""
    document = text.document
    return writer.finish(
        text=document.text,
        offsets=text.offsets,
        marks=[list(mark) for mark in document.marks],
        provenance=provenance(document, preset, INDEX),
    )


def read_keys(store: DiskStore, layout: Layout) -> ReducedKeys:
    """All keys (N, R) of an index. Raises LibraryError: a row is damaged."""
    keys = ReducedKeys.empty(len(store), layout)
    for start, records in store.records(0, len(store)):
        keys.records[start : start + records.shape[0]] = records
    return keys
