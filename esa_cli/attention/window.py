"""Has a method's window sizes and the state of a question, and cuts forward calls into chunks.

This module does not import torch, so that presets are checked quickly."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class QuestionAndText:
    """The text of each token of the documents, which `pieces` returns, and of the question. The
    `results` of `once`, by key, last as long as the documents are cached."""

    question: str  # without the prompt around it
    pieces: Callable[[], Sequence[str]]
    results: MutableMapping[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Returns the result of `compute`, which is called once for each key."""
        if key not in self.results:
            self.results[key] = compute()
        value: T = self.results[key]
        return value


class Phase(Enum):
    """The kind of a forward call, by which it is decided which chunks select middle tokens."""

    AUTO = "auto"
    """Only the last chunk selects, which presumably has the question (stock `generate`)."""
    PREFILL = "prefill"
    """No chunk selects, unless `Method.reading` is `select`."""
    QUESTION = "question"
    """Every chunk selects. Single tokens from `answer_start` on belong to the answer."""


class SurveyPassComplete(Exception):
    """Raised to end the scoring pass of a question after the last layer that scores tokens."""


@dataclass
class QueryState:
    """The state of one question and its answer, which all layers share. Positions that are unknown
    are None, and so is the text in a prefill and in stock `generate`."""

    phase: Phase = Phase.AUTO
    # Where the turn begins, earlier turns of a conversation included; None stands for the start of
    # the first chunk of phase QUESTION.
    turn_start: int | None = None
    question: tuple[int, int] | None = None  # positions [first, last) of the question span
    answer_start: int | None = None
    surveying: bool = False  # whether this is the first of two passes, which is only for scores
    trace: Callable[[Any], None] | None = None  # called with each chunk's `ChunkTrace`
    text: QuestionAndText | None = field(default=None, repr=False)
    dense: bool = False  # whether the question had full attention; if so, the answer has, too
    stop: int = 0  # position after the last token processed
    selector: Any = field(default=None, repr=False)  # see `Selector.new_turn_state`


@dataclass(frozen=True)
class TokenChunk:
    """A chunk of a forward call, which is the tokens at absolute positions [start, stop)."""

    start: int
    stop: int
    select: bool  # whether the chunk attends to selected middle tokens
    decoding: bool = False  # whether the chunk is one token of the answer


@dataclass(frozen=True)
class Window:
    """How many initial, selected and local tokens a chunk attends to, and the chunk's size."""

    initial: int = 64  # l_I, the document's first tokens; always attended to
    selected: int = 1024  # k, middle tokens selected in each step
    local: int = 1024  # l_L, the tokens right before the current ones; always attended to
    chunk: int = 512  # l_C, current tokens that share one selection; longer inputs are cut
    # The largest number of cached tokens with full causal attention at true positions; None stands
    # for l_I + k + l_L, with which all tokens fit into the budget.
    dense: int | None = None
    # Number of tokens at the document's end that a question and its answer attend to; None stands
    # for the paper's rule, the l_L tokens before the current ones.
    ending: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            minimum = 1 if name == "chunk" else 0
            if value is not None and value < minimum:
                raise ValueError(f"window.{name} must be at least {minimum}, got {value}")

    @property
    def budget(self) -> int:
        """Number of cached tokens to which a chunk attends: initial + selected + local."""
        return self.initial + self.selected + self.local

    @property
    def full_attention_limit(self) -> int:
        """The largest number of cached tokens to which a chunk attends without selection."""
        return self.budget if self.dense is None else self.dense

    def has_full_attention(self, chunk_start: int) -> bool:
        """Whether a chunk that begins at position `chunk_start` attends to all cached tokens."""
        return chunk_start <= self.full_attention_limit

    def split_forward_call(
        self, reading_mode: str, call_start: int, call_stop: int, query_state: QueryState
    ) -> Iterator[TokenChunk]:
        """Cuts [call_start, call_stop) into chunks, of which only the first may be shorter."""
        count, size = call_stop - call_start, self.chunk
        if query_state.surveying and not self.has_full_attention(call_start):
            # One chunk: scores of the question's words are compared with those of the prompt.
            size = count
        asking = query_state.phase is Phase.QUESTION
        answer_start = query_state.answer_start
        answering = asking and (answer_start is None or call_start >= answer_start)
        decoding = count == 1 and (answering or query_state.phase is Phase.AUTO)
        low, high = call_start, call_start + (count - 1) % size + 1
        while low < call_stop:
            last = query_state.phase is Phase.AUTO and high == call_stop
            select = asking or reading_mode == "select" or last
            yield TokenChunk(low, high, select, decoding)
            low, high = high, high + size

    def count_local_tokens(self, chunk: TokenChunk, query_state: QueryState) -> int:
        """Returns the number of tokens right before a chunk that the chunk attends to in any case.

        If a question has full attention, the whole answer has full attention, however long it
        grows. If `ending` is set, the local tokens are the last `ending` tokens of the documents,
        and all earlier tokens of the question and the answer."""
        start = chunk.start
        if self.has_full_attention(start) or (chunk.decoding and query_state.dense):
            return start
        turn = query_state.turn_start if query_state.phase is Phase.QUESTION else None
        if turn is None or self.ending is None or start < turn:
            return min(self.local, start)
        return min(start, start - turn + self.ending)
