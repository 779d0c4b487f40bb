"""A question as tokens, with the turns before it: what follows the documents in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from esa_cli.attention.window import Window
from esa_cli.errors import HistoryError, LengthError
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.answering.reply import Turn


@dataclass(frozen=True)
class EncodedQuestion:
    """Ids that follow the documents in the cache.

    Args:
        before: of the earlier turns. ids: of the question's turn, up to where the answer begins.
        span: absolute positions [first, last) of the question's text.
        answer_prefix: number of `ids`, the last ones, that the answer begins with.
        start: cached tokens before all of them.
    """

    before: list[int]
    ids: list[int]
    span: tuple[int, int]
    answer_prefix: int = 0
    start: int = 0

    @property
    def ids_before_answer(self) -> list[int]:
        """`ids` without the answer prefix."""
        return self.ids[: len(self.ids) - self.answer_prefix]

    @classmethod
    def of(
        cls, prompt: PromptTokens, question: str, prime: str, history: Sequence[Turn], start: int
    ) -> EncodedQuestion:
        """The question after `start` cached tokens. Raises UsageError when it is empty."""
        later = bool(history)
        ids, before = prompt.question(question, prime, later), prompt.history(history)
        first, last = (start + len(before) + at for at in prompt.question_span(question, later))
        prime_ids = len(ids) - len(prompt.question(question, "", later))
        return cls(before, ids, (first, last), prime_ids, start)

    def last(self, chunk: int) -> int:
        """Position of the last chunk of the question's turn, earlier turns not included."""
        return self.start + len(self.before) + max(0, len(self.ids) - chunk)

    def check(self, window: Window, context: int, answer: int) -> None:
        """Checks that the tokens attended to fit the model's window, the answer included.

        With full attention these are the document, else I and the selected tokens, and only where
        `window.ending` keeps the whole turn local: otherwise its first tokens are cached tokens
        like any other.

        Raises:
            HistoryError: they do not fit, with earlier turns. LengthError: without any.
        """
        asked = len(self.before) + len(self.ids) + answer
        if self.last(window.chunk) <= window.dense_below:
            room, what = context - self.start, "the document, all of it in view"
        elif window.ending is not None:
            seen = window.initial + window.selected + window.ending
            room, what = context - seen, "what is selected"
        else:
            return
        if asked <= room:
            return
        beside = f"beside {what}, the model's window has room for {room:,}"
        if self.before:
            raise HistoryError(
                f"the question, the turns before it and the answer take {asked:,} tokens; {beside}",
                "ask without the oldest turns",
            )
        raise LengthError(
            f"the question and the answer take {asked:,} tokens; {beside}", "ask a shorter question"
        )
