"""The state of one turn: which of its chunks select, where its question is, and its words."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TurnText:
    """The text of the documents by token, and the question's.

    Args:
        question: its own words, without the prompt's.
        pieces: returns the text of each token of the documents, from position 0 on; joined, they
            are the text. Later tokens (earlier turns, the question) have none.
        kept: what scores computed from the documents' text, see `once`; as long as they are
            cached.
    """

    question: str
    pieces: Callable[[], Sequence[str]]
    kept: MutableMapping[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned the first time for this key: an index of the documents, which all
        layers and all later questions about them use. A score is a good key, since it is frozen."""
        if key not in self.kept:
            self.kept[key] = make()
        value: T = self.kept[key]
        return value


class Phase(Enum):
    """Which chunks of a forward call select middle tokens."""

    AUTO = "auto"
    """The last one, which is assumed to contain the question. For stock `generate`."""
    PREFILL = "prefill"
    """None, unless `Method.reading` is `select`."""
    QUESTION = "question"
    """All. Single tokens from `answer_start` on are the answer's."""


class SurveyComplete(Exception):
    """Raised by the attention function in the survey pass, the first of a question's two passes,
    after the last scoring layer: the remaining layers are skipped. The session catches it."""


@dataclass
class QueryState:
    """The state of one turn, shared by all layers.

    Args:
        phase: see `Phase`.
        turn_start: position at which the turn begins, earlier turns of a conversation included;
            None: where the first chunk of phase QUESTION begins.
        question: positions [first, last) of the question span; None: not known.
        answer_start: position at which the answer begins; None: not known.
        surveying: this is the survey pass.
        trace: called with each chunk's `ChunkTrace`.
        text: the words of the turn, for scores by words; None: not known (stock `generate`,
            prefill).
        dense: the question was processed with full attention, so its answer is, too.
        stop: position after the last token processed.
        selector: the selector's turn state, see `Selector.new_turn_state`.
    """

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
