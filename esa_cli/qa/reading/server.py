"""A model on a server of OpenAI's chat completions (Ollama, llama.cpp, LM Studio, vLLM) that words
answers.

The question, the passages with their documents' names, and earlier turns are sent there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ReadTimeoutError
from urllib3.util.retry import Retry

from esa_cli.errors import ReaderError, first_line
from esa_cli.qa.answering.reply import Passage, Reply, Turn, says_not_told
from esa_cli.qa.reading.reader import MOST_PASSAGES, Sampling, messages, unheard
from esa_cli.qa.reading.server_address import KEY, ServerAddress

CONNECT_S = 10.0
SILENCE_S = 300.0
"""The longest wait for a server's next words: it may load its model first."""
WHOLE_S = 900.0
"""The longest an answer takes."""
TRIES = 3
"""Further tries."""
BACKOFF_S = 0.5
LONGEST_WAIT_S = 30.0
AGAIN = (429, 500, 502, 503)
MODELS, COMPLETIONS = "/models", "/chat/completions"
LONGEST = 200
"""Characters of a server's message."""
CHANGEABLE = {"temperature": None, "top_p": None, "seed": None,
              "max_tokens": "max_completion_tokens"}  # fmt: skip
"""Parameters that some models refuse -> the one to send in its place."""
_END = "the address usually ends in /v1, as http://127.0.0.1:11434/v1"
_SLOW = "choose a smaller model by --reader URL#MODEL, or give a longer $ESA_READER_TIMEOUT"


class BrokenAnswerError(Exception):
    """What the server sent is no chat completion; the message says why."""


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
        self.address = address
        self._silence_s, self._whole_s = timeout_s or SILENCE_S, timeout_s or WHOLE_S
        self._session = requests.Session()
        self._session.trust_env = not address.here  # a proxy is not for this machine's own server
        self._session.auth = self._authorise  # no other login, as of ~/.netrc, is sent
        self._session.headers["User-Agent"] = "esa-cli"
        retry = PatientRetry(
            total=TRIES, status_forcelist=AGAIN, allowed_methods=None, raise_on_status=False,
            backoff_factor=BACKOFF_S, redirect=False,
        )  # fmt: skip
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))
        self._renamed: dict[str, str | None] = {}
        self._known: list[str] = []
        self.name = model or ""
        self._known = self._models(model)
        self.name = model or self._known[0]

    def answer(
        self,
        question: str,
        passages: Sequence[Passage],
        history: Sequence[Turn],
        sampling: Sampling,
        on_text: Callable[[str], None] = unheard,
    ) -> Reply:
        """See `Reader.answer`."""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": messages(question, passages[:MOST_PASSAGES], history),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": True,
        }
        if sampling.max_new_tokens is not None:
            body["max_tokens"] = sampling.max_new_tokens
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        until = time.monotonic() + self._whole_s
        try:
            with self._accepted(body) as response:
                reply = _completion(self._lines(response, until), on_text)
        except requests.RequestException as error:
            raise self._no_connection(error) from error
        except BrokenAnswerError as error:
            raise self._bad_answer(error) from error
        if not reply.text:
            what = f"answered no words by its model {self.name}"
            if reply.cut:
                what += ", which may have gone into its thoughts"
            raise self._error(what, "give it more room, as --max-new-tokens 1000, or another model")
        return reply

    def close(self) -> None:
        """See `Reader.close`."""
        self._session.close()

    def _authorise(self, request: Any) -> Any:
        if self.address.key is not None:
            request.headers["Authorization"] = f"Bearer {self.address.key}"
        return request

    def _send(self, method: str, path: str, **more: Any) -> requests.Response:
        """The response, whose body is read as it comes. Raises requests.RequestException."""
        return self._session.request(
            method, self.address.url + path, allow_redirects=False, stream=True,
            timeout=(CONNECT_S, self._silence_s), **more,
        )  # fmt: skip

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
            response = self._send("POST", COMPLETIONS, json=sent)
            if response.status_code == 200:
                return response
            with response:
                refused = _error(response).get("param")
                if refused not in CHANGEABLE or refused in self._renamed:
                    raise self._refusal(response)
            self._renamed[refused] = CHANGEABLE[refused]

    def _lines(self, response: requests.Response, until: float) -> Iterator[bytes]:
        """The lines of a stream of events, or a body that is no stream as one line `data: ...`.
        Raises ReaderError: it takes too long."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            yield b"data: " + response.content.replace(b"\n", b" ")
            yield b"data: [DONE]"
            return
        # Without chunks of its own, the body is read byte by byte, or events would wait.
        size = 65_536 if getattr(response.raw, "chunked", False) else 1
        for line in response.iter_lines(chunk_size=size):
            if time.monotonic() > until:
                raise self._error(f"took longer than {self._whole_s:g} s", _SLOW)
            yield line

    def _models(self, model: str | None) -> list[str]:
        """Names of the server's models; none where it lists none and `model` is given. Raises
        ReaderError."""
        try:
            response = self._send("GET", MODELS)
            if response.status_code == 404 and model is not None:
                return []  # not every server lists them
            if response.status_code != 200:
                raise self._refusal(response)
            listed = decoded(response.content)
        except requests.RequestException as error:
            raise self._no_connection(error) from error
        except BrokenAnswerError as error:
            raise self._bad_answer(error) from error
        data = listed.get("data") if isinstance(listed, dict) else None
        ids = [one.get("id") for one in data or () if isinstance(one, dict)]
        names = [name for name in ids if isinstance(name, str) and name]
        if not names and model is None:
            raise self._error("lists no models", "name one by --reader URL#MODEL NAME")
        return names

    def _no_connection(self, error: requests.RequestException) -> ReaderError:
        """The server cannot be reached, breaks off, or is silent."""
        what, hint = f"cannot be reached: {_cause(error)}", f"is the server running? {_END}"
        if isinstance(error, requests.ConnectTimeout):
            what, hint = "does not answer", "is the address right, and the network up?"
        elif isinstance(error, requests.Timeout) or "Read timed out" in str(error):
            what, hint = f"was silent for {self._silence_s:g} s", _SLOW
        elif isinstance(error, requests.exceptions.SSLError):
            what = f"has no certificate that can be trusted: {_cause(error)}"
            hint = "is it http:// in place of https://?"
        elif isinstance(error, requests.exceptions.ChunkedEncodingError):
            what, hint = "broke off its answer", "ask again"
        return self._error(what, hint)

    def _bad_answer(self, error: BrokenAnswerError) -> ReaderError:
        return self._error(
            f"gave an answer that cannot be used: {_short(str(error))}",
            "ask again; is it a server of OpenAI's chat completions?",
        )

    def _error(self, what: str, hint: str) -> ReaderError:
        return ReaderError(f"the reader at {self.address.url} {what}", hint)

    def _refusal(self, response: requests.Response) -> ReaderError:
        """A status other than 200."""
        status, message = response.status_code, _message(response)
        what = f"refuses the question with status {status}"
        hint = "choose another model by --reader URL#MODEL, or ask a shorter question"
        if 300 <= status < 400:
            message = _short(response.headers.get("location", "another address"))
            what, hint = "has moved", "give that address"
        elif status in (401, 403):
            what, hint = "refuses the key", f"set the environment variable {KEY} to it"
        elif status == 404 and (self._known or "model" in message.lower()):
            names = ", ".join(self._known[:8])
            what = f"has no model {self.name}"
            hint = (
                f"it has {names}; --reader URL#MODEL NAME"
                if names
                else "name one by --reader URL#MODEL"
            )
        elif status == 404:
            what, hint = "has no chat completions there", _END
        elif status == 429:
            what, hint = "takes no more questions now", "ask again later"
        elif status >= 500:
            what, hint = f"failed with status {status}", "see the server's log"
        return self._error(f"{what}: {message}", hint)


def _completion(lines: Iterator[bytes], on_text: Callable[[str], None]) -> Reply:
    """The answer in the events of a stream; its tokens are the pieces where the server counts none.
    Raises BrokenAnswerError: an error, or objects of another shape."""
    pieces, tokens, reason = list[str](), None, None
    for line in lines:
        field, _, data = line.partition(b":")
        if field != b"data":
            continue
        if data.strip() == b"[DONE]":
            break
        body = decoded(data)
        if not isinstance(body, dict):
            raise BrokenAnswerError("it is no JSON object")
        if error := body.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise BrokenAnswerError(str(message or "the server reports an error"))
        choices, usage = body.get("choices"), body.get("usage")
        if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
            raise BrokenAnswerError("it has no choices")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            tokens = usage["completion_tokens"]
        for choice in choices[:1]:
            part = choice.get("delta") or choice.get("message")
            piece = part.get("content") if isinstance(part, dict) else None
            reason = choice.get("finish_reason") or reason
            if isinstance(piece, str) and piece:
                pieces.append(piece)
                on_text(piece)
    else:
        if reason is None:
            raise BrokenAnswerError("it ended before its end")
    text, count = "".join(pieces).strip(), len(pieces) if tokens is None else tokens
    return Reply(text, found=not says_not_told(text), answer_tokens=count, cut=reason == "length")


def decoded(data: bytes) -> Any:
    """The JSON in some bytes. Raises BrokenAnswerError."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise BrokenAnswerError("it is no JSON") from error


def _error(response: requests.Response) -> dict[str, Any]:
    """The `error` of a refusal, with what there is of `message` and `param`."""
    try:
        body = json.loads(response.content)
    except (ValueError, requests.RequestException):
        return {}
    error = body.get("error", body) if isinstance(body, dict) else body
    return error if isinstance(error, dict) else {"message": error}


def _message(response: requests.Response) -> str:
    """What the server says about an error, shortly."""
    error = _error(response)
    text = error.get("message") or error.get("detail") or response.reason
    return _short(str(text or f"status {response.status_code}"))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _cause(error: BaseException) -> str:
    """The innermost reason of a failed connection, as the system words it."""
    inner: Any = error.args[0] if error.args else error
    reason = getattr(inner, "reason", None) or inner
    text = first_line(reason) if isinstance(reason, BaseException) else str(reason)
    return _short(text.rpartition("[Errno")[2].partition("]")[2].strip() or text)
