"""Who may connect, and the command that starts the server."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
import sample_files
from asking_command import run_command
from fake_asker import FakeAsker
from forked import child, ended
from live_server import HEAD, TOKEN, LiveServer, Start, until, user
from starlette.middleware import Middleware

from esa_cli.apps.cli.commands import serve_command as command
from esa_cli.apps.cli.commands.serve_command import ServeCommandOptions, check_serve_options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.server import server_app
from esa_cli.apps.server.access_log import AccessLogMiddleware
from esa_cli.documents.document import read_document
from esa_cli.errors import UsageError
from esa_cli.qa.presets.preset import load_preset
from esa_cli.system.machine import is_loopback_host


def test_the_token(start: Start) -> None:
    live = start(token=TOKEN)
    with live.client(TOKEN) as client:
        assert [one.id for one in client.models.list()] == ["fake-model"]
    for wrong in ("let-me-i", "let-me-in2", "", "\u00e9"):
        header = f"Bearer {wrong}".encode().decode("latin-1")
        status, headers, body = live.post(user("one"), Authorization=header)
        assert status == 401
        assert headers["www-authenticate"] == "Bearer"
        assert body["error"]["type"] == "authentication_error"
    assert live.post(user("one"), Authorization=f"Basic {TOKEN}")[0] == 401
    assert live.raw("GET", "/nowhere")[0] == 401
    assert live.raw("GET", "/health")[0] == 200
    assert live.post(user("one"), Authorization=f"bearer {TOKEN}", Host="elsewhere.org")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.org"}, 403),
        ({"Host": "localhost.evil.org"}, 403),
        ({"Host": "[x"}, 403),
        ({"Host": "[::1]:80"}, 200),
        ({"Origin": "https://evil.org"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost", "Origin": "https://localhost"}, 200),
        ({"Host": "localhost:8000", "Origin": "http://localhost:80000"}, 403),
    ],
)
def test_web_pages_cannot_ask(live: LiveServer, headers: dict[str, str], status: int) -> None:
    assert live.post(user("one"), **headers)[0] == status


def test_too_large_or_too_slow(
    start: Start, asker: FakeAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(max_body=200)
    assert live.post(user("x" * 100))[0] == 200
    assert live.post(user("x" * 200))[0] == 413
    chunks = (b"x" * 50 for _ in range(1000))  # without a length
    found = http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)
    with contextlib.suppress(OSError):  # the server may hang up before all is sent
        sent = {"Transfer-Encoding": "chunked"}
        found.request("POST", "/v1/chat/completions", chunks, sent, encode_chunked=True)
    with contextlib.suppress(OSError):
        assert found.getresponse().status == 413
    assert len(asker.calls) == 1
    monkeypatch.setattr(server_app, "SEND_WITHIN_S", 0.2)
    with socket.create_connection(("127.0.0.1", live.port), 20) as slow:
        slow.sendall(HEAD % 9 + b"{")
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_a_question_that_is_too_long_is_refused_before_anything_is_read(
    start: Start, asker: FakeAsker
) -> None:
    live = start(max_question=4)
    earlier = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]
    last = {"role": "user", "content": "four five"}
    for more in ({}, {"documents": ["a.txt"]}):
        status, _, body = live.post({"messages": [*earlier, last], **more})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert (asker.calls, asker.ingested) == ([], [])
    assert live.post({"messages": [last]})[0] == 200


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True),
        ("localhost", True), ("localhost.", True), ("0.0.0.0", False), ("::", False), ("", False),
        ("192.168.0.1", False), ("example.org", False), ("localhost.example.org", False),
    ],
)  # fmt: skip
def test_loopback(host: str, here: bool) -> None:
    assert is_loopback_host(host) is here


def call(monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, *words: str) -> Any:
    monkeypatch.setattr(server_app, "serve_asgi_app", lambda app, sock: None)
    return run_command(monkeypatch, command.serve, asker, *words)


@pytest.mark.parametrize(
    "words",
    [
        ["--log-questions"], ["--log", "no/x"], ["a.txt", "--host", "0.0.0.0"],
        ["a.txt", "--token", ""], ["a.txt", "--token", "a b"],
        ["a.txt", "--token", "\u00e9"], ["--allow", "nowhere"],
    ],
)  # fmt: skip
def test_servers_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, words: list[str]
) -> None:
    monkeypatch.delenv("ESA_TOKEN", raising=False)
    assert isinstance(call(monkeypatch, asker, *words).exception, UsageError | SystemExit)
    assert not asker.ingested


def test_the_command_prints_where_it_is(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, tmp_path: Path
) -> None:
    """A scan and a copy in a folder are left out."""
    for name, text in (("a", "alpha"), ("b", "beta"), ("copy", "alpha")):
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    (tmp_path / "scan.pdf").write_bytes(sample_files.pdf([None]))
    monkeypatch.setenv("ESA_TOKEN", TOKEN)
    result = call(monkeypatch, asker, str(tmp_path), "--port", "0", "--host", "0.0.0.0")
    assert result.exit_code == 0, result.exception
    assert result.stdout.startswith("http://0.0.0.0:")
    assert result.stdout.endswith("/v1\n")
    assert TOKEN not in result.output
    assert [Path(source).name for source in asker.ingested] == ["a.txt", "b.txt"]
    assert "scan.pdf has no text" in result.stderr


def serve(folder: Path, output: int) -> None:
    """Serves until a signal, 30 seconds at most; then writes how many tokens were spoken."""
    signal.alarm(30)
    os.chdir(folder)
    os.dup2(output, 1)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asker = FakeAsker(delay=0.05)
    documents = [read_document("a.txt")]
    opts, preset = command.ServeCommandOptions(port=0), load_preset("tiny-random")
    command.serve_over_http(asker, opts, documents, Reporter(True), preset, ModelOptions())
    print("ended", len(asker.spoken), flush=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_after_the_answer(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "a.txt").write_text("alpha", "utf-8")
    readable, writable = os.pipe()
    process = child(lambda: serve(tmp_path, writable))
    os.close(writable)
    with os.fdopen(readable, encoding="utf-8") as output:
        url = output.readline().strip()
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=20) as client:
            stream = client.chat.completions.create(
                model="any", messages=user("one two three four")["messages"], stream=True
            )
            chunks = iter(stream)
            next(chunks)
            os.kill(process, number)
            said = "".join(one.choices[0].delta.content or "" for one in chunks)
        assert output.read() == "ended 6\n"
    assert said == "You asked: one two three four"
    assert ended(process) == 0


def log_into(file: Any, with_questions: bool, warnings: list[str]) -> Middleware:
    return Middleware(
        AccessLogMiddleware, file=file, with_questions=with_questions, warn=warnings.append
    )


@pytest.mark.parametrize("with_questions", [False, True])
def test_lines(start: Start, asker: FakeAsker, with_questions: bool) -> None:
    file = io.StringIO()
    live = start(token=TOKEN, access_log=log_into(file, with_questions, []))
    key = {"Authorization": f"Bearer {TOKEN}"}
    asker.failures["bad"] = ValueError("bug")
    assert live.raw("GET", "/v1/documents/text?document=secret.txt")[0] == 401
    assert live.post(user("one two"), **key)[0] == 200
    live.post({**user("two"), "stream": True}, **key)
    live.post({**user("bad"), "stream": True}, **key)
    assert live.raw("GET", "/" + "x" * 3000 + "%0A", **key)[0] == 404
    until(lambda: file.getvalue().count("\n") == 5)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    chat = "POST /v1/chat/completions"
    assert [(one["route"], one["status"], one["tokens"]) for one in lines[:3]] == [
        ("GET /v1/documents/text", 401, None), (chat, 200, 4), (chat, 200, 3),
    ]  # fmt: skip
    assert lines[3]["status"] >= 500
    assert len(lines[4]["route"]) < 300
    assert all(one["client"] == "127.0.0.1" and one["seconds"] >= 0 for one in lines)
    questions = [one.get("question") for one in lines[1:3]]
    assert questions == (["one two", "two"] if with_questions else [None, None])
    assert ("one two" in file.getvalue()) == with_questions
    assert TOKEN not in file.getvalue()
    assert "secret" not in file.getvalue()


def test_a_log_that_cannot_be_written_ends_no_request(start: Start) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    warnings: list[str] = []
    live = start(access_log=log_into(Full(), False, warnings))
    for _ in range(3):
        assert live.raw("GET", "/health")[0] == 200
    until(lambda: warnings)
    assert len(warnings) == 1


def test_the_file_is_added_to_and_private(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.touch(mode=0o600)
    path.write_text("before\n", "utf-8")
    for _ in range(2):
        with ServeCommandOptions(log=path).open_access_log(Reporter(True)) as middleware:
            middleware.kwargs["file"].write("line\n")
    assert path.read_text("utf-8") == "before\nline\nline\n"
    other = tmp_path / "new.log"
    with ServeCommandOptions(log=other).open_access_log(Reporter(True)):
        assert other.stat().st_mode & 0o077 == 0
    with (
        pytest.raises(UsageError),
        ServeCommandOptions(log=tmp_path / "no/x").open_access_log(Reporter(True)),
    ):
        pass
    with pytest.raises(UsageError):
        check_serve_options(ServeCommandOptions(log_questions=True))


def content(html: str, tag: str) -> str:
    """What is inside the only element of this tag."""
    (found,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return str(found)


def test_the_policy_names_what_is_in_the_page(live: LiveServer) -> None:
    status, headers, html = live.raw("GET", "/")
    assert (status, headers.get_content_type()) == (200, "text/html")
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    for kind in ("style", "script"):
        digest = hashlib.sha256(content(html, kind).encode()).digest()
        encoded = base64.b64encode(digest).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{encoded}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
