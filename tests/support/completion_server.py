"""A tiny server of chat completions. Each question takes the next mode; the last one stays."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ["At ", "nine", ", says [1]."]
KEY = "let-me-in"


def chunk(**choice: Any) -> bytes:
    body = {"object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class CompletionServer(ThreadingHTTPServer):
    """Listens on a free port; requests are in `seen`."""

    daemon_threads = True

    def __init__(self, modes: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.modes = modes
        self.seen: list[dict[str, Any]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients end an answer that is too slow."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CompletionServer

    def log_message(self, *given: Any) -> None:
        """Nothing."""

    def note(self, body: Any) -> None:
        key = self.headers.get("authorization")
        self.server.seen.append({"path": self.path, "key": key, "body": body})

    def reply(self, status: int, body: Any, kind: str = "application/json", **more: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        headers = {"content-type": kind, "content-length": str(len(data)), **more}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.note(None)
        mode = self.server.modes[0]
        if mode == "guarded" and self.headers.get("authorization") != f"Bearer {KEY}":
            self.reply(401, {"error": {"message": "who are you?"}})
        elif mode == "unlisted" or not self.path.startswith("/v1/"):
            self.reply(404, {"detail": "Not Found"})
        elif mode == "empty":
            self.reply(200, {"object": "list", "data": []})
        elif mode == "embedders":
            self.reply(200, {"data": [{"id": "nomic-embed-text"}, {"id": "Qwen3-Embedding"}]})
        elif mode == "page":
            self.reply(200, b"<!doctype html><p>a router</p>", "text/html")
        elif mode == "nested":
            self.reply(200, b"[" * 100_000)
        elif mode == "endless":
            self.reply(200, b'{"data": [], "words": "%s"}' % (b"x" * 5_000))
        elif mode == "moved":
            self.reply(301, b"", location="https://elsewhere.example/v1")
        elif mode == "windows":
            models = [{"id": "embedder", "max_model_len": 512}, {"id": "large"}]
            self.reply(200, {"data": [*models, {"id": "small", "max_model_len": 9_000}]})
        else:
            self.reply(200, {"data": [{"id": "large"}, {"id": "small"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.note(body)
        modes = self.server.modes
        mode = modes.pop(0) if len(modes) > 1 else modes[0]
        getattr(self, mode, self.stream)(body)

    def events(self, pieces: list[bytes]) -> None:
        """With the chunks of HTTP, as servers stream."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            time.sleep(0.01)

    def stream(self, body: Any, words: list[str] = WORDS, reason: str = "stop") -> None:
        role = chunk(delta={"role": "assistant", "content": ""})
        said = [chunk(delta={"content": word}) for word in words]
        end = chunk(delta={}, finish_reason=reason)
        self.events([role, b": waiting\n\n", *said, end, b"data: [DONE]\n\n"])
        self.wfile.write(b"0\r\n\r\n")

    def whole(self, body: Any) -> None:
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.reply(200, {"choices": [choice], "usage": {"completion_tokens": 41}})

    def plain(self, body: Any) -> None:
        """A stream that ends with the connection, without chunks."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for word in WORDS:
            self.wfile.write(chunk(delta={"content": word}))
        self.wfile.write(b"data: [DONE]\r\n\r\n")
        self.close_connection = True

    def unknown(self, body: Any) -> None:
        self.stream(body, ["The documents ", "do not say."])

    def invented(self, body: Any) -> None:
        self.stream(
            body, ["The gate opens at nine [1]. ", "It was built by Ann Brown", " in 1803."]
        )

    def thoughts(self, body: Any) -> None:
        self.stream(body, [], "length")

    def half(self, body: Any) -> None:
        """The connection breaks in the middle."""
        self.events([chunk(delta={"content": "At "})])
        self.close_connection = True

    def unended(self, body: Any) -> None:
        self.events([chunk(delta={"content": "At "})])
        self.wfile.write(b"0\r\n\r\n")

    def broken(self, body: Any) -> None:
        self.events([b"data: {oops\n\n"])
        self.wfile.write(b"0\r\n\r\n")

    def failing(self, body: Any) -> None:
        self.events([b'data: {"error": {"message": "out of\\u001b[2J memory"}}\n\n'])
        self.wfile.write(b"0\r\n\r\n")

    def nested(self, body: Any) -> None:
        self.events([b"data: " + b"[" * 100_000 + b"\n\n"])
        self.wfile.write(b"0\r\n\r\n")

    def objecting(self, body: Any) -> None:
        """To a parameter that is no text."""
        self.reply(400, {"error": {"message": "wrong", "param": ["max_tokens"]}})

    def silent(self, body: Any) -> None:
        time.sleep(20)

    def trickle(self, body: Any) -> None:
        self.events([b": waiting\n\n"] * 2000)

    def busy(self, body: Any) -> None:
        self.reply(429, {"error": {"message": "later"}}, retry_after="0")

    def down(self, body: Any) -> None:
        self.reply(503, {"error": "loading the model"}, retry_after="0")

    def drop(self, body: Any) -> None:
        self.close_connection = True

    def page(self, body: Any) -> None:
        self.reply(200, b"<!doctype html>", "text/html")

    def missing(self, body: Any) -> None:
        self.reply(404, {"error": {"message": f"model {body['model']!r} not found"}})

    def long(self, body: Any) -> None:
        self.reply(400, {"error": {"message": "the context is 512 tokens\n" + "x" * 900}})

    def picky(self, body: Any) -> None:
        """As models that think: other names, and no temperature."""
        for name in ("max_tokens", "temperature"):
            if name in body:
                error = {"message": f"Unsupported parameter: {name}", "param": name}
                return self.reply(400, {"error": error})
        return self.stream(body)
