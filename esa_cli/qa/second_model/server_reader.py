"""A model on a server of OpenAI's chat completions (Ollama, llama.cpp, LM Studio, vLLM) that words
answers.

The question, the passages with their documents' names, and earlier turns are sent there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ReadTimeoutError
from urllib3.util.retry import Retry

from esa_cli.errors import ReaderError, first_line
from esa_cli.qa.answering.reply import Evidence, Turn
from esa_cli.qa.second_model.answer_reader import Sampling, WrittenAnswer, messages
from esa_cli.qa.second_model.server_address import KEY, ServerAddress


class BrokenAnswerError(Exception):
    """What the server sent is no chat completion; the message says why."""


class CompletionText:
    """Collects the text of one answer, piece by piece.

    `on_text` is called with each piece.
    """

    def __init__(self, on_text: Callable[[str], None] | None) -> None:
        self.on_text = on_text
        self.text, self.pieces = "", 0
        self.reason: str | None = None
        self.tokens: int | None = None

    def add(self, body: Any, part: str) -> None:
        """Takes one JSON object; `part` is `delta` in a stream, else `message`.

        Raises:
            BrokenAnswerError: it is an error, or of another shape.
        """
        if not isinstance(body, dict):
            raise BrokenAnswerError("it is no JSON object")
        if error := body.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise BrokenAnswerError(str(message or "the server reports an error"))
        choices, usage = body.get("choices"), body.get("usage")
        if not isinstance(choices, list):
            raise BrokenAnswerError("it has no choices")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.tokens = usage["completion_tokens"]
        for choice in choices[:1]:
            if not isinstance(choice, dict):
                raise BrokenAnswerError("a choice is no JSON object")
            said = choice.get(part)
            piece = said.get("content") if isinstance(said, dict) else None
            self.reason = choice.get("finish_reason") or self.reason
            if isinstance(piece, str) and piece:
                self.text += piece
                self.pieces += 1
                if self.on_text is not None:
                    self.on_text(piece)

    def follow(self, lines: Iterable[bytes]) -> None:
        """Takes the events of a stream up to its end. Raises BrokenAnswerError."""
        for line in lines:
            name, _, data = line.partition(b":")
            if name != b"data":
                continue
            if data.strip() == b"[DONE]":
                return
            self.add(decoded(data), "delta")
        if self.reason is None:
            raise BrokenAnswerError("it ended before its end")

    def answer(self) -> WrittenAnswer:
        """The answer so far; its tokens are the pieces where the server counts none."""
        tokens = self.pieces if self.tokens is None else self.tokens
        return WrittenAnswer(self.text.strip(), tokens, self.reason == "length")


def decoded(data: bytes) -> Any:
    """The JSON in some bytes. Raises BrokenAnswerError."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise BrokenAnswerError("it is no JSON") from error


LONGEST = 200
"""Characters of a server's message."""
_END = "the address usually ends in /v1, as http://127.0.0.1:11434/v1"


def no_connection(url: str, error: requests.RequestException, silence_s: float) -> ReaderError:
    """The server cannot be reached, breaks off, or is silent."""
    if isinstance(error, requests.ConnectTimeout):
        return ReaderError(
            f"the reader at {url} does not answer", "is the address right, and the network up?"
        )
    silent = isinstance(error, requests.Timeout) or "Read timed out" in str(error)
    if silent:
        return ReaderError(
            f"the reader at {url} was silent for {silence_s:g} s",
            "ask again when its model is loaded, choose a smaller one by --reader-model, or give a "
            "longer --reader-timeout",
        )
    if isinstance(error, requests.exceptions.SSLError):
        return ReaderError(
            f"the reader at {url} has no certificate that can be trusted: {_cause(error)}",
            "is it http:// in place of https://?",
        )
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return ReaderError(f"the reader at {url} broke off its answer", "ask again")
    return ReaderError(
        f"the reader at {url} cannot be reached: {_cause(error)}",
        f"is the server running, and is the address right? {_END}",
    )


def bad_answer(url: str, why: str) -> ReaderError:
    """The server sent something that is no chat completion."""
    return ReaderError(
        f"the answer of the reader at {url} cannot be used: {_short(why)}",
        "ask again; is it a server of OpenAI's chat completions?",
    )


def no_words(url: str, model: str, cut: bool) -> ReaderError:
    hint = "give it more room: --max-new-tokens 1000" if cut else "choose another by --reader-model"
    why = ", which may have gone into its thoughts" if cut else ""
    return ReaderError(f"the model {model} at {url} answered no words{why}", hint)


def refusal(url: str, response: Any, model: str | None, known: Sequence[str] = ()) -> ReaderError:
    """A status other than 200.

    Args:
        model: that was asked. known: names of the server's models.
    """
    status, said = response.status_code, message_of(response)
    if 300 <= status < 400:
        where = _short(response.headers.get("location", "another address"))
        return ReaderError(f"the reader at {url} has moved to {where}", "give that address")
    if status in (401, 403):
        return ReaderError(
            f"the reader at {url} refuses the key: {said}",
            f"set the environment variable {KEY} to the server's key",
        )
    if status == 404:
        names = ", ".join(known[:8])
        if model is not None and (known or "model" in said.lower()):
            there = f"it has {names}" if names else "see which models the server has"
            return ReaderError(
                f"the reader at {url} has no model {model}: {said}", f"{there}; --reader-model NAME"
            )
        return ReaderError(f"the reader at {url} has no chat completions there: {said}", _END)
    if status == 429:
        return ReaderError(
            f"the reader at {url} takes no more questions now: {said}", "ask again later"
        )
    if status >= 500:
        return ReaderError(
            f"the reader at {url} failed with status {status}: {said}", "see the server's log"
        )
    return ReaderError(
        f"the reader at {url} refuses the question with status {status}: {said}",
        "choose another model by --reader-model, or ask a shorter question",
    )


def message_of(response: Any) -> str:
    """What the server says about an error, shortly."""
    try:
        found = json.loads(response.content)
    except (ValueError, requests.RequestException):
        return _short(response.reason or f"status {response.status_code}")
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return _short(str(error))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _cause(error: BaseException) -> str:
    """The innermost reason of a failed connection, as the system words it."""
    inner: Any = error.args[0] if error.args else error
    reason = getattr(inner, "reason", None) or inner
    text = first_line(reason) if isinstance(reason, BaseException) else str(reason)
    return _short(text.rpartition("[Errno")[2].partition("]")[2].strip() or text)


CONNECT_S = 10.0
TRIES = 3
"""Further tries."""
BACKOFF_S = 0.5
LONGEST_WAIT_S = 30.0
AGAIN = (429, 500, 502, 503)
USER_AGENT = "esa-cli"


class PatientRetry(Retry):
    """urllib3's tries, which also try a POST again, but nothing that took too long."""

    def increment(self, *given: Any, **named: Any) -> PatientRetry:
        error = named.get("error")
        if isinstance(error, ReadTimeoutError):
            raise error
        return super().increment(*given, **named)

    def get_retry_after(self, response: Any) -> float | None:
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, LONGEST_WAIT_S)


class ShownKey(requests.auth.AuthBase):
    """The key as a bearer token; without one no other login, as of ~/.netrc, is sent."""

    def __init__(self, key: str | None) -> None:
        self.key = key

    def __call__(self, request: Any) -> Any:
        if self.key is not None:
            request.headers["Authorization"] = f"Bearer {self.key}"
        return request


class ServerConnection:
    """Requests to one server.

    Args:
        silence_s: the longest wait for its next words.
    """

    def __init__(self, address: ServerAddress, silence_s: float) -> None:
        self.address, self.silence_s = address, silence_s
        self._session = requests.Session()
        self._session.trust_env = not address.here  # a proxy is not for this machine's own server
        self._session.auth = ShownKey(address.key)
        self._session.headers["User-Agent"] = USER_AGENT
        retry = PatientRetry(
            total=TRIES, status_forcelist=AGAIN, allowed_methods=None, raise_on_status=False,
            backoff_factor=BACKOFF_S, redirect=False,
        )  # fmt: skip
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))

    def get(self, path: str) -> requests.Response:
        """Raises requests.RequestException."""
        return self._send("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> requests.Response:
        """The response, whose body is read as it comes. Raises requests.RequestException."""
        return self._send("POST", path, json=body, stream=True)

    def close(self) -> None:
        """Ends open connections."""
        self._session.close()

    def _send(self, method: str, path: str, **more: Any) -> requests.Response:
        return self._session.request(
            method, self.address.url + path, allow_redirects=False,
            timeout=(CONNECT_S, self.silence_s), **more,
        )  # fmt: skip


SILENCE_S = 300.0
"""The longest wait for its next words: a server may load its model first."""
WHOLE_S = 900.0
"""The longest an answer takes."""
MODELS, COMPLETIONS = "/models", "/chat/completions"
_CHANGEABLE = {"temperature": None, "top_p": None, "seed": None,
               "max_tokens": "max_completion_tokens"}  # fmt: skip
"""Parameters that some models refuse -> the one to send in its place."""


class ServerReader:
    """Words answers with a model of a server. Asks for the server's models when it is made.

    Args:
        model: its name there; None: the first that the server lists.
        silence_s, whole_s: the longest wait for the next words, and for the whole answer.

    Raises:
        ReaderError: the server cannot be reached, refuses the key, or has no such model.
    """

    nbytes = 0

    def __init__(
        self,
        address: ServerAddress,
        model: str | None = None,
        *,
        silence_s: float = SILENCE_S,
        whole_s: float = WHOLE_S,
    ) -> None:
        self.address, self.whole_s = address, whole_s
        self._connection = ServerConnection(address, silence_s)
        self._known = self._models(model)
        self.name = model or self._known[0]
        self._renamed: dict[str, str | None] = {}

    def write(
        self,
        question: str,
        passages: Sequence[Evidence],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None] | None = None,
    ) -> WrittenAnswer:
        """See `AnswerReader.write`."""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": messages(question, passages, history),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": True,
        }
        if sampling.max_new_tokens is not None:
            body["max_tokens"] = sampling.max_new_tokens
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        until, got = time.monotonic() + self.whole_s, CompletionText(on_text)
        try:
            with self._accepted(body) as response:
                self._take(response, got, until)
        except requests.RequestException as error:
            raise self._unreachable(error) from error
        except BrokenAnswerError as error:
            raise bad_answer(self.address.url, str(error)) from error
        answer = got.answer()
        if not answer.text:
            raise no_words(self.address.url, self.name, answer.cut)
        return answer

    def close(self) -> None:
        """See `AnswerReader.close`."""
        self._connection.close()

    def _accepted(self, body: dict[str, Any]) -> requests.Response:
        """The response with status 200; a parameter that the model refuses is left out.

        Raises:
            ReaderError: another status. requests.RequestException.
        """
        while True:
            sent = dict(body)
            for name, other in self._renamed.items():
                value = sent.pop(name, None)
                if other is not None:
                    sent[other] = value
            response = self._connection.post(COMPLETIONS, sent)
            if response.status_code == 200:
                return response
            with response:
                refused = _refused_parameter(response)
                if refused is None or refused in self._renamed:
                    raise refusal(self.address.url, response, self.name, self._known)
            self._renamed[refused] = _CHANGEABLE[refused]

    def _take(self, response: requests.Response, got: CompletionText, until: float) -> None:
        """Raises ReaderError: it takes too long. BrokenAnswerError, requests.RequestException."""

        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        streamed = kind == "text/event-stream"
        # Without chunks of its own, the body is read byte by byte, or events would wait.
        size = 1 if streamed and not getattr(response.raw, "chunked", False) else 65_536

        def lines() -> Iterator[bytes]:
            for line in response.iter_lines(chunk_size=size):
                if time.monotonic() > until:
                    raise ReaderError(
                        f"the reader at {self.address.url} took longer than {self.whole_s:g} s",
                        "choose a smaller model by --reader-model, a lower --max-new-tokens, or a "
                        "longer --reader-timeout",
                    )
                yield line

        if streamed:
            got.follow(lines())
        else:
            got.add(decoded(b"\n".join(lines())), "message")

    def _models(self, model: str | None) -> list[str]:
        """Names of the server's models; none where it lists none and `model` is given.

        Raises:
            ReaderError.
        """
        url = self.address.url
        try:
            response = self._connection.get(MODELS)
            if response.status_code == 404 and model is not None:
                return []  # not every server lists them
            if response.status_code != 200:
                raise refusal(url, response, None)
            listed = decoded(response.content)
        except requests.RequestException as error:
            raise self._unreachable(error) from error
        except BrokenAnswerError as error:
            raise bad_answer(url + MODELS, str(error)) from error
        data = listed.get("data") if isinstance(listed, dict) else None
        names = [one.get("id") for one in data or () if isinstance(one, dict)]
        found = [name for name in names if isinstance(name, str) and name]
        if not found and model is None:
            raise ReaderError(
                f"the reader at {url} lists no models", "name one by --reader-model NAME"
            )
        return found

    def _unreachable(self, error: requests.RequestException) -> ReaderError:
        return no_connection(self.address.url, error, self._connection.silence_s)


def _refused_parameter(response: requests.Response) -> str | None:
    """The parameter that a model does not take, where the server names one that may be changed."""
    if response.status_code not in (400, 422):
        return None
    try:
        error = decoded(response.content).get("error")
        name = error.get("param")
    except (BrokenAnswerError, AttributeError):
        return None
    return name if name in _CHANGEABLE else None
