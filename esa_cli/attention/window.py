"""Window sizes of a method, and the chunks into which a forward call is cut by them.

Without torch, so that presets are checked quickly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from esa_cli.attention.query_state import Phase, QueryState


@dataclass(frozen=True)
class Window:
    """How many tokens of each kind take part in a step (Section 3.1), in tokens.

    Args:
        initial: l_I, the document's first tokens; always attended to.
        selected: k, middle tokens chosen in each step.
        local: l_L, the tokens right before the current ones; always attended to.
        chunk: l_C, current tokens that share one selection; longer inputs are cut into chunks.
        ending: tokens at the document's end that stay in view while a question about it is read and
            answered; question and answer themselves always do. None: the paper's rule, the l_L
            tokens before the current ones, whatever they are.
        dense: while at most this many tokens are cached, attention is full and causal at true
            positions. None: l_I + k + l_L, that is, while everything fits.
    """

    initial: int = 64
    selected: int = 1024
    local: int = 1024
    chunk: int = 512
    dense: int | None = None
    ending: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 1 if name == "chunk" else 0
            if value is not None and value < least:
                raise ValueError(f"window.{name} must be at least {least}, got {value}")

    @property
    def budget(self) -> int:
        """Cached tokens attended to in a step: l_I + k + l_L."""
        return self.initial + self.selected + self.local

    @property
    def dense_below(self) -> int:
        return self.budget if self.dense is None else self.dense


@dataclass(frozen=True)
class Chunk:
    """One chunk [start, stop) of a forward call, absolute positions.

    Args:
        select: it attends to selected middle tokens. decoding: it is one token of the answer.
    """

    start: int
    stop: int
    select: bool
    decoding: bool = False

    @property
    def size(self) -> int:
        return self.stop - self.start


def chunks(
    start: int, stop: int, size: int, last: bool, every: bool, answering: bool = True
) -> Iterator[Chunk]:
    """Cuts [start, stop) into chunks of at most `size`, the short one first.

    Args:
        last: the last chunk selects (it holds the question). every: all chunks select.
        answering: a call of one token is a token of the answer.
    """
    low = start
    high = start + ((stop - start - 1) % size) + 1
    while low < stop:
        select = every or (last and high == stop)
        yield Chunk(low, high, select, decoding=answering and stop - start == 1)
        low, high = high, high + size


def chunks_of(
    window: Window, reading: str, start: int, stop: int, query: QueryState
) -> Iterator[Chunk]:
    """The chunks of a forward call over [start, stop), by the phase of the turn.

    Args:
        reading: see `Method`.
    """
    asking = query.phase is Phase.QUESTION
    size, last = window.chunk, query.phase is Phase.AUTO
    if query.surveying and not is_dense(window, start):
        # One chunk: scores of the question's words are compared with those of the prompt around.
        size = stop - start
    # A question may be a single token, too; the session says where its answer begins.
    answering = last
    if asking:
        answering = query.answer_start is None or start >= query.answer_start
    return chunks(start, stop, size, last, asking or reading == "select", answering)


def is_dense(window: Window, start: int) -> bool:
    """Whether a chunk that starts at `start` attends to everything cached."""
    return start <= window.dense_below


def local_tokens(window: Window, chunk: Chunk, query: QueryState) -> int:
    """l_L of a chunk.

    If the question was processed with full attention, so is its whole answer, even when it grows
    past `window.dense`; otherwise the document would drop out of view in mid-answer. With
    `window.ending`, L begins that many tokens before the turn and contains question and answer.
    """
    start = chunk.start
    if is_dense(window, start) or (chunk.decoding and query.dense):
        return start
    turn = query.turn_start if query.phase is Phase.QUESTION else None
    if turn is None or window.ending is None or start < turn:
        return min(window.local, start)
    return min(start, start - turn + window.ending)
