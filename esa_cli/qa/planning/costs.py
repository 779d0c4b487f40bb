"""The cost of a method on a model: bytes of the cache, working memory, and operations of a prefill.

    keys and values   tokens * (layers * 2 G D + R) numbers; R only when the score reads them, and
                      G D where the keys are the values (MLA: one head of rotary part and latent)
    operations        tokens * (2 P + layers * attention + scoring)

Layers are those with attention. R is summed over them, which need not be alike. A state is of one
document, however long it is. P counts the weights outside the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Moments
from esa_cli.attention.selection import KEEP_ELEMENTS, SumScore, TopK
from esa_cli.attention.step import BLOCK_ELEMENTS
from esa_cli.errors import PresetError
from esa_cli.models.text_passes.small_decoder import MOST_BYTES
from esa_cli.qa.finding.finder import FinderSizes
from esa_cli.qa.finding.late_interaction import CONTEXT_TOKENS, PIECE, SEGMENT_TOKENS
from esa_cli.qa.planning.model_shape import Shape
from esa_cli.storage.memory_store import RESERVE

FEED = 1024
"""Tokens handed to the model at once in prefill; the method cuts them into its chunks. Measured on
2 cores: 512 to 1,024 is best, larger activations leave the CPU's cache."""
LIBRARIES = 400 << 20
"""Bytes of torch, transformers and Python themselves."""
STATES = 4
"""The states of a cache's layers, two snapshots that were asked for, and that of the last call."""
TOKEN_BYTES = 64
"""Bytes of a token beside its rows: text, id and offsets, and their copies when they are stored."""
STORED_AT_ONCE = 8192
"""Most tokens whose rows are in memory while a document is stored in the library."""


@dataclass(frozen=True)
class Costs:
    """The cost of one method on one model; `rank` is of `rank_of`, `body` of `Weights`."""

    shape: Shape
    method: Method
    rank: int
    on_gpu: bool
    body: int = 0

    def stored(self, tokens: int) -> int:
        """Rows allocated for `tokens`; RAM that was never written to is not taken."""
        return tokens + RESERVE if self.on_gpu else tokens

    def keys_values(self, tokens: int, size: int) -> int:
        """Bytes, with numbers of `size` bytes."""
        return self.stored(tokens) * self.shape.numbers * size

    def reduced_keys(self, tokens: int, size: int) -> int:
        return self.stored(tokens) * self.rank * size

    def activations(self, rows: int) -> int:
        """Numbers of a layer's activations for so many tokens."""
        shape = self.shape
        projections = (shape.heads + 2 * shape.groups) * shape.dim
        return rows * (6 * shape.hidden + 3 * shape.inner + 3 * projections)

    def working(self, tokens: int, size: int) -> int:
        """Activations, gathered keys, scores, the compressor's moments, states, the tokens
        themselves, and the libraries."""
        shape, window = self.shape, self.method.window
        folded = shape.groups * shape.dim
        attended = min(tokens, window.budget) + window.chunk
        gathered = 6 * attended * folded + 2 * window.chunk * shape.heads * shape.dim
        rows = window.chunk * (1 if self.method.score.features else shape.heads)
        scores = 4 * (min(KEEP_ELEMENTS, rows * tokens) + 2 * min(BLOCK_ELEMENTS, rows * tokens))
        fitting = 0
        if self.method.score.features and self.method.compressor.fit_tokens:
            fitting = 8 * folded * folded * (2 * shape.rows + 8)
        rest = scores + fitting + STATES * shape.states(size) + tokens * TOKEN_BYTES + LIBRARIES
        return (self.activations(FEED) + gathered) * size + rest

    def operations(self, tokens: int) -> float:
        """Floating-point operations of reading; a multiplication and an addition are two."""
        shape, window = self.shape, self.method.window
        selects = self.method.reading == "select"
        seen = window.initial + window.local + window.chunk / 2
        seen += window.selected if selects else 0
        attention = 4 * shape.heads * shape.dim * min(seen, tokens / 2)
        scoring = 2.0 * shape.groups * shape.dim * self.rank
        if selects:
            width = self.rank or shape.rows * shape.groups * shape.dim
            whole = shape.rows * shape.heads * shape.dim
            width = width if self.method.score.features else whole
            scoring += 2 * width * max(0.0, tokens / 2 - window.local - window.initial)
        return tokens * (2 * self.body + shape.rows * attention + scoring)

    @property
    def ratios(self) -> tuple[float, float] | None:
        """Two ratios of the paper (R of one layer): operations of a step beside those of full
        attention, (2 R + 1) / (4 H D + 3 H) in a long document, and numbers of reduced keys beside
        those of keys and values, R / 2 G D. None: the method does not select by the paper's score.
        """
        shape, method = self.shape, self.method
        if not (isinstance(method.selector, TopK) and isinstance(method.score, SumScore)):
            return None
        scored = self.rank / shape.rows or shape.groups * shape.dim
        attended = shape.heads * (4 * shape.dim + 3)
        return (2 * scored + 1) / attended, self.rank / shape.numbers


def rank_of(method: Method, shape: Shape) -> int:
    """R, the reduced keys' width that the compressor stores, summed over the layers; 0 for none.
    Raises PresetError: the compressor is not for a model of this shape."""
    if not method.score.features:
        return 0
    folded = shape.groups * shape.dim
    if method.compressor.fit_tokens:
        return shape.rows * method.compressor.stored_rank(folded)
    maps = [method.compressor.fit(layer, Moments()) for layer in range(shape.layers)]
    try:
        return sum(one.keys(torch.zeros(1, folded)).shape[1] for one in maps if one is not None)
    except RuntimeError as error:
        raise PresetError(
            f"the compressor does not fit this model: folded keys have {folded} dimensions",
            "it was made for another model",
        ) from error


SEQUENCE = SEGMENT_TOKENS + CONTEXT_TOKENS
"""Tokens that pass the model for each segment."""


@dataclass(frozen=True)
class PassageCosts(Costs):
    """The cost of reading one prompt at a time, whatever the documents' length; with `finder`, that
    of the token index beside it."""

    finder: FinderSizes | None = None

    def keys_values(self, tokens: int, size: int) -> int:
        return 0

    def reduced_keys(self, tokens: int, size: int) -> int:
        """As they are stored, whatever the model's type."""
        return tokens * self.finder.layout.row_bytes if self.finder else 0

    def working(self, tokens: int, size: int) -> int:
        if self.finder is None:
            return super().working(0, size) + tokens * TOKEN_BYTES
        shape, rows = self.shape, PIECE // SEGMENT_TOKENS * SEQUENCE
        computed = (self.activations(rows) + rows * SEQUENCE * shape.heads) * size
        copied = self.body * size
        if self.on_gpu or copied > MOST_BYTES:
            copied = 0  # else the CPU has fused copies of the layers, for finding and for reading
        copied += copied * self.finder.layers // shape.layers
        return computed + tokens * TOKEN_BYTES + copied + LIBRARIES

    def operations(self, tokens: int) -> float:
        if self.finder is None:
            return 0.0
        shape = self.shape
        attention = shape.layers * 4 * shape.heads * shape.dim * SEQUENCE / 2
        share = self.finder.layers / shape.layers * SEQUENCE / SEGMENT_TOKENS
        maps = 2 * shape.hidden * self.finder.layout.width
        return tokens * (share * (2 * self.body + attention) + maps)


@dataclass(frozen=True)
class RowPlaces:
    """Bytes of keys and values `on_device` and `on_host`, with the last `host_layers` there."""

    host_layers: int
    on_device: int
    on_host: int


def row_places(costs: Costs, tokens: int, size: int, host_layers: int) -> RowPlaces:
    """The places of so many tokens' rows, of `size` bytes a number. A layer in host memory keeps
    its local tokens on the device, and those that are read at once."""
    shape, window = costs.shape, costs.method.window
    there = costs.keys_values(tokens, size) // shape.rows * (shape.rows - host_layers)
    # What is asked about an opened document is on the device, too.
    local = max(window.local, window.dense_below, shape.window)
    near = (local + FEED + window.chunk + RESERVE) * shape.row * size
    return RowPlaces(
        host_layers, there + host_layers * near, host_layers * shape.row * size * tokens
    )


def fewest_host_layers(
    costs: Costs, tokens: int, size: int, room: int, layers: int | None = None
) -> int:
    """The fewest layers whose rows must be in host memory so that the device's take `room` bytes at
    most; all of them where that is not enough.

    Args:
        layers: that the device has; None: all.
    """
    total = costs.shape.rows
    own = total if layers is None else layers
    resident, near = (row_places(costs, tokens, size, count).on_device for count in (0, total))
    lacking, saved = resident * own // total - room, (resident - near) // total
    if lacking <= 0 or saved <= 0:
        return 0
    return min(own, -(-lacking // saved))
