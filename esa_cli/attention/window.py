"""Window sizes, the state of one turn, and the chunks into which a forward call is cut.

This module does not import torch, so that presets are checked quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TurnText:
    """The text of the documents, token by token, and the text of the question.

    Args:
        question: the question's own words, without the prompt around them.
        pieces: returns the text of each token of the documents; later tokens have none.
        kept: results of `once` by key, as long as the documents are cached."""

    question: str
    pieces: Callable[[], Sequence[str]]
    kept: MutableMapping[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Returns what `compute` returned the first time for this key, such as an index of the
        documents that all layers and later questions share."""
        if key not in self.kept:
            self.kept[key] = compute()
        value: T = self.kept[key]
        return value


class Phase(Enum):
    """The phase of a forward call, which determines the chunks that select middle tokens."""

    AUTO = "auto"
    """The last one, which is assumed to contain the question. For stock `generate`."""
    PREFILL = "prefill"
    """None, unless `Method.reading` is `select`."""
    QUESTION = "question"
    """All. Single tokens from `answer_start` on are the answer's."""


class SurveyComplete(Exception):
    """Ends the survey pass, the first of a question's two passes, after the last scoring layer."""


@dataclass
class QueryState:
    """The state of one turn (a question with its answer), shared by all layers.

    Args:
        turn_start: position at which the turn begins, earlier turns of a conversation included;
            None: where the first chunk of phase QUESTION begins.
        question: positions [first, last) of the question span; None: not known.
        answer_start: position at which the answer begins; None: not known.
        surveying: this is the survey pass.
        trace: called with each chunk's `ChunkTrace`.
        text: the words of the turn; None: not known (stock `generate`, prefill).
        dense: the question was processed with full attention, so its answer is, too.
        stop: position after the last token processed.
        selector: the selector's turn state, see `Selector.new_turn_state`."""

    phase: Phase = Phase.AUTO
    turn_start: int | None = None
    question: tuple[int, int] | None = None
    answer_start: int | None = None
    surveying: bool = False
    trace: Callable[[Any], None] | None = None
    text: TurnText | None = field(default=None, repr=False)
    dense: bool = False
    stop: int = 0
    selector: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class Chunk:
    """One chunk of a forward call: the tokens at absolute positions [start, stop).

    Args:
        select: the chunk attends to selected middle tokens. decoding: it is a token of the answer.
    """

    start: int
    stop: int
    select: bool
    decoding: bool = False

    @property
    def size(self) -> int:
        """Number of tokens in the chunk, C."""
        return self.stop - self.start


@dataclass(frozen=True)
class Window:
    """How many tokens of each kind take part in a step (Section 3.1).

    Args:
        initial: l_I, the document's first tokens; always attended to.
        selected: k, middle tokens selected in each step.
        local: l_L, the tokens right before the current ones; always attended to.
        chunk: l_C, current tokens that share one selection; longer inputs are cut into chunks.
        ending: tokens at the document's end that a question and its answer attend to, besides
            themselves. None: the paper's rule, the l_L tokens before the current ones.
        dense: while at most this many tokens are cached, attention is full and causal at true
            positions. None: l_I + k + l_L, that is, while everything fits."""

    initial: int = 64
    selected: int = 1024
    local: int = 1024
    chunk: int = 512
    dense: int | None = None
    ending: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            minimum = 1 if name == "chunk" else 0
            if value is not None and value < minimum:
                raise ValueError(f"window.{name} must be at least {minimum}, got {value}")

    @property
    def budget(self) -> int:
        """Number of cached tokens attended to in a step: l_I + k + l_L."""
        return self.initial + self.selected + self.local

    @property
    def dense_below(self) -> int:
        """The largest number of cached tokens for which attention is full."""
        return self.budget if self.dense is None else self.dense

    def is_dense(self, start: int) -> bool:
        """Whether a chunk that begins at position `start` attends to all cached tokens."""
        return start <= self.dense_below

    def cut_chunks(self, reading: str, start: int, stop: int, query: QueryState) -> Iterator[Chunk]:
        """Cuts a forward call over [start, stop) into chunks of at most l_C tokens, a short one
        first."""
        count, size = stop - start, self.chunk
        if query.surveying and not self.is_dense(start):
            # One chunk: scores of the question's words are compared with those of the prompt.
            size = count
        asking = query.phase is Phase.QUESTION
        answering = asking and (query.answer_start is None or start >= query.answer_start)
        decoding = count == 1 and (answering or query.phase is Phase.AUTO)
        low, high = start, start + (count - 1) % size + 1
        while low < stop:
            last = query.phase is Phase.AUTO and high == stop
            select = asking or reading == "select" or last
            yield Chunk(low, high, select, decoding)
            low, high = high, high + size

    def count_local_tokens(self, chunk: Chunk, query: QueryState) -> int:
        """Returns l_L, the number of local tokens, for a chunk.

        If the question was processed with full attention, so is its whole answer, even when it
        grows past `dense`; otherwise the document would drop out of view in mid-answer. With
        `ending`, L begins that many tokens before the turn and contains question and answer."""
        start = chunk.start
        if self.is_dense(start) or (chunk.decoding and query.dense):
            return start
        turn = query.turn_start if query.phase is Phase.QUESTION else None
        if turn is None or self.ending is None or start < turn:
            return min(self.local, start)
        return min(start, start - turn + self.ending)
