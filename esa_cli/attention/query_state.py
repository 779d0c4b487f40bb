"""The state of one turn, shared by all layers: its phase, its question span, a selector's state.

The session makes a `QueryState` for each turn and passes it to the cache. Cropping does not change
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from esa_cli.attention.trace import ChunkTrace
from esa_cli.attention.turn_text import TurnText


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
    trace: Callable[[ChunkTrace], None] | None = None
    text: TurnText | None = field(default=None, repr=False)
    dense: bool = False
    stop: int = 0
    selector: Any = field(default=None, repr=False)
