"""A finder on a server of embeddings: one vector for each window."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, UsageError
from esa_cli.qa.api import Esa
from esa_cli.qa.finding import embedding_finder
from esa_cli.qa.finding.embedding_finder import EmbeddingFinder, parse_address
from esa_cli.qa.finding.passage_finder import PassageFinder
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library

BOAT = "A grey boat lies at the pier, and nobody knows whose boat it is. " * 30
TEXT = f"{BOAT}\n\nThe northern gate opens at nine.\n\n{BOAT}"
QUESTION = "When does the northern gate open?"


def embed(text: str) -> list[float]:
    numbers = [crc32(word.encode()) % 33 for word in text.lower().rstrip("?").split()]
    return [0.01 + numbers.count(n) for n in range(33)]


class Server(BaseHTTPRequestHandler):
    """Counts words; each request takes the next of `modes`, and the last one stays."""

    modes: tuple[str, ...] = ()
    seen: tuple[tuple[list[str], str | None], ...] = ()

    def log_message(self, *given: Any) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        Server.seen += ((texts, self.headers.get("authorization")),)
        mode, *rest = Server.modes
        Server.modes = tuple(rest) or Server.modes
        data = [{"index": n, "embedding": embed(text)} for n, text in enumerate(texts)]
        self.send_response(int(mode) if mode.isdecimal() else 200)
        self.end_headers()
        body = {"vectors": {"data": data[::-1]}, "short": {"data": data[1:]}}
        self.wfile.write(json.dumps(body.get(mode, "a page")).encode())


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(embedding_finder, "BACKOFF_S", 0.001)
    monkeypatch.setenv("ESA_FINDER_KEY", "let-me-in")
    Server.seen, Server.modes = (), ("503", "429", "vectors")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1#tiny"
        server.shutdown()


def test_each_window_has_its_own_vector(address: str, tmp_path: Path) -> None:
    chosen = load_preset("tiny-random", ["answer.from=text", f"answer.finder='{address}'"])
    loaded: Any = models.load("random:llama", device="cpu", dtype="float32")
    document, library = Document("t", TEXT, "t", "utf-8", len(TEXT)), Library(tmp_path / "library")
    with Esa(loaded, chosen, library=library) as esa:
        book, asked = esa.ingest(document), len(Server.seen)
        texts = [TEXT[one.start : one.end] for one in PassageFinder([book]).index.windows]
        assert [text for batch, _ in Server.seen[3:] for text in batch] == texts
        assert {key for _, key in Server.seen} == {"Bearer let-me-in"}
        again = esa.ingest(document)
        assert (again.read_s, len(Server.seen)) == (0.0, asked), "it is stored"
        reduced = esa.search.encode_question(QUESTION, [again])
        assert reduced is not None
        late = PassageFinder([again]).score_by_late_interaction(reduced)[0]
        vectors, query = torch.tensor([embed(text) for text in texts]), embed(QUESTION)
        want = torch.cosine_similarity(vectors, torch.tensor([query]))
        torch.testing.assert_close(late, want, atol=0.02, rtol=0)
        assert "northern gate" in esa.find_passages(QUESTION, [again])[0].text
        assert esa.ask(QUESTION, [again]).read


def test_errors_say_what_is_wrong(address: str) -> None:
    Server.modes = ("vectors", "short")
    finder = EmbeddingFinder(address)
    with pytest.raises(ModelError, match="no vector for each text"):
        finder.encode_questions(["one", "two"])
    for mode, message in (("401", "status 401"), ("page", "no vector"), ("503", "status 503")):
        Server.modes = (mode,)
        with pytest.raises(ModelError, match=message):
            EmbeddingFinder(address)
    for wrong, message in (("http://a/v1", "URL#MODEL"), ("http://a/v1#m", "unencrypted")):
        with pytest.raises(UsageError, match=message):
            parse_address(wrong)
    with pytest.raises(ModelError, match="cannot be reached"):
        EmbeddingFinder("http://127.0.0.1:1/v1#m")
