"""Reads and writes the JSON of OpenAI's chat completions: requests, answers and errors.

Unknown parameters of a request are ignored, as in other servers with OpenAI's API. Parameters of
OpenAI's API that would change the answer but are not supported are refused."""

from __future__ import annotations

import json
import reprlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from esa_cli import errors
from esa_cli.qa.answering.passage_choice import choose_passages
from esa_cli.qa.answering.reply import Reply, Turn
from esa_cli.system.machine import is_out_of_memory_error

MAX_DOCUMENTS = 10_000
MAX_EVIDENCE, DEFAULT_EVIDENCE = 50, 3
MAX_TOKENS = 32_768
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """An error that an HTTP client gets; `param` names the wrong parameter of the request."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    def make_error_body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": _TYPES.get(self.status, kind)}
        return {"error": {**error, "param": self.param, "code": self.code}}

    def make_error_response(self) -> JSONResponse:
        """Returns the error as an HTTP response, whose headers say whether a client may retry."""
        headers = {"retry-after": "5"} if self.status == 429 else {"x-should-retry": "false"}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.make_error_body(), self.status, headers)


_ERROR_RESPONSES: list[tuple[type[errors.EsaError], int, str, str | None, str | None]] = [
    (errors.DiskError, 507, "the server's disk is full; see its log", None, "no_room"),
    (errors.LibraryError, 500, "the server's library cannot be used; see its log", None, None),
    (errors.ReaderError, 502, "the server's reader cannot be used; see its log", None, None),
    (errors.DocumentError, 400, "", "documents", "document"),
    (errors.LengthError, 400, "", "messages", "context_length_exceeded"),
    (errors.UsageError, 400, "", "messages", None),
    (errors.ResourceError, 413, "", None, "no_room"),
    (errors.EsaError, 500, "", None, None),
]
"""The status, message, parameter and code for each type of error; the first matching type counts.
An empty message stands for the error's own, unless it may contain paths of the server."""


def convert_to_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, error.detail)
    if is_out_of_memory_error(error):
        wrong = "the server has run out of memory; see the server's log"
        return ApiError(503, wrong, code="no_room")
    for kind, status, message, param, code in _ERROR_RESPONSES:
        if isinstance(error, kind):
            return ApiError(status, message or join_message_and_hint(error), param, code)
    return ApiError(500, "the request failed because of a bug in esa; see the server's log")


def join_message_and_hint(error: errors.EsaError) -> str:
    """Returns the message and the hint of an error as one line."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _refuse_unsupported_value(parameter_value: Any) -> None:
    if parameter_value:
        raise PydanticCustomError("unsupported", "is not supported")


def _refuse_unsupported_response_format(format: Any) -> None:
    _refuse_unsupported_value(not isinstance(format, dict) or format.get("type") != "text")


Unsupported = Annotated[Any, AfterValidator(_refuse_unsupported_value)]
"""The type of a parameter that is accepted only if its value is empty or false."""
StopEarly: Any = Field(fail_fast=True)
"""A constraint that makes the validation of a list stop at its first error."""
MAX_STOPS = 16
Stops = Annotated[list[str], StopEarly, Field(max_length=MAX_STOPS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], StopEarly, Field(min_length=1, max_length=MAX_DOCUMENTS)]


class MessageTextPart(BaseModel):
    """A text part of a chat message; other types of parts, such as images, are refused."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[MessageTextPart], StopEarly] | None = None
    tool_calls: Unsupported = None

    def join_text_parts(self) -> str:
        """Returns the text of the message, with its text parts joined by line breaks."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(BaseModel):
    """The JSON body of a chat request; a field that is None stands for the preset's setting."""

    model_config = ConfigDict(strict=True, frozen=True)

    messages: Annotated[list[ChatMessage], StopEarly, Field(min_length=1)]
    documents: Names | None = None
    stream: bool | None = None
    stream_options: Any = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    evidence: Annotated[int, Field(ge=0, le=MAX_EVIDENCE)] | None = None
    heat: bool | None = None
    n: Literal[1] | None = None
    response_format: Annotated[Any, AfterValidator(_refuse_unsupported_response_format)] = None
    tools: Unsupported = None
    stop: str | Stops | None = None
    logprobs: Unsupported = None

    def wants_token_counts(self) -> bool:
        """Returns whether the client asks for token counts at the end of a streamed answer."""
        options = self.stream_options
        return isinstance(options, dict) and options.get("include_usage") is True

    def list_stop_sequences(self) -> list[str]:
        """Returns the texts before the first of which the answer ends, without empty ones."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    def make_esa_ask_arguments(self) -> dict[str, Any]:
        """Returns the request's settings as keyword arguments of `Esa.ask`."""
        limit = self.max_completion_tokens
        return {
            "max_new_tokens": self.max_tokens if limit is None else limit,
            "temperature": self.temperature,
            "top_p": None if self.top_p is None else max(self.top_p, 1e-6),  # 0: the likeliest
            "seed": None if self.seed is None else self.seed % 2**63,
            "evidence": DEFAULT_EVIDENCE if self.evidence is None else self.evidence,
        }

    def split_question_and_history(self) -> tuple[str, list[Turn]]:
        """Returns the last message, and the answered questions before. A system message, which is
        an instruction for a reader, is a turn without an answer. Raises ApiError 400."""
        if self.messages[-1].role != "user":
            raise ApiError(400, "the last message must have the role user", "messages")
        spoken = [message for message in self.messages if message.role in ("user", "assistant")]
        texts = [
            "\n\n".join(message.join_text_parts() for message in turn)
            for _, turn in groupby(spoken, key=lambda message: message.role)
        ]
        if spoken[0].role == "assistant":
            texts.insert(0, "")
        *earlier, question = texts
        if not question.strip():
            raise ApiError(400, "the question must not be empty", "messages")
        system = [m.join_text_parts() for m in self.messages if m.role in ("system", "developer")]
        turns = [Turn(text, "") for text in system if text.strip()]
        answered = zip(earlier[::2], earlier[1::2], strict=True)
        return question, turns + [Turn(*turn) for turn in answered if turn[1].strip()]


Session = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{16,64}$")]
"""A random name by which a client finds the documents again that it has sent."""


class DocumentListQuery(BaseModel):
    """The query parameters of `GET /v1/documents`."""

    session: Session | None = None


class SentDocumentQuery(BaseModel):
    """The query parameters of `POST /v1/documents`."""

    name: str = Field(min_length=1)
    keep: Literal["session", "library"] = "session"
    session: Session | None = None


class DocumentTextQuery(BaseModel):
    """The query parameters of `GET /v1/documents/text`."""

    document: str = Field("", min_length=1, validate_default=True)
    start: int = Field(0, ge=0)
    length: int = Field(20_000, ge=1, le=100_000)


_MODELS = (ChatMessage, ChatRequest, DocumentListQuery, SentDocumentQuery, DocumentTextQuery)
Request = TypeVar("Request", bound=BaseModel)
_PARAMETERS = {name for model in _MODELS for name in model.model_fields}


def parse_request(model: type[Request], body_or_query: bytes | Mapping[str, str]) -> Request:
    """Parses a JSON body or query. Raises ApiError 400, which names the wrong parameter."""
    try:
        if isinstance(body_or_query, bytes):
            return model.model_validate_json(body_or_query)
        return model.model_validate(dict(body_or_query))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    kind, text = fault["type"], fault["msg"]
    if kind == "json_invalid":
        raise ApiError(400, f"the request must be JSON in UTF-8: {fault['ctx']['error']}")
    value = "" if kind == "missing" else f", got {reprlib.repr(fault['input'])}"
    place = list(takewhile(lambda at: isinstance(at, int) or at in _PARAMETERS, fault["loc"]))
    while place and isinstance(place[-1], int):
        place.pop()
    if not place:
        raise ApiError(400, f"the request must be a JSON object{value}")
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
    if kind == "unsupported":
        raise ApiError(400, f"{where} {text}", where, "unsupported_parameter")
    raise ApiError(400, f"{where}: {text}{value}", where)


@dataclass(frozen=True)
class ChatCompletionMaker:
    """Makes the JSON of an answer, as one body or as chunks of a stream. While the answer is
    made, heat maps are added to `heat`, and notes about contents that are missing to `missing`."""

    model: str
    missing: list[str] = field(default_factory=list)
    heat: list[dict[str, Any]] = field(default_factory=list)
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def make_unstreamed_body(self, reply: Reply) -> dict[str, Any]:
        message = {"role": "assistant", "content": reply.text_with_certainty, "refusal": None}
        content = {"message": message | self._select_reply_fields(reply)}
        body = self._make_completion_body("chat.completion", content, reply)
        return body | {"usage": make_token_usage_json(reply)}

    def make_stream_chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        return self._make_completion_body("chat.completion.chunk", {"delta": delta})

    def make_last_stream_chunks(self, reply: Reply, with_token_usage: bool) -> list[dict[str, Any]]:
        """Returns a streamed answer's last chunks: its evidence and, if wanted, token counts."""
        end = self._make_completion_body("chat.completion.chunk", {"delta": {}}, reply)
        counts = {**end, "choices": [], "usage": make_token_usage_json(reply)}
        return [end | self._select_reply_fields(reply), *([counts] if with_token_usage else [])]

    def _make_completion_body(
        self, object_type: str, content: dict[str, Any], reply: Reply | None = None
    ) -> dict[str, Any]:
        """Returns a completion's JSON with one choice; `reply` is None until the answer ends."""
        end = None if reply is None else "length" if reply.cut else "stop"
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": end}
        about = {"id": self.id, "object": object_type, "created": self.created, "model": self.model}
        return {**about, "choices": [choice]}

    def _select_reply_fields(self, reply: Reply) -> dict[str, Any]:
        row, lists = reply.to_json(), {"missing": self.missing, "heat": self.heat}
        names = (
            "evidence", "found", "certainty", "answered_from", "read", "quotation", "quotations",
            "sentences", "missing_words", "foreign_languages",
        )  # fmt: skip
        for passage in row["evidence"]:
            del passage["source"]  # clients see no paths of the server
        chosen = choose_passages(reply, len(reply.evidence))
        shown = [1 + reply.evidence.index(passage) for _, passage in chosen]
        fields = {name: row[name] for name in names} | {"shown": shown}
        return fields | {name: value for name, value in lists.items() if value}


def make_token_usage_json(reply: Reply) -> dict[str, int]:
    """Returns the token counts of a question with its history and of its answer."""
    question, answer = reply.question_tokens, reply.answer_tokens
    total = question + answer
    return {"prompt_tokens": question, "completion_tokens": answer, "total_tokens": total}


def encode_json(data: Any) -> bytes:
    """Encodes data as JSON in UTF-8; file names that are not valid UTF-8 are escaped."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "backslashreplace")


class StoppedText:
    """The text of an answer up to the first stop sequence, none of which is empty; sends pieces of
    the text on. What may be the beginning of a stop sequence waits until the next piece decides."""

    def __init__(self, sequences: Sequence[str], send_text: Callable[[str], None]) -> None:
        self._sequences, self._send = sequences, send_text
        self._waiting, self._has_ended = "", False

    def add_piece(self, piece: str) -> None:
        """Sends the part of the text so far that no stop sequence can begin in any more."""
        if self._has_ended:
            self._send("")  # raises if the client no longer waits
            return
        text = self._waiting + piece
        end = find_stop(text, self._sequences)
        self._has_ended = end is not None
        if end is None:
            begun = (
                at for at in range(len(text))
                if any(one.startswith(text[at:]) for one in self._sequences)
            )  # fmt: skip
            end = next(begun, len(text))
        self._waiting = text[end:]
        self._send(text[:end])

    def finish_reply(self, reply: Reply) -> Reply:
        """Sends what waits still, and returns the reply up to the first stop sequence."""
        if self._waiting and not self._has_ended:
            self._send(self._waiting)
        end = find_stop(reply.text, self._sequences)
        if end is None:
            return reply
        sentences = tuple(one for one in reply.sentences if one.end <= end)
        text = reply.text[:end]
        return replace(reply, text=text, cut=False, sentences=sentences, quotations=())


def find_stop(text: str, sequences: Sequence[str]) -> int | None:
    """Returns where the first stop sequence begins in a text, or None if there is none."""
    return min((at for one in sequences if (at := text.find(one)) >= 0), default=None)
