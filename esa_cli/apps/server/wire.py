"""The JSON of requests for OpenAI's chat completions, checked.

Unknown parameters are ignored, as by other servers of this protocol. Known ones that would change
the answer and are not supported are refused.
"""

from __future__ import annotations

import reprlib
from itertools import groupby, takewhile
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from esa_cli.apps.server.http_errors import ApiError
from esa_cli.qa.answering.reply import Turn

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
        """Keyword arguments of `Asker.ask`."""
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
