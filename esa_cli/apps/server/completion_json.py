"""The JSON of answers in the shape of OpenAI's chat completions, with their evidence."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from esa_cli.qa.answering.reply import HeatMap, Reply


@dataclass(frozen=True)
class Completion:
    """The bodies of one answer: whole, or as chunks of a stream.

    Args:
        missing: what the documents' texts lack; filled when they are open, before the answer ends.
        heat: the heat maps of the documents, if they were asked for; filled with the answer.
    """

    model: str
    missing: list[str] = field(default_factory=list)
    heat: list[dict[str, Any]] = field(default_factory=list)
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, reply: Reply) -> dict[str, Any]:
        message = {"role": "assistant", "content": reply.text, "refusal": None}
        choice = self._choice("message", message | self._evidence(reply), _finish_reason(reply))
        return self._body("chat.completion", [choice], usage=_usage(reply))

    def chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        return self._body("chat.completion.chunk", [self._choice("delta", delta, None)])

    def last_chunk(self, reply: Reply) -> dict[str, Any]:
        choice = self._choice("delta", {}, _finish_reason(reply))
        return self._body("chat.completion.chunk", [choice], **self._evidence(reply))

    def usage_chunk(self, reply: Reply) -> dict[str, Any]:
        return self._body("chat.completion.chunk", [], usage=_usage(reply))

    def _choice(self, kind: str, value: dict[str, Any], end: str | None) -> dict[str, Any]:
        return {"index": 0, kind: value, "logprobs": None, "finish_reason": end}

    def _body(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        about = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**about, "choices": choices, **more}

    def _evidence(self, reply: Reply) -> dict[str, Any]:
        extra = {"evidence": [asdict(one) for one in reply.evidence], "found": reply.found}
        extra["answered_from"] = reply.answered_from
        extra["read"] = reply.read
        extra["quotation"] = None if reply.quotation is None else asdict(reply.quotation)
        more = {"missing": self.missing, "heat": self.heat}
        return extra | {name: value for name, value in more.items() if value}


def _finish_reason(reply: Reply) -> str:
    return "length" if reply.cut else "stop"


def _usage(reply: Reply) -> dict[str, int]:
    """Tokens of the question with its history, and of the answer; documents are not counted."""
    question, answer = reply.question_tokens, reply.answer_tokens
    return {
        "prompt_tokens": question,
        "completion_tokens": answer,
        "total_tokens": question + answer,
    }


def heat_of(ids: Iterable[str], maps: Iterable[HeatMap]) -> list[dict[str, Any]]:
    """Heat maps with the ids of their documents."""
    return [
        {"document": one.document, "id": id, "spans": one.spans}
        for id, one in zip(ids, maps, strict=True)
    ]


def model_card(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "esa"}


def json_bytes(data: Any) -> bytes:
    """As JSON. Names of files that are not UTF-8 are escaped, which pydantic refuses to do."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "backslashreplace")
