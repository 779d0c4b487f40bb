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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError
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
from esa_cli.qa.answering.reply import Reply, Turn
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
        headers = {"x-should-retry": "false"}
        if self.retry is not None:
            headers = {"retry-after": str(self.retry)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


_ERRORS: list[tuple[type[EsaError], int, str, str | None, str | None]] = [
    (DiskError, 507, "the server's disk is full; its log has more", None, "no_room"),
    (LibraryError, 500, "the server's library cannot be used; its log has more", None, None),
    (ReaderError, 502, "the server's reader cannot be used; its log has more", None, None),
    (DocumentError, 400, "", "documents", "document"),
    (LengthError, 400, "", "messages", "context_length_exceeded"),
    (UsageError, 400, "", "messages", None),
    (ResourceError, 413, "", None, "no_room"),
    (EsaError, 500, "", None, None),
]
"""Status, message, parameter and code of each error, the first that fits; without a message the
client gets the error's own."""


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException) and error.status_code == 404:
        return ApiError(404, "there is no such path; questions go to POST /v1/chat/completions")
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail))
    if memory_ran_out(error):
        return ApiError(503, "the server's memory ran out; its log has more", code="no_room")
    for kind, status, message, param, code in _ERRORS:
        if isinstance(error, kind):
            return ApiError(status, message or with_hint(error), param, code)
    return ApiError(500, "a bug in esa; its log has more")


def with_hint(error: EsaError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


MAX_DOCUMENTS = 10_000
MAX_EVIDENCE = 50
MAX_TOKENS = 32_768
DEFAULT_EVIDENCE = 3


def _unsupported(value: Any) -> None:
    if value:
        raise PydanticCustomError("unsupported", "is not supported")


def _plain_text(value: Any) -> None:
    if not (isinstance(value, dict) and value.get("type") == "text"):
        _unsupported(value)


Unsupported = Annotated[Any, AfterValidator(_unsupported)]
"""A parameter that is accepted only where it is empty or false."""
StopEarly: Any = Field(fail_fast=True)
"""For lists: a large one full of errors costs no more than its first."""
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class TextPart(BaseModel):
    """A part of a message; images and the like are refused."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], StopEarly] | None = None
    tool_calls: Unsupported = None
    function_call: Unsupported = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(BaseModel):
    """A request; None where it leaves the choice to the preset."""

    model_config = ConfigDict(strict=True, frozen=True)

    messages: Annotated[list[ChatMessage], StopEarly, Field(min_length=1)]
    documents: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            StopEarly,
            Field(min_length=1, max_length=MAX_DOCUMENTS),
        ]
        | None
    ) = None
    stream: bool | None = None
    stream_options: Any = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    evidence: Annotated[int, Field(ge=0, le=MAX_EVIDENCE)] | None = None
    heat: bool | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    response_format: Annotated[Any, AfterValidator(_plain_text)] = None
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
        are joined.
        """
        for index, message in enumerate(self.messages):
            if message.content is None and message.role != "assistant":
                where = f"messages[{index}].content"
                raise ApiError(400, f"{where}: must be text, got null", where)
        if self.messages[-1].role != "user":
            raise ApiError(400, "the last message must be the user's", "messages")
        spoken = [message for message in self.messages if message.role in ("user", "assistant")]
        texts = [
            "\n\n".join(message.text() for message in turn)
            for _, turn in groupby(spoken, key=lambda message: message.role)
        ]
        if spoken[0].role == "assistant":
            texts.insert(0, "")
        *earlier, question = texts
        if not question.strip():
            raise ApiError(400, "the question must not be empty", "messages")
        system = [m.text() for m in self.messages if m.role in ("system", "developer")]
        turns = [Turn(text, "") for text in system if text]
        return question, turns + list(map(Turn, earlier[::2], earlier[1::2]))


_PARAMETERS = {*ChatMessage.model_fields, *ChatRequest.model_fields}


def parse(data: bytes) -> ChatRequest:
    """Raises ApiError 400, which names the parameter and what is allowed."""
    with _refusals(_PARAMETERS):
        return ChatRequest.model_validate_json(data)


class TextQuery(BaseModel):
    """The query of `GET /v1/documents/text`."""

    document: str = Field("", min_length=1, validate_default=True)
    start: int = Field(0, ge=0)
    length: int = Field(20_000, ge=1, le=100_000)

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> TextQuery:
        """Raises ApiError 400."""
        with _refusals(cls.model_fields):
            return cls.model_validate(dict(query))


@contextmanager
def _refusals(parameters: Collection[str]) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise _refusal(error, parameters) from error


def _refusal(error: ValidationError, parameters: Collection[str]) -> ApiError:
    """The first fault; its place may go on below the parameter."""
    first = error.errors(include_url=False)[0]
    kind, fault, got = first["type"], first["msg"], reprlib.repr(first["input"])
    if kind == "json_invalid":
        return ApiError(400, f"the body must be JSON in UTF-8: {first['ctx']['error']}")
    place = list(takewhile(lambda at: isinstance(at, int) or at in parameters, first["loc"]))
    if place and isinstance(place[-1], int):
        got += f" as item {place.pop()}"
    if not place:
        return ApiError(400, f"the body must be a JSON object, got {got}")
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
    if kind == "unsupported" or place[-1] == "n":
        return ApiError(400, f"{where} {fault}", where, "unsupported_parameter")
    value = "" if kind == "missing" else f", got {got}"
    return ApiError(400, f"{where}: {fault}{value}", where)


EVIDENCE = ("evidence", "found", "answered_from", "read", "quotation")
"""Fields of `Reply.as_row` that a message has, too."""


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
        choice = _choice(reply, message=message | self._evidence(reply))
        return self._body("chat.completion", [choice], usage=_usage(reply))

    def chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        return self._body("chat.completion.chunk", [_choice(delta=delta)])

    def last_chunks(self, reply: Reply, usage: bool) -> list[dict[str, Any]]:
        """The end of a stream: what the answer rests on, and the count of tokens if wanted."""
        end = self._body("chat.completion.chunk", [_choice(reply, delta={})])
        counts = self._body("chat.completion.chunk", [], usage=_usage(reply))
        return [end | self._evidence(reply), *([counts] if usage else [])]

    def _body(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        about = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**about, "choices": choices, **more}

    def _evidence(self, reply: Reply) -> dict[str, Any]:
        row, more = reply.as_row(), {"missing": self.missing, "heat": self.heat}
        fields = {name: row[name] for name in EVIDENCE}
        return fields | {name: value for name, value in more.items() if value}


def _choice(reply: Reply | None = None, **content: dict[str, Any]) -> dict[str, Any]:
    """`reply`: the answer, if it ends here."""
    end = None if reply is None else "length" if reply.cut else "stop"
    return {"index": 0, **content, "logprobs": None, "finish_reason": end}


def _usage(reply: Reply) -> dict[str, int]:
    """Tokens of the question with its history, and of the answer; documents are not counted."""
    question, answer = reply.question_tokens, reply.answer_tokens
    total = question + answer
    return {"prompt_tokens": question, "completion_tokens": answer, "total_tokens": total}


def json_bytes(data: Any) -> bytes:
    """As JSON. Names of files that are not UTF-8 are escaped, which pydantic refuses to do."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "backslashreplace")
