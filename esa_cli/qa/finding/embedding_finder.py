"""A finder that asks a server for embeddings, one vector for each window of a document.

The server speaks OpenAI's `/v1/embeddings`, and receives whole documents and questions."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, UsageError, get_first_line
from esa_cli.qa.finding.finder import FinderSizes, TokenisedDocument
from esa_cli.qa.finding.words import WINDOW_WORDS, list_sentence_words
from esa_cli.system.machine import is_loopback_host

KEY = "ESA_FINDER_KEY"
"""The environment variable with the server's API key."""
BATCH = 32
"""The number of texts in one request."""
TIMEOUT_S = (10.0, 300.0)
"""The maximum wait for a connection, and for an answer; the server may first load its model."""
TRIES, BACKOFF_S, RETRIED = 3, 0.5, (429, 500, 502, 503)
MAX_MESSAGE = 200
"""The maximum number of characters that are shown of a server's message."""
_EXAMPLE = "for example --finder ollama#nomic-embed-text"


class EmbeddingFinder:
    """A finder whose tokens are a document's windows, each with the vector of a server's model. The
    `address` is the base URL and the name of the model, as http://127.0.0.1:11434/v1#MODEL.

    Raises UsageError: the address or key is invalid. ModelError: the server cannot be used."""

    uses_preset_model, piece = False, 256

    def __init__(self, address: str) -> None:
        if importlib.util.find_spec("requests") is None:
            wrong = "a finder on a server needs the package requests"
            raise UsageError(wrong, "run pip install 'esa-cli[reader]'")
        from requests import Session
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        self.url, self.model, key = parse_address(address)
        self._session = Session()
        # A server of this machine is asked directly, without a proxy.
        self._session.trust_env = not is_loopback_host(urlsplit(self.url).hostname or "")
        self._session.auth = lambda request: request  # no login of ~/.netrc is sent
        if key is not None:
            self._session.headers["Authorization"] = f"Bearer {key}"
        retry = Retry(
            TRIES, read=0, status_forcelist=RETRIED, allowed_methods=None,
            backoff_factor=BACKOFF_S, raise_on_status=False,
        )  # fmt: skip
        self._session.mount(self.url, HTTPAdapter(max_retries=retry))
        width = len(self._request_vectors(["width"])[0])
        self.sizes = FinderSizes(0, width, self.model, unit="window", server=self.url)
        self.layout = self.sizes.layout
        # The weights are unseen: an index is of the server's address and the model's name.
        self.digest = hashlib.sha256(f"{self.url}#{self.model} {width}".encode()).hexdigest()

    def tokenise(self, document: Document) -> TokenisedDocument:
        """Divides a document into the windows that are scored; ids are hashes of their texts."""
        windows = list_sentence_words(document.text).cut_windows(WINDOW_WORDS)
        spans = [(window.start, window.end) for window in windows]
        texts = [document.text[start:end].encode("utf-8", "replace") for start, end in spans]
        ids = [int.from_bytes(hashlib.sha256(text).digest()[:7]) for text in texts]
        return TokenisedDocument(document, ids, torch.tensor(spans).reshape(-1, 2))

    def encode_tokens(self, text: TokenisedDocument, first: int, last: int) -> Tensor:
        return self._embed([text.document.text[a:b] for a, b in text.offsets[first:last].tolist()])

    def encode_questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        return self._embed(texts)[:, None], torch.ones(len(texts), 1)

    def _embed(self, texts: Sequence[str]) -> Tensor:
        """Returns the vectors (n, R) of texts, scaled to unit length."""
        starts = range(0, len(texts), BATCH)
        rows = [row for at in starts for row in self._request_vectors(texts[at : at + BATCH])]
        if any(len(row) != self.sizes.dim for row in rows):
            raise self._make_error("sent vectors of several widths")
        vectors = torch.tensor(rows).reshape(-1, self.sizes.dim)
        return nn.functional.normalize(self.sizes.make_width_even(vectors), dim=-1)

    def _request_vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Requests the vectors of texts, in their order. Raises ModelError."""
        body = {"model": self.model, "input": list(texts)}
        try:
            response = self._session.post(
                f"{self.url}/embeddings", json=body, timeout=TIMEOUT_S, allow_redirects=False
            )
        except OSError as error:  # of which the exceptions of requests are kinds
            wrong = f"cannot be reached: {get_first_line(error)[:MAX_MESSAGE]}"
            raise self._make_error(wrong) from error
        if response.status_code != 200:
            said = " ".join(response.text.split())[:MAX_MESSAGE]
            raise self._make_error(f"failed with status {response.status_code}: {said}")
        try:
            data = sorted(response.json()["data"], key=lambda one: int(one["index"]))
            rows = [[float(number) for number in one["embedding"]] for one in data]
        except (ValueError, KeyError, TypeError):
            rows = []
        if len(rows) != len(texts) or not all(rows):
            raise self._make_error("sent no vector for each text")
        return rows

    def _make_error(self, problem: str) -> ModelError:
        hint = f"check that the server runs, its address, the model and {KEY}; {_EXAMPLE}"
        return ModelError(f"the finder at {self.url} {problem}", hint)


def parse_address(address: str) -> tuple[str, str, str | None]:
    """Returns the base URL, the model and the API key for URL#MODEL. Raises UsageError: a part is
    missing, or the key would go unencrypted to another machine."""
    url, _, model = address.strip().partition("#")
    url, parts = url.rstrip("/"), urlsplit(url)
    if not parts.hostname or "@" in url or parts.query or not model:
        raise UsageError(f"--finder must be URL#MODEL, got {address!r}", _EXAMPLE)
    key = os.environ.get(KEY, "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(f"{KEY} must be printable ASCII without spaces", "set the key again")
    if key is not None and parts.scheme == "http" and not is_loopback_host(parts.hostname):
        hint = f"name an https:// address or a tunnel to this machine by --finder, or unset {KEY}"
        raise UsageError(f"the API key in {KEY} would go to {url} unencrypted", hint)
    return url, model, key


open_embedding_finder = lru_cache(maxsize=4)(EmbeddingFinder)
"""Opens a finder once for a process, because each opening asks the server."""
