"""What reading takes: bytes of the KV cache, working memory, and floating-point operations.

    keys and values   tokens * (layers * 2 G D + R) numbers; R only when the score reads them, and
                      G D where the keys are the values (MLA: one head of rotary part and latent)
    operations        tokens * (2 P + layers * attention + scoring)

Layers are those with attention. R is summed over them, which need not be alike. A state is of one
document, however long it is. P counts the weights outside the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from esa_cli.errors import PresetError
from esa_cli.models.text_passes.small_decoder import MOST_BYTES
from esa_cli.qa.finding.finder import FinderSizes
from esa_cli.qa.finding.late_interaction import CONTEXT_TOKENS, PIECE, SEGMENT_TOKENS
from esa_cli.qa.planning.model_shape import Shape
from esa_cli.storage.memory_store import RESERVE

if TYPE_CHECKING:
    from esa_cli.attention.method import Method
    from esa_cli.attention.parts import Compressor

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
SEQUENCE = SEGMENT_TOKENS + CONTEXT_TOKENS
"""Tokens that pass the model for each segment of an index."""


@dataclass(frozen=True)
class Costs:
    """The cost of answers from text; documents are read for an index, or not at all (`finder` is
    None). `body` is of `Weights`; `size` below is the bytes of a number."""

    shape: Shape
    on_gpu: bool
    body: int = 0
    finder: FinderSizes | None = None

    def activations(self, rows: int) -> int:
        """Numbers of a layer's activations for so many tokens."""
        shape = self.shape
        projections = (shape.heads + 2 * shape.groups) * shape.dim
        return rows * (6 * shape.hidden + 3 * shape.inner + 3 * projections)

    def keys_values(self, tokens: int, size: int, host_layers: int = 0) -> tuple[int, int]:
        """Bytes of keys and values on the device, and in host memory."""
        return 0, 0

    def reduced_keys(self, tokens: int, size: int) -> int:
        """Bytes of an index or of reduced keys."""
        return tokens * self.finder.layout.row_bytes if self.finder else 0

    def working(self, tokens: int, size: int) -> int:
        """Bytes of activations, fused or gathered tensors, tokens and libraries."""
        shape, fixed = self.shape, tokens * TOKEN_BYTES + LIBRARIES
        if self.finder is None:
            return self.activations(FEED) * size + fixed
        rows = PIECE // SEGMENT_TOKENS * SEQUENCE
        computed = (self.activations(rows) + rows * SEQUENCE * shape.heads) * size
        copied = self.body * size
        if self.on_gpu or copied > MOST_BYTES:
            copied = 0  # else the CPU has fused copies of the layers, for finding and for reading
        return computed + copied + copied * self.finder.layers // shape.layers + fixed

    def operations(self, tokens: int) -> float:
        """Of reading; a multiplication and an addition are two."""
        if self.finder is None:
            return 0.0
        shape = self.shape
        attention = shape.layers * 4 * shape.heads * shape.dim * SEQUENCE / 2
        share = self.finder.layers / shape.layers * SEQUENCE / SEGMENT_TOKENS
        maps = 2 * shape.hidden * self.finder.layout.width
        return tokens * (share * (2 * self.body + attention) + maps)

    @property
    def ratios(self) -> tuple[float, float] | None:
        """Of the paper's selection; see `RowCosts`."""
        return None


@dataclass(frozen=True, kw_only=True)
class RowCosts(Costs):
    """The cost of KV rows that a method selects from."""

    method: Method

    @cached_property
    def rank(self) -> int:
        """R, the width of reduced keys summed over the layers. Raises PresetError: the compressor
        is not for a model of this shape."""
        folded, score = self.shape.groups * self.shape.dim, self.method.score
        return sum(reduced_widths(self.method.compressor, self.shape.rows, folded, score.features))

    def keys_values(self, tokens: int, size: int, host_layers: int = 0) -> tuple[int, int]:
        """A layer in host memory keeps on the device its local tokens, those that are read at once,
        and what is asked about an opened document."""
        shape, window = self.shape, self.method.window
        on_device = self._allocated(tokens) * shape.numbers * size
        on_device = on_device // shape.rows * (shape.rows - host_layers)
        local = max(window.local, window.dense_below, shape.window)
        near = (local + FEED + window.chunk + RESERVE) * shape.row * size
        return on_device + host_layers * near, host_layers * shape.row * size * tokens

    def fewest_host_layers(self, tokens: int, size: int, room: int) -> int:
        """The fewest layers whose rows must be in host memory so that the device's take `room`
        bytes at most; all of them where that is not enough."""
        layers = self.shape.rows
        whole, least = (self.keys_values(tokens, size, count)[0] for count in (0, layers))
        saved = (whole - least) // layers
        if whole <= room or saved <= 0:
            return 0
        return min(layers, -(-(whole - room) // saved))

    def reduced_keys(self, tokens: int, size: int) -> int:
        return self._allocated(tokens) * self.rank * size

    def _allocated(self, tokens: int) -> int:
        """Rows; RAM that was never written to is not taken."""
        return tokens + RESERVE if self.on_gpu else tokens

    def working(self, tokens: int, size: int) -> int:
        """Beside the activations: gathered keys, scores, the compressor's moments and states."""
        from esa_cli.attention.selection import KEEP_ELEMENTS
        from esa_cli.attention.step import BLOCK_ELEMENTS

        shape, window, score = self.shape, self.method.window, self.method.score
        folded = shape.groups * shape.dim
        attended = min(tokens, window.budget) + window.chunk
        gathered = 6 * attended * folded + 2 * window.chunk * shape.heads * shape.dim
        rows = window.chunk * (1 if score.features else shape.heads)
        scores = 4 * (min(KEEP_ELEMENTS, rows * tokens) + 2 * min(BLOCK_ELEMENTS, rows * tokens))
        fitting = 0
        if score.features and self.method.compressor.fit_tokens:
            fitting = 8 * folded * folded * (2 * shape.rows + 8)
        rest = scores + fitting + STATES * shape.states(size)
        return super().working(tokens, size) + gathered * size + rest

    def operations(self, tokens: int) -> float:
        shape, window = self.shape, self.method.window
        selects, score = self.method.reading == "select", self.method.score
        seen = window.initial + window.local + window.chunk / 2
        seen += window.selected if selects else 0
        attention = 4 * shape.heads * shape.dim * min(seen, tokens / 2)
        scoring = 2.0 * shape.groups * shape.dim * self.rank
        if selects:
            width = shape.rows * shape.heads * shape.dim
            if score.features:
                width = self.rank or shape.rows * shape.groups * shape.dim
            scoring += 2 * width * max(0.0, tokens / 2 - window.local - window.initial)
        return tokens * (2 * self.body + shape.rows * attention + scoring)

    @property
    def ratios(self) -> tuple[float, float] | None:
        """Two ratios of the paper (R of one layer): operations of a step beside those of full
        attention, (2 R + 1) / (4 H D + 3 H) in a long document, and numbers of reduced keys beside
        those of keys and values, R / 2 G D. None: the method does not select by the paper's score.
        """
        from esa_cli.attention.selection import SumScore, TopK

        shape, method = self.shape, self.method
        if not (isinstance(method.selector, TopK) and isinstance(method.score, SumScore)):
            return None
        scored = self.rank / shape.rows or shape.groups * shape.dim
        attended = shape.heads * (4 * shape.dim + 3)
        return (2 * scored + 1) / attended, self.rank / shape.numbers


def reduced_widths(
    compressor: Compressor, layers: int, folded: int, scored: bool = True
) -> Sequence[int]:
    """R of each layer with keys of G D = `folded` numbers; nothing where the score reads no reduced
    keys. Raises PresetError: the compressor is not for a model of this shape."""
    from esa_cli.attention.parts import Moments

    if not scored:
        return ()
    if compressor.fit_tokens:
        return (compressor.stored_rank(folded),) * layers
    maps = [compressor.fit(layer, Moments()) for layer in range(layers)]
    try:
        return tuple(0 if m is None else m.keys(torch.zeros(1, folded)).shape[1] for m in maps)
    except RuntimeError as error:
        raise PresetError(
            f"the compressor does not fit this model: folded keys have {folded} dimensions",
            "it was made for another model",
        ) from error
