"""Answers in the shapes of OpenAI's chat completions, and what is added to them: the evidence."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.responses import JSONResponse

from esa_cli.qa.reply import Reply


@dataclass(frozen=True)
class Shape:
    """The parts that all pieces of one answer share.

    Args:
        missing: what the asked documents lack; filled when they are open, before the answer ends.
    """

    model: str
    missing: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def whole(self, reply: Reply) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": reply.text,
            "refusal": None,
            **self._extra(reply),
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _end(reply)}
        return {**self._body("chat.completion", [choice]), "usage": usage(reply)}

    def chunk(self, delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}
        return self._body("chat.completion.chunk", [choice])

    def last(self, reply: Reply) -> dict[str, Any]:
        return {**self.chunk({}, _end(reply)), **self._extra(reply)}

    def counts(self, reply: Reply) -> dict[str, Any]:
        return {**self._body("chat.completion.chunk", []), "usage": usage(reply)}

    def _extra(self, reply: Reply) -> dict[str, Any]:
        extra = {"evidence": [asdict(one) for one in reply.evidence], "found": reply.found}
        return {**extra, "missing": self.missing} if self.missing else extra


def _end(reply: Reply) -> str:
    return "length" if reply.cut else "stop"


def usage(reply: Reply) -> dict[str, int]:
    """Tokens of the question with its history, and of the answer; documents are not counted."""
    asked, answered = reply.question_tokens, reply.answer_tokens
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
    }


def model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "esa"}


def _written(data: Any) -> bytes:
    """As JSON; names of files that are not UTF-8 can only be escaped."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "backslashreplace")


class Whole(JSONResponse):
    """A body as a response."""

    def render(self, content: Any) -> bytes:
        return _written(content)


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: %s\n\n" % _written(data)


DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"
