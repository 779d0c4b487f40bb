"""The prompt of a reader: numbered passages with their places, the question, and what is asked."""

from __future__ import annotations

from collections.abc import Sequence

from esa_cli.qa.answering.reply import NOT_TOLD, Evidence, Turn

SYSTEM = (
    "You answer questions about documents. Use only the numbered passages, which were found in "
    "them for the question; add nothing that they do not say. Answer shortly, in the language of "
    "the question, and quote where a quotation answers it. If the passages do not tell the answer, "
    f'say "{NOT_TOLD}" and nothing else.'
)
QUESTION = "Question: {question}"


def numbered(passages: Sequence[Evidence]) -> str:
    """The passages, each below its number and its place."""
    parts = []
    for number, passage in enumerate(passages, 1):
        page = "" if passage.page is None else f", page {passage.page}"
        chapter = f", {passage.chapter}" if passage.chapter else ""
        text = " ".join(passage.text.split())
        parts.append(f"[{number}] {passage.document}{page}{chapter}\n{text}")
    return "\n\n".join(parts)


def messages(
    question: str, passages: Sequence[Evidence], history: Sequence[Turn]
) -> list[dict[str, str]]:
    """Chat messages: the passages come before the first question, as in a local reader's prompt.

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
