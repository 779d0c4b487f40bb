"""A chat completion request, checked: what is asked, after what, about what, and how.

Unknown parameters are ignored, as OpenAI's own servers of this kind do. Known ones that would
change the answer and are not served are refused. Earlier messages become turns; a system message
is the first turn, without an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from esa_cli.qa.reply import Turn

MAX_DOCUMENTS = 64
MAX_EVIDENCE = 50
MAX_TOKENS = 32_768
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_NOT_SERVED = ("tools", "functions", "stop", "logprobs", "audio", "logit_bias")


class ApiError(Exception):
    """An answer that is an error, in OpenAI's shape.

    Args:
        param: the field of the request that is at fault. retry: seconds after which to come again;
            None where coming again does not help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry = retry

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": self.message,
            "type": kinds.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


@dataclass(frozen=True)
class ChatRequest:
    """What a request asks for; None where it leaves the choice to the preset."""

    question: str
    history: tuple[Turn, ...] = ()
    documents: tuple[str, ...] | None = None
    stream: bool = False
    stream_usage: bool = False
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    evidence: int = 3


def parse(data: bytes) -> ChatRequest:
    """Raises ApiError 400."""
    try:
        body = json.loads(data.decode("utf-8"))
        json.dumps(body, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON in UTF-8: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body is not a JSON object")
    _refuse(body)
    question, history = _messages(body.get("messages"))
    options = body.get("stream_options")
    top_p = _number(body, "top_p", 0, 1)
    longest = _whole(body, "max_completion_tokens", 1, MAX_TOKENS)
    seed = _whole(body, "seed", None)
    evidence = _whole(body, "evidence", 0, MAX_EVIDENCE)
    return ChatRequest(
        question,
        history,
        _documents(body.get("documents")),
        _flag(body, "stream"),
        isinstance(options, dict) and options.get("include_usage") is True,
        _whole(body, "max_tokens", 1, MAX_TOKENS) if longest is None else longest,
        _number(body, "temperature", 0, 2),
        None if top_p is None else max(top_p, 1e-6),  # 0 is the likeliest word alone
        None if seed is None else seed % 2**63,
        3 if evidence is None else evidence,
    )


def _refuse(body: Mapping[str, Any]) -> None:
    for name in _NOT_SERVED:
        if body.get(name):
            raise ApiError(400, f"{name} is not supported", name, "unsupported_parameter")
    if (_whole(body, "n", 1) or 1) != 1:
        raise ApiError(400, "n must be 1", "n", "unsupported_parameter")
    form = body.get("response_format")
    if form and (not isinstance(form, dict) or form.get("type") != "text"):
        raise ApiError(400, "only text can be answered", "response_format", "unsupported_parameter")


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", name)
    return value is True


def _number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not low <= value <= high:  # false for nan, too
        raise ApiError(400, f"{name} must be a number from {low:g} to {high:g}", name)
    return float(value)


def _whole(
    body: Mapping[str, Any], name: str, low: int | None, high: int | None = None
) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    plain = isinstance(value, int) and not isinstance(value, bool)
    if not plain or (low is not None and value < low) or (high is not None and value > high):
        span = f" from {low}" if low is not None else ""
        span += f" to {high}" if high is not None else ""
        raise ApiError(400, f"{name} must be a whole number{span}", name)
    return int(value)


def _documents(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ApiError(400, "documents must be a list of paths", "documents")
    if not 0 < len(value) <= MAX_DOCUMENTS:
        raise ApiError(400, f"documents must be 1 to {MAX_DOCUMENTS} paths", "documents")
    return tuple(dict.fromkeys(value))


def _messages(value: Any) -> tuple[str, tuple[Turn, ...]]:
    """The last message is the question; those before it are turns."""
    if not isinstance(value, list) or not value:
        raise ApiError(400, "messages must be a list with at least one message", "messages")
    said = [_message(one, f"messages[{index}]") for index, one in enumerate(value)]
    role, question = said.pop()
    if role != "user":
        raise ApiError(400, "the last message must be the user's", "messages")
    turns = [Turn(text, "") for role, text in said if role == "system" and text]
    asked: str | None = None
    answers: list[str] = []
    for role, text in (one for one in said if one[0] != "system"):
        if role == "user":
            if answers:
                turns.append(Turn(asked or "", "\n\n".join(answers)))
                asked, answers = None, []
            asked = text if asked is None else f"{asked}\n\n{text}"
        else:
            answers.append(text)
    if answers:
        turns.append(Turn(asked or "", "\n\n".join(answers)))
    elif asked is not None:  # two questions in a row are one
        question = f"{asked}\n\n{question}"
    if not question.strip():
        raise ApiError(400, "the question is empty", "messages")
    return question, tuple(turns)


def _message(value: Any, where: str) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise ApiError(400, f"{where} is not an object", where)
    role = _ROLES.get(str(value.get("role")))
    if role is None or value.get("tool_calls") or value.get("function_call"):
        raise ApiError(400, f"{where}: system, user and assistant may speak; no tools", where)
    content = value.get("content")
    if isinstance(content, str):
        return role, content
    if content is None and role == "assistant":
        return role, ""
    if not isinstance(content, list):
        raise ApiError(400, f"{where}.content must be text, or a list of texts", where)
    return role, "\n".join(_part(one, where) for one in content)


def _part(value: Any, where: str) -> str:
    if isinstance(value, dict) and value.get("type") == "text":
        text = value.get("text")
        if isinstance(text, str):
            return text
    kind = value.get("type") if isinstance(value, dict) else None
    raise ApiError(400, f"{where}: only text can be read, not {str(kind)[:40]}", where)
