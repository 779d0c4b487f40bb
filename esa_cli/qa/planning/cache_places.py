"""Where a cache's rows are, on the device or in host memory, and how many bytes they take there."""

from __future__ import annotations

from dataclasses import dataclass

from esa_cli.attention.window import Window
from esa_cli.qa.planning.costs import FEED, Costs
from esa_cli.storage.growing_rows import RESERVE

STORED_AT_ONCE = 8192
"""Most tokens whose rows are in memory while a document is stored in the library."""


def near_tokens(window: Window, longest: int = 0) -> int:
    """Tokens of a layer in host memory that its device has at most: L, and what is read at once.

    Args:
        longest: window of the model's own, in layers that do not run the method.
    """
    return max(window.local, window.dense_below, longest) + FEED + window.chunk


@dataclass(frozen=True)
class RowPlaces:
    """Bytes of keys and values `on_device` and `on_host`, with the last `host_layers` there."""

    host_layers: int
    on_device: int
    on_host: int


def row_places(costs: Costs, tokens: int, size: int, host_layers: int) -> RowPlaces:
    """The places of so many tokens' rows, of `size` bytes a number."""
    shape = costs.shape
    there = costs.keys_values(tokens, size) // shape.rows * (shape.rows - host_layers)
    kinds, width = 1 if shape.shared else 2, shape.groups * shape.dim * size
    # What is asked about an opened document is on the device.
    kept = near_tokens(costs.method.window, shape.window) + RESERVE
    near = kept * shape.row * size
    return RowPlaces(host_layers, there + host_layers * near, host_layers * kinds * width * tokens)


def fewest_host_layers(
    costs: Costs, tokens: int, size: int, room: int, layers: int | None = None
) -> int:
    """The fewest layers whose rows must be in host memory so that the device's take `room` bytes at
    most; all of them where that is not enough.

    Args:
        layers: that the device has; None: all.
    """
    every = costs.shape.rows
    own = every if layers is None else layers
    resident, near = (row_places(costs, tokens, size, count).on_device for count in (0, every))
    lacking, saved = resident * own // every - room, (resident - near) // every
    if lacking <= 0 or saved <= 0:
        return 0
    return min(own, -(-lacking // saved))


def tokens_at_once(tokens: int, cache: str) -> int:
    """Tokens whose rows are in memory at once."""
    return min(tokens, STORED_AT_ONCE) if cache == "disk" else tokens
