"""The chunks of current tokens C into which a forward call is cut: which of them select, and how
many local tokens each has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from esa_cli.attention.method import Method
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.window import Window


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


def chunks_of(method: Method, start: int, stop: int, query: QueryState) -> Iterator[Chunk]:
    """The chunks of a forward call over [start, stop), by the phase of the turn."""
    asking = query.phase is Phase.QUESTION
    size, last = method.window.chunk, query.phase is Phase.AUTO
    if query.surveying and not is_dense(method.window, start):
        # One chunk: scores of the question's words are compared with those of the prompt around.
        size = stop - start
    # A question may be a single token, too; the session says where its answer begins.
    answering = last
    if asking:
        answering = query.answer_start is None or start >= query.answer_start
    return chunks(start, stop, size, last, asking or method.reading == "select", answering)


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
