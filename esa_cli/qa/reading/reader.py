"""What answers a question from passages, and the words by which another model is asked.

`span` quotes the most probable span, `chat` has a model of transformers word the answer, `server`
one on a server with OpenAI's chat completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from esa_cli.qa.answering.reply import NOT_TOLD, Reply, Turn
from esa_cli.qa.finding.passage import Passage

MOST_PASSAGES = 8
"""Passages that another model is shown."""


@dataclass(frozen=True)
class Sampling:
    """Longest answer in tokens (None: the reader's own choice), temperature (0: greedy), top_p;
    seed: None for any."""

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


def unheard(piece: str) -> None:
    """An `on_text` that does nothing."""


class Reader(Protocol):
    """Answers from passages."""

    @property
    def name(self) -> str:
        """The model's name, as a person knows it."""

    @property
    def nbytes(self) -> int:
        """Bytes of this machine's memory that its weights take beside the model that finds."""

    def answer(
        self,
        question: str,
        passages: Sequence[Passage],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None] = unheard,
    ) -> Reply:
        """The answer from passages, best first, without evidence and times.

        Args:
            history: earlier turns, oldest first. on_text: called with each piece of the answer; an
                exception raised in it ends the answer and passes through.

        Raises ReaderError: no answer came. HistoryError, LengthError: it does not fit its window.
        """

    def close(self) -> None:
        """Ends its connections, if there are any; it may be used again."""


SYSTEM = (
    "You answer questions about documents. Use only the numbered passages, which were found in "
    "them for the question; add nothing that they do not say. Answer shortly, in the language of "
    "the question, and quote where a quotation answers it. If the passages do not tell the answer, "
    f'say "{NOT_TOLD}" and nothing else.'
)
QUESTION = "Question: {question}"


def numbered(passages: Sequence[Passage]) -> str:
    """The passages, each below its number and its place."""
    parts = []
    for number, passage in enumerate(passages, 1):
        page = "" if passage.page is None else f", page {passage.page}"
        chapter = f", {passage.chapter}" if passage.chapter else ""
        text = " ".join(passage.text.split())
        parts.append(f"[{number}] {passage.document}{page}{chapter}\n{text}")
    return "\n\n".join(parts)


def messages(
    question: str, passages: Sequence[Passage], history: Sequence[Turn]
) -> list[dict[str, str]]:
    """Chat messages: the passages come before the first question, as in the prompt of `chat`.

    Turns without an answer are instructions of a client, and join the system message.
    """
    system = [SYSTEM, *(turn.question for turn in history if not turn.answer)]
    out = [{"role": "system", "content": "\n\n".join(system)}]
    turns = [turn for turn in history if turn.answer]
    asked = [*(turn.question for turn in turns), question]
    for number, text in enumerate(asked):
        content = QUESTION.format(question=text.strip())
        if number == 0:
            content = f"Passages:\n\n{numbered(passages)}\n\n{content}"
        else:
            out.append({"role": "assistant", "content": turns[number - 1].answer})
        out.append({"role": "user", "content": content})
    return out
