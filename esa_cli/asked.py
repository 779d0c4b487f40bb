"""One question as tokens, with the turns before it: what is put behind the documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import HistoryError, LengthError
from .preset import Preset
from .prompt import PromptTokens
from .reply import Turn


@dataclass(frozen=True)
class Asked:
    """Ids behind the documents.

    Args:
        before: of the earlier turns. ids: of the question's turn, up to where the answer begins.
        own: absolute positions [first, last) of the question's own words.
    """

    before: list[int]
    ids: list[int]
    own: tuple[int, int]

    @classmethod
    def of(
        cls, prompt: PromptTokens, question: str, prime: str, history: Sequence[Turn], start: int
    ) -> Asked:
        """The question behind `start` cached tokens. Raises UsageError when it is empty."""
        later = bool(history)
        ids, before = prompt.question(question, prime, later), prompt.history(history)
        first, last = (start + len(before) + at for at in prompt.own(question, later))
        return cls(before, ids, (first, last))

    def check(self, preset: Preset, answer: int) -> None:
        """Holds them, what is selected and the answer to the window.

        Only where `window.ending` has them all in view; else the first of them are cached tokens
        like any other.

        Raises:
            HistoryError: they are beyond it, with earlier turns. LengthError: without any.
        """
        window, asked = preset.window, len(self.before) + len(self.ids) + answer
        if window.ending is None:
            return
        room = preset.context - window.initial - window.selected
        if asked <= room:
            return
        beside = f"beside what is selected, the model's window has room for {room:,}"
        if self.before:
            raise HistoryError(
                f"the question, the turns before it and the answer take {asked:,} tokens; {beside}",
                "ask without the oldest turns",
            )
        raise LengthError(
            f"the question and the answer take {asked:,} tokens; {beside}", "ask a shorter question"
        )
