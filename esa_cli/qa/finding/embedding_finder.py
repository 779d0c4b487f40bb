"""A finder that asks a server for embeddings, one vector for each window of a document.

The server speaks OpenAI's `/v1/embeddings`, and receives whole documents and questions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, UsageError, get_first_line
from esa_cli.qa.finding.finder import FinderSizes, TokenisedDocument
from esa_cli.qa.finding.model_server import (
    ServerConnection,
    read_json_body,
    read_refusal,
    shorten_message,
)
from esa_cli.qa.finding.words import WINDOW_WORDS, list_sentence_words

BATCH = 32
"""The number of texts in one request."""
_EXAMPLE = "for example --finder ollama#nomic-embed-text"


class EmbeddingFinder:
    """A finder whose tokens are a document's windows, each with the vector of a server's model. The
    `address` is the base URL and the name of the model, as http://127.0.0.1:11434/v1#MODEL.

    Raises UsageError: the address or key is invalid. ModelError: the server cannot be used."""

    uses_preset_model, piece = False, 256

    def __init__(self, address: str) -> None:
        url, _, self.model = address.strip().partition("#")
        if not self.model:
            raise UsageError(f"--finder must be URL#MODEL, got {address!r}", _EXAMPLE)
        self._server = ServerConnection.parse(url, "finder")
        self.url = self._server.url
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
        vectors = nn.functional.normalize(self.sizes.make_width_even(vectors), dim=-1)
        if not vectors.isfinite().all():  # a length may overflow, too
            raise self._make_error("sent numbers that are too large, or none")
        return vectors

    def _request_vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Requests the vectors of texts, in their order. Raises ModelError."""
        body = {"model": self.model, "input": list(texts)}
        try:
            with self._server.send_request("POST", "/embeddings", body) as response:
                if response.status_code != 200:
                    said, _ = read_refusal(response)
                    raise self._make_error(f"failed with status {response.status_code}: {said}")
                data = sorted(read_json_body(response)["data"], key=lambda one: int(one["index"]))
            rows = [[float(number) for number in one["embedding"]] for one in data]
        except OSError as error:  # of which the exceptions of requests are kinds
            wrong = f"cannot be reached: {shorten_message(get_first_line(error))}"
            raise self._make_error(wrong) from error
        except (ValueError, KeyError, TypeError, OverflowError):
            rows = []
        if len(rows) != len(texts) or not all(rows):
            raise self._make_error("sent no vector for each text")
        return rows

    def _make_error(self, problem: str) -> ModelError:
        hint = f"check that the server runs, its address, the model and ESA_FINDER_KEY; {_EXAMPLE}"
        return ModelError(f"the finder at {self.url} {problem}", hint)


open_embedding_finder = lru_cache(maxsize=4)(EmbeddingFinder)
"""Opens a finder once for a process, because each opening asks the server."""
