"""A server in a thread, and what asks it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
from fake_asker import FakeAsker, fake_book

from esa_cli.apps.server import server_app
from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.apps.server.server_app import ServerLimits, make_asgi_app

TOKEN = "let-me-in"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


class LiveServer:
    """A server in a thread."""

    def __init__(self, asker: FakeAsker, folder: Path, **more: Any) -> None:
        self.asker, self.notes = asker, list[str]()
        self.clients: list[openai.OpenAI] = []
        fixed = more.pop("fixed", ["alpha"])
        fixed = [fake_book(one) if type(one) is str else one for one in fixed]
        allowed = more.pop("allowed", [folder / "open"])
        token = more.pop("token", None)
        library = more.pop("library", None)
        documents = AllowedDocuments(
            asker, fixed, allowed, library, with_library=library is not None,
            max_opened=more.pop("max_opened", None),
        )  # fmt: skip
        log = more.pop("access_log", None)
        reporter: Any = SimpleNamespace(show_note=self.notes.append, warn=self.notes.append)
        app = make_asgi_app(documents, token, ServerLimits(**more), reporter, access_log=log)
        self.sock = server_app.open_listening_socket("127.0.0.1", 0)
        self.url = server_app.make_base_url(self.sock)
        self.port = self.sock.getsockname()[1]
        self.server = server_app.make_uvicorn_server(app)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.sock]})
        self.thread.start()

    def client(self, token: str = "any", **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=token, max_retries=0, timeout=20, **more)

    def ask(self, question: str = "one", **more: Any) -> Any:
        messages = more.pop("messages", [{"role": "user", "content": question}])
        client = self.client()
        self.clients.append(client)  # a stream is read after this
        return client.chat.completions.create(model="any", messages=messages, **more)

    def raw(
        self, method: str, path: str, body: bytes | str | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        found = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        found.request(method, path, body, names)
        answer = found.getresponse()
        data = answer.read()
        found.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, answer.headers, json.loads(data) if is_json else data.decode()

    def post(self, body: Any, **headers: str) -> tuple[int, Any, Any]:
        data = body if isinstance(body, bytes | str) else json.dumps(body)
        return self.raw("POST", "/v1/chat/completions", data, **headers)

    def close(self) -> None:
        """It ends while the next test runs."""
        self.asker.gate.set()
        for client in self.clients:
            client.close()
        self.server.should_exit = True
        ENDING.append(self.thread)


Start = Callable[..., LiveServer]
ENDING: list[threading.Thread] = []


def user(text: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def send(live: LiveServer, question: str, **more: Any) -> socket.socket:
    data = json.dumps({**user(question), **more}).encode()
    sock = socket.create_connection(("127.0.0.1", live.port), 20)
    sock.sendall(HEAD % len(data) + data)
    return sock
