"""A model on a server of OpenAI's chat completions (Ollama, llama.cpp, LM Studio, vLLM) that words
answers.

The question, the passages with their documents' names, and earlier turns are sent there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import requests

from esa_cli.errors import ReaderError, first_line
from esa_cli.qa.answering.reply import Reply, Turn, says_not_told
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.reading.reader import MOST_PASSAGES, Sampling, messages, unheard
from esa_cli.qa.reading.server_address import KEY, ServerAddress

CONNECT_S = 10.0
SILENCE_S = 300.0
"""The longest wait for a server's next words: it may load its model first."""
WHOLE_S = 900.0
"""The longest an answer takes."""
TRIES = 4
BACKOFF_S = 0.5
LONGEST_WAIT_S = 30.0
AGAIN = (429, 500, 502, 503)
LONGEST = 200
"""Characters of a server's message."""
RENAMED = {
    "temperature": None, "top_p": None, "seed": None, "max_tokens": "max_completion_tokens",
}  # fmt: skip
"""Parameters that some models refuse -> the one to send in its place."""
_END = "the address usually ends in /v1, as http://127.0.0.1:11434/v1"
_SLOW = "choose a smaller model by --reader URL#MODEL, or give a longer $ESA_READER_TIMEOUT"
_BAD_KEY = "refuses the key", f"set the environment variable {KEY} to it"
_REFUSALS = {
    401: _BAD_KEY,
    403: _BAD_KEY,
    404: ("has no chat completions there", _END),
    429: ("takes no more questions now", "ask again later"),
}


class BrokenAnswerError(Exception):
    """What the server sent is no chat completion; the message says why."""


class ServerReader:
    """A `Reader` on a server. Asks for the server's models when it is made.

    Args:
        model: its name there; None: the first that the server lists.
        timeout_s: the longest wait for the next words, and for the whole answer; None: `SILENCE_S`
            and `WHOLE_S`.

    Raises:
        ReaderError: the server cannot be reached, refuses the key, or has no such model.
    """

    nbytes = 0

    def __init__(
        self, address: ServerAddress, model: str | None = None, timeout_s: float | None = None
    ) -> None:
        self.address, self.name = address, model or ""
        self._silence_s, self._whole_s = timeout_s or SILENCE_S, timeout_s or WHOLE_S
        self._session = requests.Session()
        self._session.trust_env = not address.here  # a proxy is not for this machine's own server
        self._session.auth = self._authorise  # no other login, as of ~/.netrc, is sent
        self._session.headers["User-Agent"] = "esa-cli"
        self._refused: list[str] = []
        self._models: list[str] = []
        self._models = self._listed_models()
        if not self.name and not self._models:
            raise self._error("lists no models", "name one by --reader URL#MODEL")
        self.name = self.name or self._models[0]

    def answer(
        self,
        question: str,
        passages: Sequence[Passage],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None] = unheard,
    ) -> Reply:
        """See `Reader.answer`."""
        body = {
            "model": self.name,
            "messages": messages(question, passages[:MOST_PASSAGES], history),
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
            with self._accepted(body) as response:
                for event in _events(response):
                    if time.monotonic() > until:
                        raise self._error(f"took longer than {self._whole_s:g} s", _SLOW)
                    reason, tokens = reason or event.reason, event.tokens or tokens
                    if event.text:
                        pieces.append(event.text)
                        on_text(event.text)
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
        if self.address.key is not None:
            request.headers["Authorization"] = f"Bearer {self.address.key}"
        return request

    def _send(self, method: str, path: str, body: Any = None) -> requests.Response:
        """The response, whose body is read as it comes; a server that is busy or not there is tried
        again, one that is silent is not. Raises requests.RequestException."""
        for later in range(TRIES - 1, -1, -1):
            wait = BACKOFF_S * 2 ** (TRIES - later - 1)
            try:
                response = self._session.request(
                    method, self.address.url + path, json=body, allow_redirects=False, stream=True,
                    timeout=(CONNECT_S, self._silence_s),
                )  # fmt: skip
            except requests.Timeout:
                raise
            except requests.ConnectionError:
                if not later:
                    raise
            else:
                if response.status_code not in AGAIN or not later:
                    return response
                response.close()
                asked = response.headers.get("retry-after", "")
                wait = float(asked) if asked.isdecimal() else wait
            time.sleep(min(wait, LONGEST_WAIT_S))
        raise AssertionError

    def _accepted(self, body: dict[str, Any]) -> requests.Response:
        """The response with status 200; a parameter that the model refuses is left out from then
        on. Raises ReaderError: another status. requests.RequestException."""
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

    def _listed_models(self) -> list[str]:
        """Names of the server's models. Raises ReaderError."""
        try:
            response = self._send("GET", "/models")
            if response.status_code == 404 and self.name:
                return []  # not every server lists them
            if response.status_code != 200:
                raise self._refusal(response)
            return [str(one["id"]) for one in _decoded(response.content).get("data") or ()]
        except (AttributeError, KeyError, TypeError) as error:
            raise self._failure(BrokenAnswerError("it lists no models")) from error
        except (requests.RequestException, BrokenAnswerError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> ReaderError:
        """The server cannot be reached, is silent, or sends something else."""
        if isinstance(error, requests.Timeout) or "Read timed out" in str(error):
            return self._error(f"was silent for {self._silence_s:g} s", _SLOW)
        if isinstance(error, requests.exceptions.ChunkedEncodingError):
            return self._error("broke off its answer", "ask again")
        if isinstance(error, requests.RequestException):
            return self._error(
                f"cannot be reached: {_cause(error)}", f"is the server running? {_END}"
            )
        return self._error(
            f"gave an answer that cannot be used: {_short(str(error))}",
            "ask again; is it a server of OpenAI's chat completions?",
        )

    def _refusal(self, response: requests.Response) -> ReaderError:
        """A status other than 200."""
        status, error = response.status_code, _error_of(response)
        message = _short(str(error.get("message") or error.get("detail") or response.reason))
        what, hint = _REFUSALS.get(
            status,
            (
                f"refuses the question with status {status}",
                "choose another model by --reader URL#MODEL, or ask a shorter question",
            ),
        )
        if response.is_redirect:
            message = _short(response.headers["location"])
            what, hint = "has moved", "give that address"
        elif status == 404 and (self._models or "model" in message.lower()):
            names = ", ".join(self._models[:8]) or "others"
            what, hint = f"has no model {self.name}", f"it has {names}; --reader URL#MODEL"
        elif status >= 500:
            what, hint = f"failed with status {status}", "see the server's log"
        return self._error(f"{what}: {message}", hint)

    def _error(self, what: str, hint: str) -> ReaderError:
        return ReaderError(f"the reader at {self.address.url} {what}", hint)


class _Event(NamedTuple):
    """A part of an answer; `reason`: why it ends; `tokens`: of the whole answer."""

    text: str
    reason: str | None
    tokens: int | None


def _events(response: requests.Response) -> Iterator[_Event]:
    """The parts of an answer: of a stream of events, or the one of a body that is no stream. Keeps
    yielding empty parts while the server sends none. Raises BrokenAnswerError."""
    kind = response.headers.get("content-type", "").lower()
    if not kind.startswith("text/event-stream"):
        part = _event(response.content)
        yield part._replace(reason=part.reason or "stop")
        return
    # Without chunks of its own, the body is read byte by byte, or events would wait.
    size = 65_536 if getattr(response.raw, "chunked", False) else 1
    for line in response.iter_lines(chunk_size=size):
        field, _, data = line.partition(b":")
        if field != b"data":
            yield _Event("", None, None)
        elif data.strip() == b"[DONE]":
            yield _Event("", "stop", None)
            return
        else:
            yield _event(data)


def _event(data: bytes) -> _Event:
    """Raises BrokenAnswerError: an error, or an object of another shape."""
    try:
        body = _decoded(data)
        if error := body.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise BrokenAnswerError(str(message or "the server reports an error"))
        choice: Any = next(iter(body["choices"]), {})
        text = (choice.get("delta") or choice.get("message") or {}).get("content")
        tokens = (body.get("usage") or {}).get("completion_tokens")
        return _Event(
            text if isinstance(text, str) else "", choice.get("finish_reason"),
            tokens if isinstance(tokens, int) else None,
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError) as error:
        raise BrokenAnswerError("it is no chat completion") from error


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise BrokenAnswerError("it is no JSON") from error


def _error_of(response: requests.Response) -> dict[str, Any]:
    """The `error` of a refusal, with what there is of `message` and `param`."""
    try:
        body = json.loads(response.content)
    except (ValueError, requests.RequestException):
        return {}
    error = body.get("error", body) if isinstance(body, dict) else body
    return error if isinstance(error, dict) else {"message": error}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _cause(error: BaseException) -> str:
    """The innermost reason of a failed connection, as the system words it."""
    while error.__context__ is not None:
        error = error.__context__
    return _short(getattr(error, "strerror", None) or first_line(error))
