"""The JSON of OpenAI's chat completions: requests, checked; answers with their evidence; errors.

Unknown parameters of a request are ignored, as by other servers of this protocol. Known ones that
would change the answer and are not supported are refused. A broken library or a full disk is for
whoever runs the server: the client gets neither paths nor hints of it.
"""

from __future__ import annotations

import json
import reprlib
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import groupby, takewhile
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from esa_cli.apps.server.worker import RefusedError
from esa_cli.errors import (
    DiskError,
    DocumentError,
    EsaError,
    LengthError,
    LibraryError,
    ReaderError,
    ResourceError,
    UsageError,
)
from esa_cli.qa.answering.reply import HeatMap, Reply, Turn
from esa_cli.system.machine import memory_ran_out

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class ApiError(RefusedError):
    """An error that the client gets for an answer.

    Args:
        param: the parameter of the request that is at fault. retry: seconds after which to try
            again; None where that does not help.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry: int | None = None

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": _KINDS.get(self.status, kind)}
        return {"error": {**error, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """OpenAI's client tries again unless a header forbids it."""
        headers = {"x-should-retry": "false"} if self.retry is None else {}
        if self.retry is not None:
            headers["retry-after"] = str(self.retry)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def is_of_server(error: Exception) -> bool:
    """True if whoever runs the server must act: its library is broken, its disk full, or the reader
    that words answers gone."""
    return isinstance(error, LibraryError | DiskError | ReaderError)


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException) and error.status_code == 404:
        return ApiError(404, "there is no such path; questions go to POST /v1/chat/completions")
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail))
    if memory_ran_out(error):
        return ApiError(503, "the server's memory ran out; its log has more", code="no_room")
    if not isinstance(error, EsaError):
        return ApiError(500, "a bug in esa; its log has more")
    if isinstance(error, DiskError):
        return ApiError(507, "the server's disk is full; its log has more", code="no_room")
    if isinstance(error, LibraryError):
        return ApiError(500, "the server's library cannot be used; its log has more")
    if isinstance(error, ReaderError):
        return ApiError(502, "the server's reader cannot be used; its log has more")
    message = with_hint(error)
    if isinstance(error, DocumentError):
        return ApiError(400, message, "documents", "document")
    if isinstance(error, LengthError):
        return ApiError(400, message, "messages", "context_length_exceeded")
    if isinstance(error, UsageError):
        return ApiError(400, message, "messages")
    if isinstance(error, ResourceError):
        return ApiError(413, message, code="no_room")
    return ApiError(500, message)


def with_hint(error: EsaError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


MAX_DOCUMENTS = 10_000
MAX_EVIDENCE = 50
MAX_TOKENS = 32_768
DEFAULT_EVIDENCE = 3


def _optional(allowed: str, **limits: Any) -> Any:
    """A field that may be left out or null; `allowed` ends the sentence "it must be"."""
    return Field(None, description=allowed, **limits)


def _unsupported(value: Any) -> None:
    if value:
        raise ValueError


def _plain_text(value: Any) -> None:
    if value and not (isinstance(value, dict) and value.get("type") == "text"):
        raise ValueError


Unsupported = Annotated[Any, AfterValidator(_unsupported)]
"""A parameter that is accepted only where it is empty or false."""
_STOP_EARLY: Any = Field(fail_fast=True)
"""For lists: a large one full of errors costs no more than its first."""
_TOKENS = f"a whole number from 1 to {MAX_TOKENS}"


class TextPart(BaseModel):
    """A part of a message; images and the like are refused."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="system, developer, user or assistant"
    )
    content: str | Annotated[list[TextPart], _STOP_EARLY] | None = _optional(
        "text, or a list of texts"
    )
    tool_calls: Unsupported = None
    function_call: Unsupported = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(BaseModel):
    """A request; None where it leaves the choice to the preset."""

    model_config = ConfigDict(strict=True, frozen=True)

    messages: Annotated[list[ChatMessage], _STOP_EARLY] = Field(
        min_length=1, description="a list of at least one message"
    )
    documents: Annotated[list[Annotated[str, Field(min_length=1)]], _STOP_EARLY] | None = _optional(
        f"a list of 1 to {MAX_DOCUMENTS} paths", min_length=1, max_length=MAX_DOCUMENTS
    )
    stream: bool | None = _optional("true or false")
    stream_options: Any = None
    max_tokens: int | None = _optional(_TOKENS, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = _optional(_TOKENS, ge=1, le=MAX_TOKENS)
    temperature: float | None = _optional("a number from 0 to 2", ge=0, le=2)
    top_p: float | None = _optional("a number from 0 to 1", ge=0, le=1)
    seed: int | None = _optional("a whole number")
    evidence: int | None = _optional(
        f"a whole number from 0 to {MAX_EVIDENCE}", ge=0, le=MAX_EVIDENCE
    )
    heat: bool | None = _optional("true or false")
    n: int | None = _optional("1", ge=1, le=1)
    response_format: Annotated[Any, AfterValidator(_plain_text)] = _optional('{"type": "text"}')
    tools: Unsupported = None
    functions: Unsupported = None
    stop: Unsupported = None
    logprobs: Unsupported = None
    audio: Unsupported = None
    logit_bias: Unsupported = None

    @property
    def stream_usage(self) -> bool:
        options = self.stream_options
        return isinstance(options, dict) and options.get("include_usage") is True

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `Esa.ask`."""
        longest = self.max_completion_tokens
        return {
            "max_new_tokens": self.max_tokens if longest is None else longest,
            "temperature": self.temperature,
            "top_p": None if self.top_p is None else max(self.top_p, 1e-6),  # 0: the likeliest
            "seed": None if self.seed is None else self.seed % 2**63,
            "evidence": DEFAULT_EVIDENCE if self.evidence is None else self.evidence,
        }

    def conversation(self) -> tuple[str, list[Turn]]:
        """The question and the turns before it. Raises ApiError 400.

        System messages come first, as turns without an answer. Messages in a row of one speaker
        are one.
        """
        for index, message in enumerate(self.messages):
            if message.content is None and message.role != "assistant":
                raise _refusal(("messages", index, "content"), None)
        if self.messages[-1].role != "user":
            raise ApiError(400, "the last message must be the user's", "messages")
        spoken = [one for one in self.messages if one.role in ("user", "assistant")]
        texts = [
            "\n\n".join(one.text() for one in some)
            for _, some in groupby(spoken, key=lambda one: one.role)
        ]
        if spoken[0].role == "assistant":
            texts.insert(0, "")
        *earlier, question = texts
        if not question.strip():
            raise ApiError(400, "the question must not be empty", "messages")
        system = [one.text() for one in self.messages if one.role in ("system", "developer")]
        turns = [Turn(text, "") for text in system if text]
        return question, turns + list(map(Turn, earlier[::2], earlier[1::2]))


_ALLOWED = {
    name: field.description
    for model in (ChatMessage, ChatRequest)
    for name, field in model.model_fields.items()
}
"""The constraint of each parameter; None where it is not supported."""


def parse(data: bytes) -> ChatRequest:
    """Raises ApiError 400, which names the parameter and what is allowed."""
    try:
        return ChatRequest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            text = f"the body must be JSON in UTF-8: {first['ctx']['error']}"
            raise ApiError(400, text) from error
        value = None if first["type"] == "missing" else first["input"]
        raise _refusal(first["loc"], value) from error


def _refusal(place: tuple[int | str, ...], value: Any) -> ApiError:
    """The error for a value at a place that may go on below the parameter."""
    known = list(takewhile(lambda part: isinstance(part, int) or part in _ALLOWED, place))
    got = reprlib.repr(value)
    if known and isinstance(known[-1], int):
        got += f" as item {known.pop()}"
    if not known:
        return ApiError(400, f"the body must be a JSON object, got {got}")
    name, allowed = known[-1], _ALLOWED[str(known[-1])]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in known)[1:]
    code = "unsupported_parameter" if not allowed or name in ("n", "response_format") else None
    if not allowed:
        return ApiError(400, f"{where} is not supported", where, code)
    return ApiError(400, f"{where} must be {allowed}, got {got}", where, code)


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
        extra = {"evidence": [one.as_evidence() for one in reply.evidence], "found": reply.found}
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
