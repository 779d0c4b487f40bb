"""What went wrong with a server that words answers, as an error that says what to try."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import requests

from esa_cli.errors import ReaderError, first_line
from esa_cli.qa.second_model.server_address import KEY

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
