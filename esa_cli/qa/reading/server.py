"""A reader on a server of OpenAI's chat completions: Ollama, llama.cpp, LM Studio, vLLM.

The question, the passages with the names of their documents, and earlier turns are sent there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests

from esa_cli.errors import ReaderError, first_line
from esa_cli.qa.answering.reply import Reply, Turn, says_not_told
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.reading.reader import MAX_PASSAGES, Sampling, chat_messages, ignore_text
from esa_cli.system.machine import is_loopback

CONNECT_S = 10.0
SILENCE_S = 300.0
"""The longest wait for the next words: the server may load its model first."""
WHOLE_S = 900.0
"""The longest wait for a whole answer."""
TRIES = 4
BACKOFF_S = 0.5
MAX_WAIT_S = 30.0
RETRIED = (429, 500, 502, 503)
MAX_MESSAGE = 200
"""Characters that are shown of a server's message."""
RENAMED = {
    "temperature": None, "top_p": None, "seed": None, "max_tokens": "max_completion_tokens",
}  # fmt: skip
"""Parameters that some models refuse -> the parameter to send in place."""
_ADDRESS = "the address usually ends in /v1, as http://127.0.0.1:11434/v1"
_SLOW = "choose a smaller model by --reader URL#MODEL, or give a longer $ESA_READER_TIMEOUT"
_KEY = "refuses the key", "set the environment variable ESA_READER_KEY to it"
_REFUSALS = {
    401: _KEY,
    403: _KEY,
    404: ("has no chat completions there", _ADDRESS),
    429: ("takes no more questions now", "ask again later"),
}
"""Status -> what is wrong, and what to try."""
_Event = tuple[str, str | None, int | None]
"""A part of an answer: its text, why the answer ends, and the tokens of the whole answer."""


class BrokenAnswerError(Exception):
    """The server sent no chat completion; the message says why."""


class ServerReader:
    """A `Reader` on a server, which is asked for its models at once.

    Args:
        url: the base URL, without a slash at its end. key: is sent with each request.
        model: its name on the server; None: the first that the server lists.
        timeout_s: the longest wait for the next words, and for the whole answer; None: `SILENCE_S`
            and `WHOLE_S`.

    Raises ReaderError: the server cannot be reached, refuses the key, or has no such model.
    """

    nbytes = 0

    def __init__(
        self, url: str, key: str | None = None, model: str | None = None,
        timeout_s: float | None = None,
    ) -> None:  # fmt: skip
        self.url, self._key, self.name = url, key, model or ""
        self._silence_s, self._whole_s = timeout_s or SILENCE_S, timeout_s or WHOLE_S
        self._session = requests.Session()
        # The server of this machine is behind no proxy.
        self._session.trust_env = not is_loopback(urlsplit(url).hostname or "")
        self._session.auth = self._authorise  # no login of ~/.netrc is sent
        self._session.headers["User-Agent"] = "esa-cli"
        self._refused: list[str] = []
        self._models: list[str] = []
        self._models = self._list_models()
        if not self.name and not self._models:
            raise self._error("lists no models", "name one by --reader URL#MODEL")
        self.name = self.name or self._models[0]

    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: Sampling, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        body = {
            "model": self.name,
            "messages": chat_messages(question, passages[:MAX_PASSAGES], history),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
            "stream": True,
        }
        body = {name: value for name, value in body.items() if value is not None}
        until = time.monotonic() + self._whole_s
        pieces, tokens, reason = list[str](), None, None
        try:
            with self._ask(body) as response:
                for piece, ended, count in _events(response):
                    if time.monotonic() > until:
                        raise self._error(f"took longer than {self._whole_s:g} s", _SLOW)
                    reason, tokens = reason or ended, count or tokens
                    if piece:
                        pieces.append(piece)
                        on_text(piece)
            if reason is None:
                raise BrokenAnswerError("it ended before its end")
        except (requests.RequestException, BrokenAnswerError) as error:
            raise self._failure(error) from error
        text, cut = "".join(pieces).strip(), reason == "length"
        if not text:
            thoughts = ", which may have gone into its thoughts" if cut else ""
            raise self._error(
                f"answered no words by its model {self.name}{thoughts}",
                "give it more room, as --max-new-tokens 1000, or another model",
            )
        return Reply(
            text, found=not says_not_told(text), answer_tokens=tokens or len(pieces), cut=cut
        )

    def close(self) -> None:
        """See `Reader.close`."""
        self._session.close()

    def _authorise(self, request: Any) -> Any:
        if self._key is not None:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request

    def _send(self, method: str, path: str, body: Any = None) -> requests.Response:
        """Returns a response whose body is not read yet; a busy server is asked again."""
        for number in range(TRIES):
            is_last, wait = number == TRIES - 1, BACKOFF_S * 2**number
            try:
                response = self._session.request(
                    method, self.url + path, json=body, allow_redirects=False, stream=True,
                    timeout=(CONNECT_S, self._silence_s),
                )  # fmt: skip
            except requests.ConnectionError as error:
                if is_last or isinstance(error, requests.Timeout):
                    raise
            else:
                if is_last or response.status_code not in RETRIED:
                    return response
                response.close()
                asked = response.headers.get("retry-after", "")
                wait = float(asked) if asked.isdecimal() else wait
            time.sleep(min(wait, MAX_WAIT_S))
        raise AssertionError

    def _ask(self, body: dict[str, Any]) -> requests.Response:
        """Returns the accepted response, without parameters that the model refuses."""
        while True:
            sent = {name: value for name, value in body.items() if name not in self._refused}
            for name in self._refused:
                if name in body and (other := RENAMED[name]):
                    sent[other] = body[name]
            response = self._send("POST", "/chat/completions", sent)
            if response.status_code == 200:
                return response
            with response:
                refused = _error_of(response).get("param")
                if refused not in RENAMED or refused in self._refused:
                    raise self._refusal(response)
            self._refused.append(refused)

    def _list_models(self) -> list[str]:
        """Returns the names of the server's models. Raises ReaderError."""
        try:
            response = self._send("GET", "/models")
            if response.status_code == 404 and self.name:
                return []  # not every server lists its models
            if response.status_code != 200:
                raise self._refusal(response)
            models = json.loads(response.content).get("data") or ()
            return [str(one["id"]) for one in models]
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise self._failure(BrokenAnswerError("it is no JSON of a list of models")) from error
        except requests.RequestException as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> ReaderError:
        """Returns the error of a server that is away, is silent, or sends something else."""
        if isinstance(error, requests.Timeout) or "Read timed out" in str(error):
            return self._error(f"was silent for {self._silence_s:g} s", _SLOW)
        if isinstance(error, requests.exceptions.ChunkedEncodingError):
            return self._error("broke off its answer", "ask again")
        if isinstance(error, requests.RequestException):
            cause: BaseException = error
            while cause.__context__ is not None:  # the innermost reason, as the system words it
                cause = cause.__context__
            reason = _shorten(getattr(cause, "strerror", None) or first_line(cause))
            return self._error(f"cannot be reached: {reason}", f"is the server running? {_ADDRESS}")
        return self._error(
            f"gave an answer that cannot be used: {_shorten(str(error))}",
            "ask again; is it a server of OpenAI's chat completions?",
        )

    def _refusal(self, response: requests.Response) -> ReaderError:
        """Returns the error of a status other than 200."""
        status, error = response.status_code, _error_of(response)
        message = _shorten(str(error.get("message") or error.get("detail") or response.reason))
        hint = "ask a shorter question, choose another model, or see the server's log"
        what, hint = _REFUSALS.get(status, (f"failed with status {status}", hint))
        if response.is_redirect:
            message = _shorten(response.headers["location"])
            what, hint = "has moved", "give that address"
        elif status == 404 and (self._models or "model" in message.lower()):
            names = ", ".join(self._models[:8]) or "others"
            what, hint = f"has no model {self.name}", f"it has {names}; --reader URL#MODEL"
        return self._error(f"{what}: {message}", hint)

    def _error(self, what: str, hint: str) -> ReaderError:
        return ReaderError(f"the reader at {self.url} {what}", hint)


def _events(response: requests.Response) -> Iterator[_Event]:
    """Yields the parts of an answer, also empty ones, as the server sends them."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        raise BrokenAnswerError("it is no stream of events")
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
            yield _parse_event(data)


def _parse_event(data: bytes) -> _Event:
    """Parses a part of an answer. Raises BrokenAnswerError: it is an error, or something else."""
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
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise BrokenAnswerError("it is no JSON of a chat completion") from error


def _error_of(response: requests.Response) -> dict[str, Any]:
    """Returns the `error` of a refusal, which may have `message` and `param`."""
    try:
        body = json.loads(response.content)
    except (ValueError, requests.RequestException):
        return {}
    error = body.get("error", body) if isinstance(body, dict) else body
    return error if isinstance(error, dict) else {"message": error}


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
