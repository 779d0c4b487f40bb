"""A reader on a server with OpenAI's chat completions, such as Ollama, llama.cpp or vLLM.

The server receives the question, earlier turns, and passages with the names of their documents."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import requests

from esa_cli.errors import ReaderError, get_first_line
from esa_cli.qa.answering.reply import Reply, Turn, says_nothing_found
from esa_cli.qa.finding.model_server import (
    ServerConnection,
    read_json_body,
    read_refusal,
    shorten_message,
)
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.reading.reader import (
    MAX_PASSAGES,
    MAX_TOKENS,
    TOKEN_BYTES,
    Reader,
    SamplingParams,
    ignore_text,
    make_chat_messages,
)
from esa_cli.system.local_servers import explain_how_to_start, list_answering_models

WHOLE_S = 900.0
"""The maximum wait for a whole answer."""
DEFAULT_WINDOW = 4096
"""The window in tokens of a server that does not tell it; Ollama cuts longer prompts silently."""
RENAMED = {"temperature": None, "top_p": None, "seed": None, "max_tokens": "max_completion_tokens"}
"""Maps a parameter that some models refuse to the parameter that is sent instead."""
_ADDRESS = "the address usually ends in /v1, as http://127.0.0.1:11434/v1"
_SLOW = "choose a smaller model by --reader URL#MODEL, or set a longer $ESA_READER_TIMEOUT"
_KEY = "refuses the key", "set the environment variable ESA_READER_KEY to the right key"
_REFUSALS = {
    401: _KEY,
    403: _KEY,
    404: ("has no chat completions there", _ADDRESS),
    429: ("takes no more questions now", "ask again later"),
}
"""Maps an HTTP status to what is wrong, and to a hint."""
_AnswerPart = tuple[str, str | None, int | None]
"""A part of an answer: its text, why the answer ends, and the whole answer's token count."""


_THOUGHTS_START, _THOUGHTS_END = "<think>", "</think>"


class BrokenAnswerError(Exception):
    """A server's answer is no chat completion; the exception's text says what is wrong."""


class ServerReader(Reader):
    """A reader that asks a server with OpenAI's chat completions.

    Args:
        model: its name on the server; None means the first that is not of embeddings.
        timeout_s: the longest wait for words and whole answer; None: the server's and `WHOLE_S`.

    Raises ReaderError: the server cannot be reached, refuses the key, or has no such model."""

    def __init__(
        self, server: ServerConnection, model: str | None = None, timeout_s: float | None = None
    ) -> None:
        self.url, self.name, self._whole_s = server.url, model or "", timeout_s or WHOLE_S
        self._server, server.silence_s = server, timeout_s or server.silence_s
        self._refused, self._models = list[str](), list[str]()
        windows = self._list_model_windows()
        self._models = [*windows]
        answering = list_answering_models(self._models)
        if not self.name and not answering:
            hint = explain_how_to_start(self.url) or "name a model by --reader URL#MODEL"
            raise self._make_reader_error("lists no models that answer", hint)
        self.chosen_of = 0 if self.name else len(self._models)
        """Among how many models of the server this one was chosen; 0 if it was named."""
        self.name = self.name or answering[0]
        self.window_tokens = windows.get(self.name, DEFAULT_WINDOW)

    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        """Answers as `Reader.answer` describes. Servers cut long prompts silently, so the tokens
        are estimated, and are rather fewer."""
        body = {
            "model": self.name,
            "messages": self.make_fitting_prompt(
                lambda some: make_chat_messages(question, some, history), estimate_tokens,
                passages[:MAX_PASSAGES], history,
                min(sampling.max_new_tokens or MAX_TOKENS, self.window_tokens // 4),
            ),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
            "stream": True,
        }  # fmt: skip
        body = {name: value for name, value in body.items() if value is not None}
        until = time.monotonic() + self._whole_s
        text, tokens, reason = AnswerText(on_text), None, None
        try:
            with self._request_answer(body) as response:
                for piece, ended, count in _parse_answer_parts(response):
                    if time.monotonic() > until:
                        problem = f"took longer than {self._whole_s:g} s"
                        raise self._make_reader_error(problem, _SLOW)
                    reason, tokens = reason or ended, count or tokens
                    text.add(piece)
            text.end()
            if reason is None:
                raise BrokenAnswerError("the stream broke off")
        except (requests.RequestException, BrokenAnswerError) as error:
            raise self._make_connection_error(error) from error
        answer, cut = "".join(text.pieces).strip(), reason == "length"
        if not answer:
            thoughts = ", which may have spent all tokens on thoughts" if cut else ""
            wrong = f"sent an empty answer of its model {self.name}{thoughts}"
            hint = "allow more tokens, as with --max-new-tokens 1000, or use another model"
            raise self._make_reader_error(wrong, hint)
        found, count = not says_nothing_found(answer), tokens or len(text.pieces)
        return Reply(answer, found=found, answer_tokens=count, cut=cut)

    def close(self) -> None:
        self._server.session.close()

    def _request_answer(self, body: dict[str, Any]) -> requests.Response:
        """Requests a chat completion, and leaves out the parameters that the model refuses."""
        while True:
            sent = {name: value for name, value in body.items() if name not in self._refused}
            for name in self._refused:
                if name in body and (other := RENAMED[name]):
                    sent[other] = body[name]
            response = self._server.send_request("POST", "/chat/completions", sent)
            if response.status_code == 200:
                return response
            with response:
                message, parameter = read_refusal(response)
            if parameter not in RENAMED or parameter in self._refused:
                raise self._make_refusal_error(response, message)
            self._refused.append(parameter)

    def _list_model_windows(self) -> dict[str, int]:
        """Returns the server's models with their windows in tokens, which vLLM alone reports."""
        try:
            response = self._server.send_request("GET", "/models")
            if response.status_code == 404 and self.name:
                return {}  # not every server lists its models
            if response.status_code != 200:
                raise self._make_refusal_error(response, read_refusal(response)[0])
            listed = read_json_body(response).get("data") or ()
            windows = ((one["id"], one.get("max_model_len") or DEFAULT_WINDOW) for one in listed)
            return {str(name): int(window) for name, window in windows}
        except (ValueError, AttributeError, KeyError, TypeError, OverflowError) as error:
            broken = BrokenAnswerError("the response is not a list of models in JSON")
            raise self._make_connection_error(broken) from error
        except requests.RequestException as error:
            raise self._make_connection_error(error) from error

    def _make_connection_error(self, error: Exception) -> ReaderError:
        """Makes the error for a server that is unreachable or silent, or sends no completion."""
        if isinstance(error, requests.Timeout) or "Read timed out" in str(error):
            return self._make_reader_error(f"was silent for {self._server.silence_s:g} s", _SLOW)
        if isinstance(error, requests.exceptions.ChunkedEncodingError):
            return self._make_reader_error("broke off its answer", "ask again")
        if isinstance(error, requests.RequestException):
            cause: BaseException = error
            while cause.__context__ is not None:  # the innermost reason, as the system words it
                cause = cause.__context__
            reason = shorten_message(getattr(cause, "strerror", None) or get_first_line(cause))
            hint = explain_how_to_start(self.url)
            hint = hint or f"check that the server is running; {_ADDRESS}"
            return self._make_reader_error(f"cannot be reached: {reason}", hint)
        wrong = f"sent an answer that cannot be used: {shorten_message(str(error))}"
        hint = "ask again; is it a server of OpenAI's chat completions?"
        return self._make_reader_error(wrong, hint)

    def _make_refusal_error(self, response: requests.Response, message: str) -> ReaderError:
        status = response.status_code
        hint = "ask a shorter question, choose another model, or see the server's log"
        what, hint = _REFUSALS.get(status, (f"failed with status {status}", hint))
        if response.is_redirect:
            message = shorten_message(response.headers["location"])
            what, hint = "has moved", "use the new address"
        elif status == 404 and (self._models or "model" in message.lower()):
            names = ", ".join(self._models[:8]) or "its models"
            what, hint = f"has no model {self.name}", f"choose one of {names} by --reader URL#MODEL"
        return self._make_reader_error(f"{what}: {message}", hint)

    def _make_reader_error(self, problem: str, hint: str) -> ReaderError:
        return ReaderError(f"the reader at {self.url} {problem}", hint)


def estimate_tokens(messages: Sequence[dict[str, str]]) -> int:
    """Returns about the most tokens that messages take in any model."""
    return sum(len(one["content"].encode()) for one in messages) // TOKEN_BYTES


class AnswerText:
    """The text of an answer, put together from the pieces in which a server sends the answer.

    Thoughts that a model writes before the answer, between `<think>` and `</think>`, are left out.
    A character whose two UTF-16 surrogates come in two pieces is joined; half of one is replaced.

    Attributes:
        pieces: the parts of the text that were passed to `on_text`."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self.pieces, self._on_text, self._held = list[str](), on_text, ""

    def add(self, piece: str) -> None:
        """Passes on what is complete with one more piece, and holds the rest back."""
        text = self._held + piece
        half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = text.removesuffix(half)
        if not self.pieces and (text := text.lstrip()).startswith(_THOUGHTS_START):
            thoughts, end, text = text.partition(_THOUGHTS_END)
            text = text.lstrip() if end else thoughts
        may_think = not self.pieces and _THOUGHTS_START.startswith(text[: len(_THOUGHTS_START)])
        self._held = text + half if may_think else half
        self._emit("" if may_think else text)

    def end(self) -> None:
        """Passes on what was held back, unless it is thoughts."""
        text, self._held = self._held, ""
        self._emit("" if text.startswith(_THOUGHTS_START) else text)

    def _emit(self, text: str) -> None:
        if text:
            data = text.encode("utf-16-le", "surrogatepass")
            self.pieces.append(data.decode("utf-16-le", "replace"))
            self._on_text(self.pieces[-1])


def _parse_answer_parts(response: requests.Response) -> Iterator[_AnswerPart]:
    """Yields the parts of an answer while the server sends the answer; a part may be empty."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        raise BrokenAnswerError("the answer is not a stream of events")
    # Without HTTP's chunks the body is read byte by byte, or events would wait.
    size = 65_536 if getattr(response.raw, "chunked", False) else 1
    for line in response.iter_lines(chunk_size=size):
        field, _, data = line.partition(b":")
        if field != b"data":
            yield "", None, None
        elif data.strip() == b"[DONE]":
            yield "", "stop", None
            return
        else:
            yield _parse_answer_event(data)


def _parse_answer_event(data: bytes) -> _AnswerPart:
    """Parses one event of a streamed chat completion. Raises BrokenAnswerError."""
    try:
        body = json.loads(data)
        if error := body.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise BrokenAnswerError(str(message or "the server reports an error"))
        choice: Any = next(iter(body["choices"]), {})
        text = (choice.get("delta") or {}).get("content")
        tokens = (body.get("usage") or {}).get("completion_tokens")
        count = tokens if isinstance(tokens, int) else None
        return text if isinstance(text, str) else "", choice.get("finish_reason"), count
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise BrokenAnswerError("the response is not a chat completion in JSON") from error
