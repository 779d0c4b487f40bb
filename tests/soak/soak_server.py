"""A server under many clients at once: whole, broken, slow and hostile ones."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fake_asker import FakeAsker
from live_server import ENDING, HEAD, TOKEN, LiveServer, user
from soak_part import SoakPart

CLIENTS = 50
SECRET = "the secret of another folder"
STATUSES = {200, 400, 401, 403, 404, 405, 408, 413, 429, 431, 499, 504}
PATHS = ["/v1/chat/completions", "/v1/models", "/health", "/", "/v1/models/../../x", "*"]
VALUES = ["", "evil.org", "localhost", "null", "http://localhost:1", "chunked", "-1", "9" * 30,
          "a" * 5000, "Bearer x", "\x01", "[::1"]  # fmt: skip


class SoakServer(SoakPart):
    name = "server"

    def __init__(self, out: Path, seed: int) -> None:
        super().__init__(out, seed)
        for name in ("uvicorn.error", "asyncio"):  # a line for each broken request
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.temporary = tempfile.TemporaryDirectory(prefix="esa-soak-")
        self.folder = Path(self.temporary.name)
        (self.folder / "open").mkdir()
        (self.folder / "open/a.txt").write_text("text a", "utf-8")
        (self.folder / "secret.txt").write_text(SECRET, "utf-8")
        (self.folder / "open/link.txt").symlink_to(self.folder / "secret.txt")

    def run(self, until: float) -> None:
        token = self.draw.choice([None, TOKEN])
        asker = FakeAsker(delay=0.001)
        live = LiveServer(asker, self.folder, token=token, max_body=20_000, timeout_s=5.0)
        try:
            with ThreadPoolExecutor(CLIENTS) as pool:
                while True:
                    seeds = [self.draw.random() for _ in range(CLIENTS)]
                    for said in pool.map(lambda seed: self._client(live, token, seed), seeds):
                        self._count(*said)
                    self._is_well(live, token)
                    if time.monotonic() > until:
                        return
        finally:
            live.close()
            for thread in ENDING:
                thread.join(20)

    def _count(self, sent: bytes, answer: bytes, seconds: float) -> None:
        status = int(answer[9:12]) if answer[9:12].isdigit() else 0
        self.counts[str(status) if status else "hung up, or silent"] += 1
        if SECRET.encode() in answer or b"Traceback" in answer:
            self.finding(f"{answer!r}", "request", sent)
        elif status and status not in STATUSES:
            self.finding(f"status {status}: {answer!r}", "request", sent)
        elif seconds > 15:
            self.finding(f"{seconds:.1f} s for {answer[:100]!r}", "request", sent)

    def _client(
        self, live: LiveServer, token: str | None, seed: float
    ) -> tuple[bytes, bytes, float]:
        draw, started, answer = random.Random(seed), time.monotonic(), b""
        sent = request(draw, token)
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", live.port), 5) as s,
        ):
            s.settimeout(draw.choice([0.05, 1.0, 20.0]))
            pieces = [sent] if draw.random() < 0.8 else [sent[:20], sent[20:90], sent[90:]]
            for piece in pieces:
                s.sendall(piece)
                time.sleep(0 if len(pieces) == 1 else draw.random() / 5)
            if draw.random() < 0.9:
                while piece := s.recv(65536):
                    answer += piece
                    if b"\r\n\r\n" in answer and b"keep-alive" not in sent:
                        break
        return sent, answer, time.monotonic() - started

    def _is_well(self, live: LiveServer, token: str | None) -> None:
        """After all that, a good client gets its answer, and nobody else's."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        until = time.monotonic() + 20
        while live.raw("GET", "/health")[2]["questions"] and time.monotonic() < until:
            time.sleep(0.05)
        status, _, body = live.post(user("one two"), **headers)
        self.counts["well"] += 1
        if status != 200 or body["choices"][0]["message"]["content"] != "You asked: one two":
            self.finding(f"not well: {status} {body}")

    def end(self) -> None:
        self.temporary.cleanup()


def request(draw: random.Random, token: str | None) -> bytes:
    """A request, good in one of two."""
    body = user(draw.choice(["one", "one two three", "x" * 500, "\u0000", ""]))
    if draw.random() < 0.3:
        names = ["a.txt", "link.txt", "../secret.txt", "/etc/passwd", "a\0", "", "open", "x" * 5000]
        body["documents"] = draw.choices(names, k=draw.choice((1, 1, 3, 70)))
    if draw.random() < 0.3:
        options = {"stream": True, "temperature": -1, "max_tokens": 10**30, "seed": "x", "n": 2,
                   "evidence": 99, "tools": [1], "messages": [[]], "stop": ["x"]}  # fmt: skip
        name = draw.choice(list(options))
        body[name] = options[name]
    data = json.dumps(body).encode()
    if draw.random() < 0.5:
        head = HEAD % len(data)
        if token and draw.random() < 0.9:
            head = head.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        return head + data
    if draw.random() < 0.3:
        data = draw.choice([b"[" * 15_000, b"x" * 30_000, data[: len(data) // 2], b"\xff" * 99])
    names = ["Host", "Origin", "Content-Length", "Transfer-Encoding", "Authorization", "Connection"]
    lines = [f"{draw.choice(['POST', 'GET', 'PUT', 'X'])} {draw.choice(PATHS)} HTTP/1.1"]
    lines += [f"{name}: {draw.choice(VALUES)}" for name in draw.sample(names, draw.randrange(4))]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + data
