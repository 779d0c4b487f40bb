"""The server, asked by OpenAI's own client and by hand, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import sample_files
import typer.testing
from fake_asker import FakeAsker

from esa_cli.apps.cli.commands import serve_command as command
from esa_cli.apps.open_books import MOST_RECENT
from esa_cli.apps.server import access as guard
from esa_cli.apps.server import server_run as server
from esa_cli.apps.server import streaming as follow
from esa_cli.apps.server import wire
from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.apps.server.http_errors import ApiError
from esa_cli.apps.server.server_app import ServerLimits, make_app
from esa_cli.apps.server.worker import Job, JobCancelledError, QueueFullError, Worker
from esa_cli.errors import (
    DocumentError,
    ForeignVersionError,
    LibraryError,
    ModelError,
    ResourceError,
    UsageError,
)
from esa_cli.qa.reply import Turn
from esa_cli.storage.library import Library
from esa_cli.storage.library.checksummed_file import on_disk

TOKEN = "let-me-in"
UNUSABLE = "cannot be used; its log has more"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


class Running:
    """A server in a thread."""

    def __init__(self, asker: FakeAsker, folder: Path, **more: Any) -> None:
        self.asker, self.notes = asker, list[str]()
        self.clients: list[openai.OpenAI] = []
        fixed = more.pop("fixed", ["alpha"])
        allowed = more.pop("allowed", [folder / "open"])
        token = more.pop("token", None)
        documents, note = AllowedDocuments(asker, fixed, allowed), self.notes.append
        app = make_app(asker, documents, token, ServerLimits(**more), note, note)
        self.sock = server.bind("127.0.0.1", 0)
        self.url = server.address(self.sock)
        self.port = self.sock.getsockname()[1]
        self.server = server.make_server(app)
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
        return answer.status, answer.headers, json.loads(data)

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


ENDING: list[threading.Thread] = []


@pytest.fixture(scope="module", autouse=True)
def every_server_ends() -> Iterator[None]:
    yield
    for thread in ENDING:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def asker() -> FakeAsker:
    return FakeAsker()


@pytest.fixture
def start(asker: FakeAsker, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    (tmp_path / "open/sub").mkdir(parents=True)
    (tmp_path / "open/a.txt").write_text("text a", "utf-8")
    (tmp_path / "open/sub/b.txt").write_text("text b", "utf-8")
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    (tmp_path / "open-not").mkdir()
    (tmp_path / "open-not/c.txt").write_text("secret", "utf-8")
    running: list[Running] = []

    def start(**more: Any) -> Running:
        running.append(Running(asker, tmp_path, **more))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture
def live(start: Callable[..., Running]) -> Running:
    return start()


def user(text: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_an_answer(live: Running, asker: FakeAsker) -> None:
    found = live.ask("one two")
    choice = found.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "You asked: one two")
    assert choice.finish_reason == "stop"
    assert found.object == "chat.completion"
    assert found.model == "fake-model"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (
        2,
        4,
        6,
    )
    assert [one["document"] for one in choice.message.evidence] == [
        f"book{n}.txt" for n in range(3)
    ]
    assert set(choice.message.evidence[0]) == {
        "document", "page", "line", "chapter", "start", "end", "text", "weight",
    }  # fmt: skip
    assert choice.message.found is True
    assert asker.calls[0]["books"] == ["alpha"]
    assert live.notes == ["4 tokens answered in 0.2 s"]


def test_streaming(live: Running) -> None:
    chunks = list(live.ask("one", stream=True, stream_options={"include_usage": True}))
    *texts, last, counts = chunks
    assert texts[0].choices[0].delta.role == "assistant"
    assert [one.choices[0].delta.content for one in texts[1:]] == ["You", " asked:", " one"]
    assert all(one.choices[0].finish_reason is None for one in texts)
    assert last.choices[0].finish_reason == "stop"
    assert last.evidence[0]["text"] == "passage 0\nof alpha"
    assert counts.choices == []
    assert counts.usage.completion_tokens == 3
    assert len({one.id for one in chunks}) == 1


def test_names_that_are_not_utf8_are_escaped(start: Callable[..., Running]) -> None:
    live = start(fixed=["al\udcffpha"])  # the fake puts a book's text where a name may stand
    messages = [{"role": "user", "content": "one"}]
    status, _, body = live.post({"messages": messages})
    assert status == 200
    assert body["choices"][0]["message"]["evidence"][0]["text"] == "passage 0\nof al\udcffpha"
    *_, last = live.ask(stream=True)
    assert last.model_extra["evidence"][0]["text"] == "passage 0\nof al\udcffpha"


def test_pieces_come_while_the_answer_is_being_given(live: Running, asker: FakeAsker) -> None:
    asker.delay = 0.05
    stream = iter(live.ask("one", stream=True))
    next(stream)
    next(stream)
    assert len(asker.spoken) < 3, "the first word is here before the last is said"
    assert [one.usage for one in stream][-1] is None


def test_parameters_are_handed_on(live: Running, asker: FakeAsker) -> None:
    found = live.ask(
        "one", temperature=0.5, top_p=0.9, seed=-1, max_tokens=99, max_completion_tokens=2, n=1,
        presence_penalty=1.0, user="me", tools=[], stop=None, response_format={"type": "text"},
        extra_body={"evidence": 1, "unknown": {"a": 1}},
    )  # fmt: skip
    assert found.choices[0].finish_reason == "length"
    assert found.choices[0].message.content == "You asked:"
    call = asker.calls[0]
    assert (call["temperature"], call["top_p"], call["max_new_tokens"]) == (0.5, 0.9, 2)
    assert (call["seed"], call["evidence"]) == (2**63 - 1, 1)
    live.ask("one", max_tokens=1)
    call = asker.calls[1]
    assert (call["max_new_tokens"], call["temperature"], call["seed"]) == (1, None, None)


def test_earlier_messages_are_history(live: Running, asker: FakeAsker) -> None:
    live.ask(
        messages=[
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": [{"type": "text", "text": "eins"}]},
            {"role": "user", "content": "two"},
            {"role": "user", "content": "more of two"},
            {"role": "assistant", "content": "zwei"},
            {"role": "user", "content": [{"type": "text", "text": t} for t in ("th", "ree")]},
        ]
    )  # fmt: skip
    assert asker.calls[0]["question"] == "th\nree"
    assert asker.calls[0]["history"] == [
        Turn("Be short.", ""),
        Turn("one", "eins"),
        Turn("two\n\nmore of two", "zwei"),
    ]


@pytest.mark.parametrize(
    ("said", "question", "history"),
    [
        (["a:hello", "u:one"], "one", [Turn("", "hello")]),
        (["u:one", "u:two"], "one\n\ntwo", []),
        (["u:one", "a:x", "a:y", "u:two"], "two", [Turn("one", "x\n\ny")]),
        (["u:one", "a:", "u:two"], "two", [Turn("one", "")]),
        (["u:one", "s:late", "u:two"], "one\n\ntwo", [Turn("late", "")]),
    ],
)
def test_odd_orders_of_messages(said: list[str], question: str, history: list[Turn]) -> None:
    roles = {"u": "user", "a": "assistant", "s": "developer"}
    messages = [{"role": roles[one[0]], "content": one[2:]} for one in said]
    found = wire.parse(json.dumps({"messages": messages}).encode())
    assert found.conversation() == (question, history)


IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
WRONG: list[tuple[Any, str]] = [
    (b"{", "must be JSON in UTF-8: EOF"),
    (b"\xff", "must be JSON in UTF-8"),
    (b"[" * 100_000, "must be JSON in UTF-8: recursion limit"),
    ([], "must be a JSON object, got []"),
    ({}, "messages must be a list of at least one message, got None"),
    ({"messages": []}, "messages must be a list"),
    ({"messages": ["x"]}, "messages must be a list of at least one message, got 'x'"),
    (user(""), "the question is empty"),
    (user(None), "messages[0].content must be text"),
    (user(IMAGE), "messages[0].content must be text, or a list of texts, got [{"),
    (user(["x"]), "messages[0].content must be text"),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "must be JSON in UTF-8"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "last message"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be system"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls is not"),
    ({**user("x"), "tools": [{"type": "function"}]}, "tools is not supported"),
    ({**user("x"), "stop": ["a"]}, "stop is not supported"),
    ({**user("x"), "logprobs": True}, "logprobs is not supported"),
    ({**user("x"), "response_format": {"type": "json_object"}}, "response_format must be"),
    ({**user("x"), "n": 2}, "n must be 1"),
    ({**user("x"), "stream": "yes"}, "stream must be"),
    ({**user("x"), "stream": 1}, "stream must be"),
    ({**user("x"), "temperature": "hot"}, "temperature must be"),
    ({**user("x"), "temperature": True}, "temperature must be"),
    ({**user("x"), "temperature": float("nan")}, "temperature must be"),
    ({**user("x"), "temperature": 2.1}, "temperature must be"),
    ({**user("x"), "temperature": 10**400}, "temperature must be"),
    ({**user("x"), "temperature": float("inf")}, "temperature must be"),
    ({**user("x"), "top_p": -1}, "top_p must be"),
    ({**user("x"), "max_tokens": 0}, "max_tokens must be"),
    ({**user("x"), "max_tokens": 32_769}, "max_tokens must be a whole number from 1 to 32768"),
    ({**user("x"), "max_completion_tokens": 10**400}, "max_completion_tokens must be"),
    ({**user("x"), "max_completion_tokens": 1.5}, "max_completion_tokens must be"),
    ({**user("x"), "seed": "1"}, "seed must be"),
    ({**user("x"), "evidence": 51}, "evidence must be"),
    ({**user("x"), "documents": "a.txt"}, "documents must be a list"),
    ({**user("x"), "documents": []}, "documents must be a list of 1 to 64 paths, got []"),
    ({**user("x"), "documents": [""]}, "documents must be a list"),
    ({**user("x"), "documents": [str(n) for n in range(65)]}, "documents must be a list of 1 to"),
]


@pytest.mark.parametrize(("body", "message"), WRONG)
def test_requests_that_are_refused(body: Any, message: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        wire.parse(data).conversation()
    assert caught.value.status == 400
    assert message in caught.value.message


def test_the_longest_answer_that_may_be_asked_for() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        found = wire.parse(json.dumps({**user("x"), name: 32_768}).encode())
        assert found.options()["max_new_tokens"] == 32_768


def test_errors_have_openais_shape(live: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        live.ask("one", tools=[{"type": "function", "function": {"name": "f"}}])
    assert caught.value.body == {
        "message": "tools is not supported",
        "type": "invalid_request_error",
        "param": "tools",
        "code": "unsupported_parameter",
    }
    for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/chat/completions", 405)):
        got, _, body = live.raw(method, path)
        assert got == status
        assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UsageError("too long", "ask less"), 400, "too long; ask less"),
        (ResourceError("no room"), 413, "no room"),
        (ModelError("broken"), 500, "broken"),
        (ZeroDivisionError("inside"), 500, "a bug in esa; its log has more"),
        (LibraryError("/srv/lib/a.doc", "rm it"), 500, f"the server's library {UNUSABLE}"),
        (
            ForeignVersionError("/srv/lib/a.doc", "update"),
            500,
            f"the server's library {UNUSABLE}",
        ),
    ],
)
def test_errors_of_an_answer(
    live: Running, asker: FakeAsker, stream: bool, error: Exception, status: int, message: str
) -> None:
    asker.failures["bad"] = error
    with pytest.raises(openai.APIStatusError) as caught:
        live.ask("bad", stream=stream)
    assert caught.value.status_code == status
    assert caught.value.body["message"] == message  # type: ignore[index]
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert live.ask("good").choices[0].message.content == "You asked: good", "it lives on"


def disk_full(root: Path) -> None:
    with on_disk(root):
        raise OSError(errno.ENOSPC, "No space left on device")


def too_little_disk(root: Path) -> None:
    Library(root).check_room(1 << 60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fail", [disk_full, too_little_disk])
def test_a_full_disk_is_the_servers_and_its_log_says_where(
    live: Running,
    tmp_path: Path,
    stream: bool,
    fail: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live.asker, "ingest", lambda *_: fail(tmp_path))
    with pytest.raises(openai.APIStatusError) as caught:
        live.ask("one", stream=stream, extra_body={"documents": ["a.txt"]})
    assert caught.value.status_code == 507
    assert caught.value.body["message"] == "the server's disk is full; its log has more"  # type: ignore[index]
    assert any(str(tmp_path) in note and "ESA_LIBRARY" in note for note in live.notes)


def test_a_broken_library_is_told_the_log_alone(
    live: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise LibraryError(f"{tmp_path}/lib/x.seg is damaged", "esa library rm 1234")

    monkeypatch.setattr(live.asker, "ingest", broken)
    status, _, body = live.post({**user("one"), "documents": ["a.txt"]})
    assert status == 500
    assert str(tmp_path) not in json.dumps(body)
    assert live.notes == [f"{tmp_path}/lib/x.seg is damaged; esa library rm 1234"]


def test_an_error_in_the_middle_of_a_stream(live: Running, asker: FakeAsker) -> None:
    say = asker._say

    def break_off(pieces: Any, on_text: Any) -> None:
        say(pieces[:1], on_text)
        raise ResourceError("the memory ran out")

    asker._say = break_off  # type: ignore[method-assign]
    stream = iter(live.ask("one", stream=True))
    with pytest.raises(openai.APIError, match="the memory ran out"):
        list(stream)


def test_models_and_health(live: Running) -> None:
    with live.client() as client:
        assert [one.id for one in client.models.list()] == ["fake-model"]
        assert client.models.retrieve("fake-model").owned_by == "esa"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other/model")
    assert live.raw("GET", "/health")[2] == {"status": "ok", "questions": 0}


def test_documents_of_the_request(live: Running, asker: FakeAsker, tmp_path: Path) -> None:
    for _ in range(2):
        live.ask(extra_body={"documents": ["a.txt", "sub/b.txt", "a.txt"]})
    live.ask(extra_body={"documents": [str(tmp_path / "open/a.txt"), "sub/../a.txt"]})
    assert [call["books"] for call in asker.calls] == [["text a", "text b"]] * 2 + [["text a"]]
    assert len(asker.ingested) == 2, "each is read once"
    (tmp_path / "open/a.txt").write_text("text new", "utf-8")
    live.ask(extra_body={"documents": ["a.txt"]})
    assert asker.calls[-1]["books"] == ["text new"], "a changed file is read again"


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("../secret.txt", 403),
        ("../nothing.txt", 403),
        ("sub/../../secret.txt", 403),
        ("{root}/secret.txt", 403),
        ("{root}/open-not/c.txt", 403),
        ("link.txt", 403),
        ("linked/c.txt", 403),
        ("loop", 403),
        ("/etc/passwd", 403),
        ("~/x", 404),
        ("-", 404),
        ("*.txt", 404),
        ("none.txt", 404),
        ("sub", 404),
        (".", 404),
        ("a\0.txt", 403),
        ("x" * 5000, 403),
    ],
)
def test_no_way_leads_out(
    live: Running, asker: FakeAsker, tmp_path: Path, name: str, status: int
) -> None:
    (tmp_path / "open/link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "open/linked").symlink_to(tmp_path / "open-not")
    (tmp_path / "open/loop").symlink_to("loop")
    named = name.replace("{root}", str(tmp_path))
    got, _, body = live.post({**user("one"), "documents": [named]})
    assert got in ({status, 404} if name in ("loop", "a\0.txt") or len(name) > 99 else {status})
    assert body["error"]["param"] == "documents"
    assert not asker.ingested
    assert not asker.calls


def test_links_that_stay_inside_are_followed(
    live: Running, asker: FakeAsker, tmp_path: Path
) -> None:
    (tmp_path / "open/inner.txt").symlink_to(tmp_path / "open/sub/b.txt")
    live.ask(extra_body={"documents": ["inner.txt"]})
    assert asker.calls[0]["books"] == ["text b"]


def test_without_allowed_folders_nothing_may_be_named(start: Callable[..., Running]) -> None:
    live = start(allowed=[])
    assert live.post({**user("one"), "documents": ["a.txt"]})[0] == 403
    assert live.post(user("one"))[0] == 200


def test_without_fixed_documents_some_must_be_named(start: Callable[..., Running]) -> None:
    live = start(fixed=[])
    status, _, body = live.post(user("one"))
    assert (status, body["error"]["param"]) == (400, "documents")
    assert live.post({**user("one"), "documents": ["a.txt"]})[0] == 200


def test_a_document_that_cannot_be_read_is_the_requests_mistake(
    live: Running, tmp_path: Path
) -> None:
    (tmp_path / "open/bad.txt").write_bytes(b"x")

    def refuse(source: Any, progress: Any) -> str:
        raise DocumentError(f"{source.name} is broken")

    live.asker.ingest = refuse  # type: ignore[method-assign]
    status, _, body = live.post({**user("one"), "documents": ["bad.txt"]})
    assert (status, body["error"]["code"]) == (400, "document")


def test_where_the_folders_lie_is_not_told(live: Running, tmp_path: Path) -> None:
    (tmp_path / "open/sub/bad.txt").write_bytes(b"a\0b" * 100)
    status, _, body = live.post({**user("one"), "documents": ["sub/bad.txt"]})
    assert status == 400
    assert "The document sub/bad.txt " in body["error"]["message"]
    assert str(tmp_path) not in body["error"]["message"]


@pytest.mark.parametrize("allowed", ["here", "root", "both"])
def test_a_message_names_a_file_from_the_folder_down(tmp_path: Path, allowed: str) -> None:
    """Also where all files may be read, and no more of the message than the name."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "empty.txt").write_bytes(b"")
    root = Path(tmp_path.anchor)
    folders = {"here": [inner], "root": [root], "both": [root, inner]}[allowed]
    shelf = AllowedDocuments(FakeAsker(), [], folders)
    with pytest.raises(DocumentError) as caught:
        shelf.open([inner / "empty.txt"])
    wanted = (inner / "empty.txt").relative_to(root) if allowed == "root" else "empty.txt"
    assert f" {wanted} " in caught.value.message


def test_only_some_books_stay_open(tmp_path: Path) -> None:
    asker = FakeAsker()
    for number in range(MOST_RECENT + 3):
        (tmp_path / f"{number}.txt").write_text(str(number), "utf-8")
    shelf = AllowedDocuments(asker, [], [tmp_path])
    for number in (*range(MOST_RECENT + 3), MOST_RECENT, 0):
        shelf.open(shelf.find([f"{number}.txt"]))
    assert len(asker.ingested) == MOST_RECENT + 4
    assert Path(asker.ingested[-1]).name == "0.txt", "the one that was longest unused"


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


class Small(FakeAsker):
    """Has room for so many books, and says what was open when each was read."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.books_room, self.alive = room, weakref.WeakSet[Any]()
        self.before: list[set[str]] = []

    def ingest(self, source: Any, progress: Any = None) -> Any:
        self.before.append({book.name for book in self.alive})
        if len(self.alive) >= self.books_room:
            raise ResourceError("no room")
        book = Named(super().ingest(source))
        self.alive.add(book)
        return book


@pytest.fixture
def abc(tmp_path: Path) -> Path:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name, "utf-8")
    return tmp_path


def opened(shelf: AllowedDocuments, *names: str) -> list[str]:
    return [book.name for book in shelf.open(shelf.find([f"{name}.txt" for name in names]))]


def test_where_memory_is_short_the_oldest_book_goes(abc: Path) -> None:
    asker = Small(2)
    shelf = AllowedDocuments(asker, [], [abc])
    assert opened(shelf, "a", "b") == ["a", "b"]
    assert opened(shelf, "a") == ["a"]
    assert opened(shelf, "c") == ["c"], "in the place of b, longest unused"
    assert {book.name for book in asker.alive} == {"a", "c"}
    assert opened(shelf, "a", "d") == ["a", "d"], "what the request uses stays"
    assert asker.ingested.count(str(abc / "a.txt")) == 1


def test_where_a_request_itself_is_too_large_it_is_said(abc: Path) -> None:
    shelf = AllowedDocuments(Small(2), [], [abc])
    opened(shelf, "d")
    with pytest.raises(ResourceError, match="no room"):
        opened(shelf, "a", "b", "c")
    assert opened(shelf, "c") == ["c"], "and the next is not the worse for it"


def test_a_changed_file_is_read_again_and_its_old_book_let_go_first(abc: Path) -> None:
    asker = Small(1)
    shelf = AllowedDocuments(asker, [], [abc])
    assert opened(shelf, "a") == ["a"]
    (abc / "a.txt").write_text("another", "utf-8")
    assert opened(shelf, "a") == ["another"]
    assert asker.before == [set(), set()]


def test_a_book_is_let_go_before_the_next_is_read(tmp_path: Path) -> None:
    asker = Small(MOST_RECENT)
    for number in range(MOST_RECENT + 1):
        (tmp_path / f"{number}.txt").write_text(f"{number}", "utf-8")
    shelf = AllowedDocuments(asker, [], [tmp_path])
    for number in range(MOST_RECENT + 1):
        opened(shelf, f"{number}")
    assert len(asker.before) == MOST_RECENT + 1, "it never ran out of room"
    assert "0" not in asker.before[-1]


def test_a_text_in_several_files_is_one_book(abc: Path) -> None:
    asker = FakeAsker()
    (abc / "copy.txt").write_text("a", "utf-8")
    (abc / "fixed.txt").write_text("alpha", "utf-8")
    shelf = AllowedDocuments(asker, ["the fixed book"], [abc], ["alpha"])
    assert shelf.open(shelf.find(["a.txt", "copy.txt", "b.txt"])) == ["a", "b"]
    assert shelf.open(shelf.find(["copy.txt"])) == ["a"]
    assert shelf.open(shelf.find(["fixed.txt"])) == ["the fixed book"]
    assert [Path(source).name for source in asker.ingested] == ["a.txt", "b.txt"]
    (abc / "copy.txt").write_text("another", "utf-8")
    assert shelf.open(shelf.find(["copy.txt", "a.txt"])) == ["another", "a"]


def test_what_documents_lack_is_told_with_the_answer(start: Callable[..., Running]) -> None:
    document = types.SimpleNamespace(name="a.pdf", missing=("page 7 has no text",))
    live = start(fixed=[types.SimpleNamespace(document=document)])
    wanted = ["a.pdf: page 7 has no text"]
    assert live.ask("one").choices[0].message.missing == wanted
    *_, last = live.ask("one", stream=True)
    assert last.missing == wanted


def test_where_nothing_lacks_nothing_is_said(live: Running) -> None:
    *_, last = live.ask("one", stream=True)
    assert not hasattr(last, "missing")
    assert not hasattr(live.ask("one").choices[0].message, "missing")


def test_the_token(start: Callable[..., Running], asker: FakeAsker) -> None:
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
    assert live.raw("GET", "/v1/models")[0] == 401
    assert live.raw("GET", "/nowhere")[0] == 401
    assert live.raw("GET", "/health")[0] == 200
    assert live.post(user("one"), Authorization=f"bearer {TOKEN}", Host="elsewhere.org")[0] == 200
    with live.client("wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.org"}, 403),
        ({"Host": "evil.org:80"}, 403),
        ({"Host": "localhost.evil.org"}, 403),
        ({"Host": "127.0.0.1.evil.org"}, 403),
        ({"Host": "[x"}, 403),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Origin": "https://evil.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
    ],
)
def test_web_pages_cannot_ask(live: Running, headers: dict[str, str], status: int) -> None:
    assert live.post(user("one"), **headers)[0] == status


def test_too_large(start: Callable[..., Running], asker: FakeAsker) -> None:
    live = start(max_body=200)
    assert live.post(user("x" * 100))[0] == 200
    status, _, body = live.post(user("x" * 200))
    assert (status, body["error"]["message"]) == (413, "the request is larger than 200 bytes")
    chunks = (b"x" * 50 for _ in range(1000))  # without a length
    found = http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)
    with contextlib.suppress(OSError):  # the server may hang up before all is sent
        sent = {"Transfer-Encoding": "chunked"}
        found.request("POST", "/v1/chat/completions", chunks, sent, encode_chunked=True)
    with contextlib.suppress(OSError):
        assert found.getresponse().status == 413
    assert len(asker.calls) == 1


def test_a_request_that_never_comes(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "SEND_WITHIN_S", 0.2)
    live = start()
    with socket.create_connection(("127.0.0.1", live.port), 20) as slow:
        slow.sendall(HEAD % 9 + b"{")
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


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


def test_one_at_a_time_and_a_full_queue(start: Callable[..., Running], asker: FakeAsker) -> None:
    live = start(max_queue=2)
    asker.gate.clear()
    first = in_thread(lambda: live.ask("first"))
    assert asker.running.wait(10)
    waiting = [in_thread(lambda: live.ask("next")) for _ in range(2)]
    until(lambda: live.raw("GET", "/health")[2]["questions"] == 3)
    with pytest.raises(openai.RateLimitError) as caught:
        live.ask("one too many")
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert "x-should-retry" not in caught.value.response.headers
    assert len(asker.calls) == 1, "one question at a time"
    asker.gate.set()
    for thread, found in (first, *waiting):
        thread.join(10)
        assert found[0].choices[0].message.content.startswith("You asked:")
    assert [call["question"] for call in asker.calls] == ["first", "next", "next"]


def test_a_place_in_the_queue_is_free_when_its_client_goes(
    start: Callable[..., Running], asker: FakeAsker
) -> None:
    live = start(max_queue=1)
    asker.gate.clear()
    first = in_thread(lambda: live.ask("first"))
    assert asker.running.wait(10)
    waiting = send(live, "waiting")
    until(lambda: live.raw("GET", "/health")[2]["questions"] == 2)
    waiting.close()
    until(lambda: live.raw("GET", "/health")[2]["questions"] == 1)
    asker.gate.set()
    first[0].join(10)
    live.ask("last")
    assert [call["question"] for call in asker.calls] == ["first", "last"]


def send(live: Running, question: str, **more: Any) -> socket.socket:
    data = json.dumps({**user(question), **more}).encode()
    sock = socket.create_connection(("127.0.0.1", live.port), 20)
    sock.sendall(HEAD % len(data) + data)
    return sock


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_stops_its_answer(live: Running, asker: FakeAsker, stream: bool) -> None:
    asker.delay, asker.answers["long"] = 0.02, "word " * 500
    sock = send(live, "long", stream=stream)
    until(lambda: len(asker.spoken) > 2)
    sock.close()
    until(lambda: asker.stopped)
    assert len(asker.spoken) < 200
    asker.delay = 0
    assert live.ask("next").choices[0].message.content == "You asked: next"


def test_openais_client_may_close_a_stream(live: Running, asker: FakeAsker) -> None:
    asker.delay, asker.answers["long"] = 0.02, "word " * 500
    with live.client() as client:
        stream = client.chat.completions.create(
            model="any", messages=user("long")["messages"], stream=True
        )
        next(iter(stream))
        stream.close()
    until(lambda: asker.stopped)


def test_an_answer_that_takes_too_long(start: Callable[..., Running], asker: FakeAsker) -> None:
    live = start(timeout_s=0.3)
    asker.delay, asker.answers["long"] = 0.05, "word " * 100
    with pytest.raises(openai.APIStatusError) as caught:
        live.ask("long")
    assert caught.value.status_code == 504
    assert caught.value.body["code"] == "timeout"  # type: ignore[index]
    until(lambda: asker.stopped == 1)
    with pytest.raises(openai.APIError, match=r"no answer within 0\.3 s"):
        list(live.ask("long", stream=True))
    until(lambda: asker.stopped == 2)
    asker.delay = 0
    assert live.ask("next").choices[0].message.content == "You asked: next"


@pytest.fixture
def slow(asker: FakeAsker) -> FakeAsker:
    """Reads a document for ten seconds, if nobody ends it."""
    asker.words, asker.delay = 500, 0.02
    return asker


A = {"documents": ["a.txt"]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_ends_the_reading(live: Running, slow: FakeAsker, stream: bool) -> None:
    sock = send(live, "long", stream=stream, **A)
    until(lambda: slow.read > 2)
    thread, found = in_thread(lambda: live.ask("next"))
    until(lambda: live.raw("GET", "/health")[2]["questions"] == 2)
    sock.close()
    thread.join(10)
    assert found[0].choices[0].message.content == "You asked: next"
    assert slow.stopped == 1
    assert slow.read < 200
    assert [call["question"] for call in slow.calls] == ["next"]
    slow.words, slow.delay = 3, 0
    live.ask("again", extra_body=A)
    assert len(slow.ingested) == 2, "what was broken off is not taken for read"
    assert slow.calls[-1]["books"] == ["text a"]


LATE = (
    r"no answer within 0\.3 s: the document was still being read \(\d+ of 500 tokens\); "
    r"`esa serve` needs a longer --timeout, or --keep: then asking again goes on where this stopped"
)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reading_that_takes_too_long(
    start: Callable[..., Running],
    slow: FakeAsker,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "TICK_S", 0.1 if stream else 5)
    live = start(timeout_s=0.3)
    with pytest.raises(openai.APIError, match=LATE) as caught:
        list(live.ask("long", stream=stream, extra_body=A))
    assert stream or getattr(caught.value, "status_code", None) == 504
    assert caught.value.code == "timeout"
    until(lambda: slow.stopped)
    assert slow.read < 200
    slow.delay = 0
    assert live.ask("next").choices[0].message.content == "You asked: next"


def test_an_answer_that_is_late_blames_no_reading(
    start: Callable[..., Running], asker: FakeAsker
) -> None:
    live = start(timeout_s=0.3)
    asker.words, asker.delay, asker.answers["long"] = 2, 0.05, "word " * 100
    with pytest.raises(openai.APIError, match=r"no answer within 0\.3 s$"):
        live.ask("long", extra_body=A)
    assert asker.read == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_ends_ends_the_reading_and_says_so(
    start: Callable[..., Running], slow: FakeAsker, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "TICK_S", 0.1 if stream else 5)
    monkeypatch.setattr(server, "END_WITHIN_S", 1)
    live = start()
    thread, found = in_thread(lambda: list(live.ask("long", stream=stream, extra_body=A)))
    until(lambda: slow.read > 2)
    live.server.should_exit = True
    thread.join(10)
    assert isinstance(found[0], openai.APIError)
    assert (found[0].message.endswith("the server ends"), found[0].code) == (True, "shutdown")
    assert stream or getattr(found[0], "status_code", None) == 503
    live.thread.join(10)
    assert slow.stopped == 1
    assert slow.read < 200


def test_the_worker_ends_a_reading(slow: FakeAsker, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text a", "utf-8")
    shelf, events, worker = AllowedDocuments(slow, [], [tmp_path]), [], Worker(1)
    worker.submit(
        Job(lambda job: shelf.open(shelf.find(["a.txt"]), job.report_progress), events.append)
    )  # type: ignore[arg-type, return-value]
    until(lambda: slow.read > 2)
    worker.close(5)
    assert not worker._thread.is_alive()
    assert slow.stopped == 1
    assert events == [("begun", None)]


def test_waiting_is_not_counted(start: Callable[..., Running], asker: FakeAsker) -> None:
    live = start(timeout_s=1.0)
    asker.delay, asker.answers["a"] = 0.1, "word word word word word word word"
    first = in_thread(lambda: live.ask("a"))
    assert asker.running.wait(10)
    second = in_thread(lambda: live.ask("a"))
    for thread, found in (first, second):
        thread.join(10)
        assert found[0].choices[0].finish_reason == "stop"


def test_silence_is_filled(
    start: Callable[..., Running], asker: FakeAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "TICK_S", 0.1)
    live = start()
    asker.gate.clear()
    sock = send(live, "one", stream=True)
    asker.running.wait(10)
    data = b""
    while data.count(b": waiting\n\n") < 2:
        data += sock.recv(1000)
    assert data.startswith(b"HTTP/1.1 200")
    asker.gate.set()
    while b"[DONE]" not in data:
        data += sock.recv(1000)
    sock.close()


def test_many_clients_at_once(start: Callable[..., Running], asker: FakeAsker) -> None:
    live = start(max_queue=50)
    asker.delay = 0.002
    calls = [in_thread(lambda n=n: live.ask(f"q{n}", stream=n % 2 == 0)) for n in range(20)]  # type: ignore[misc]
    texts = []
    for number, (thread, found) in enumerate(calls):
        thread.join(20)
        if number % 2:
            texts.append(found[0].choices[0].message.content)
        else:
            texts.append("".join(one.choices[0].delta.content or "" for one in found[0]))
    assert texts == [f"You asked: q{n}" for n in range(20)]


def test_async_client(live: Running) -> None:
    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=live.url, api_key="x", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="any", messages=user("one")["messages"], stream=True
            )
            return "".join([one.choices[0].delta.content or "" async for one in stream])

    assert asyncio.run(ask()) == "You asked: one"


def test_the_worker_ends_with_what_it_does() -> None:
    worker, events, gate = Worker(1), [], threading.Event()

    def answer(job: Job) -> Any:
        gate.wait(10)
        job.add_text("x")

    jobs = [Job(answer, events.append) for _ in range(2)]
    for job in jobs:
        worker.submit(job)
    with pytest.raises(QueueFullError):
        worker.submit(Job(answer, events.append))
    until(lambda: events)
    threading.Timer(0.1, gate.set).start()
    worker.close(10)
    assert not worker._thread.is_alive()
    assert events == [("begun", None)]
    with pytest.raises(QueueFullError):
        worker.submit(Job(answer, events.append))
    with pytest.raises(JobCancelledError):
        jobs[0].add_text("y")


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True),
        ("localhost", True), ("localhost.", True), ("0.0.0.0", False), ("::", False), ("", False),
        ("192.168.0.1", False), ("example.org", False), ("localhost.example.org", False),
    ],
)  # fmt: skip
def test_loopback(host: str, here: bool) -> None:
    assert guard.is_loopback(host) is here


def test_a_taken_port_is_said() -> None:
    with server.bind("127.0.0.1", 0) as sock, pytest.raises(UsageError, match="cannot listen"):
        server.bind("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(UsageError, match="no address"):
        server.bind("no.such.host.invalid", 0)


@contextmanager
def opening(asker: FakeAsker) -> Iterator[FakeAsker]:
    yield asker


def call(monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, *words: str) -> Any:
    module = types.ModuleType("esa_cli.apps.cli.open_esa")
    module.opened = lambda *given, keep: opening(asker)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "esa_cli.apps.cli.open_esa", module)
    monkeypatch.setattr(server, "run", lambda app, sock: None)
    app = typer.Typer()
    app.command()(command.serve)
    return typer.testing.CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no documents"),
        (["a.txt", "--host", "0.0.0.0"], "needs a token"),
        (["a.txt", "--token", ""], "empty"),
        (["a.txt", "--token", "a b"], "spaces"),
        (["a.txt", "--token", "\u00e9"], "letters"),
        (["--allow", "nowhere"], "not a folder"),
        (["a.txt", "--max-body", "much"], "not a size"),
    ],
)
def test_servers_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, words: list[str], message: str
) -> None:
    monkeypatch.delenv("ESA_TOKEN", raising=False)
    result = call(monkeypatch, asker, *words)
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message
    assert not asker.ingested


def test_the_command_prints_where_it_is(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("text a", "utf-8")
    monkeypatch.setenv("ESA_TOKEN", TOKEN)
    result = call(monkeypatch, asker, str(tmp_path / "a.txt"), "--port", "0", "--host", "0.0.0.0")
    assert result.exit_code == 0, result.exception
    assert result.stdout.startswith("http://0.0.0.0:")
    assert result.stdout.endswith("/v1\n")
    assert TOKEN not in result.output


def test_a_scan_in_a_folder_is_left_out(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, tmp_path: Path
) -> None:
    for name, text in (("a", "alpha"), ("b", "beta"), ("copy", "alpha")):
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    (tmp_path / "scan.pdf").write_bytes(sample_files.pdf([None]))
    result = call(monkeypatch, asker, str(tmp_path), "--port", "0", "--quiet")
    assert result.exit_code == 0, result.exception
    assert [Path(source).name for source in asker.ingested] == ["a.txt", "b.txt"]
    assert "scan.pdf has no text" in result.stderr
    assert "copy.txt: the same text again" in result.stderr


def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else real(name, *a)
    )
    result = call(monkeypatch, asker, "a.txt")
    assert isinstance(result.exception, UsageError)
    assert (result.exception.message, result.exception.hint) == (
        "`esa serve` needs uvicorn",
        "pip install 'esa-cli[serve]'",
    )


CHILD = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from pathlib import Path
from fake_asker import FakeAsker
from esa_cli.apps.cli.terminal import Reporter
from esa_cli.apps.cli.commands.serve_command import Wanted, run
from esa_cli.documents.document import read_document
asker = FakeAsker(delay=0.05)
run(asker, Wanted(port=0), [read_document("a.txt")], Reporter(True))
print("ended", len(asker.spoken), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_after_the_answer(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "a.txt").write_text("alpha", "utf-8")
    root = Path(__file__).parents[2]
    code = CHILD.format(tests=str(root / "tests" / "support"), root=str(root))
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert child.stdout is not None
    url = child.stdout.readline().strip()
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=20) as client:
        stream = client.chat.completions.create(
            model="any", messages=user("one two three four")["messages"], stream=True
        )
        chunks = iter(stream)
        next(chunks)
        os.kill(child.pid, number)
        said = "".join(one.choices[0].delta.content or "" for one in chunks)
    rest, _ = child.communicate(timeout=20)
    assert said == "You asked: one two three four"
    assert rest == "ended 6\n"
    assert child.returncode == 0
