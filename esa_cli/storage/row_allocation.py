"""How much memory is allocated for rows: the one place that stores allocate by and plans count by.

On the processor rows are in segments that are never copied (1,024 rows, then doubling up to
16,384), and the system gives no memory for what was not written to. On a GPU they are one segment,
with a reserve for questions and answers.
"""

from __future__ import annotations

import torch

FIRST_SEGMENT = 1024
LAST_SEGMENT = 16384
GROWTH = 1.25
"""Length of a copied segment, in that of the full one, where nothing was said of its length."""
RESERVE = 2048
"""Rows behind a document's on a GPU, for questions and answers; as many again when they are full,
of which plans know nothing."""


def in_one_segment(device: torch.device) -> bool:
    """Whether rows on this device are one segment."""
    return device.type == "cuda"


def next_segment(rows: int) -> int:
    """Length of the segment behind so many rows."""
    return min(LAST_SEGMENT, max(FIRST_SEGMENT, rows))


def segments(rows: int) -> list[int]:
    """Lengths of the segments for so many rows."""
    found, there = list[int](), 0
    while there < rows:
        found.append(next_segment(there))
        there += found[-1]
    return found


def one_segment(rows: int, expected: int = 0, there: int = 0) -> int:
    """Length of the one segment for so many rows.

    Args:
        expected: rows there will be; 0: not known. there: length of the segment that is full.
    """
    if not there:
        return max(rows, expected or FIRST_SEGMENT)
    return max(rows, there + RESERVE if expected else int(GROWTH * there))


def with_reserve(tokens: int) -> int:
    """Rows allocated on a GPU for a document of so many tokens and what is asked about it."""
    return one_segment(tokens, tokens + RESERVE)


def pinned_bytes(nbytes: int) -> int:
    """Bytes that torch takes for so many of page-locked memory: a power of two."""
    return 1 << (nbytes - 1).bit_length() if nbytes else 0
