"""A model on a server of OpenAI's chat completions (Ollama, llama.cpp, LM Studio, vLLM) that words
answers.

The question, the passages with their documents' names, and earlier turns are sent there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import requests

from esa_cli.errors import ReaderError
from esa_cli.qa.answering.reply import Evidence, Turn
from esa_cli.qa.second_model.answer_reader import Sampling, WrittenAnswer
from esa_cli.qa.second_model.completion_stream import BrokenAnswerError, CompletionText, decoded
from esa_cli.qa.second_model.reader_prompt import messages
from esa_cli.qa.second_model.server_address import ServerAddress
from esa_cli.qa.second_model.server_connection import ServerConnection
from esa_cli.qa.second_model.server_failure import bad_answer, no_connection, no_words, refusal

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
