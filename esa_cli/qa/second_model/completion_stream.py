"""The answer of a chat completion: streamed as server-sent events, or whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from esa_cli.qa.second_model.answer_reader import WrittenAnswer


class BrokenAnswerError(Exception):
    """What the server sent is no chat completion; the message says why."""


class CompletionText:
    """Collects the text of one answer, piece by piece.

    `on_text` is called with each piece.
    """

    def __init__(self, on_text: Callable[[str], None] | None) -> None:
        self.on_text = on_text
        self.text, self.pieces = "", 0
        self.reason: str | None = None
        self.tokens: int | None = None

    def add(self, body: Any, part: str) -> None:
        """Takes one JSON object; `part` is `delta` in a stream, else `message`.

        Raises:
            BrokenAnswerError: it is an error, or of another shape.
        """
        if not isinstance(body, dict):
            raise BrokenAnswerError("it is no JSON object")
        if error := body.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise BrokenAnswerError(str(message or "the server reports an error"))
        choices, usage = body.get("choices"), body.get("usage")
        if not isinstance(choices, list):
            raise BrokenAnswerError("it has no choices")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.tokens = usage["completion_tokens"]
        for choice in choices[:1]:
            if not isinstance(choice, dict):
                raise BrokenAnswerError("a choice is no JSON object")
            said = choice.get(part)
            piece = said.get("content") if isinstance(said, dict) else None
            self.reason = choice.get("finish_reason") or self.reason
            if isinstance(piece, str) and piece:
                self.text += piece
                self.pieces += 1
                if self.on_text is not None:
                    self.on_text(piece)

    def follow(self, lines: Iterable[bytes]) -> None:
        """Takes the events of a stream up to its end. Raises BrokenAnswerError."""
        for line in lines:
            name, _, data = line.partition(b":")
            if name != b"data":
                continue
            if data.strip() == b"[DONE]":
                return
            self.add(decoded(data), "delta")
        if self.reason is None:
            raise BrokenAnswerError("it ended before its end")

    def answer(self) -> WrittenAnswer:
        """The answer so far; its tokens are the pieces where the server counts none."""
        tokens = self.pieces if self.tokens is None else self.tokens
        return WrittenAnswer(self.text.strip(), tokens, self.reason == "length")


def decoded(data: bytes) -> Any:
    """The JSON in some bytes. Raises BrokenAnswerError."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise BrokenAnswerError("it is no JSON") from error
