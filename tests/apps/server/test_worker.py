"""One question at a time, the queue, and errors of an answer."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from fake_asker import FakeAsker
from live_server import LiveServer, Start, in_thread, send, until, user

from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.apps.server.worker import Job, JobCancelledError, QueueFullError, Worker
from esa_cli.errors import (
    ForeignVersionError,
    LibraryError,
    ModelError,
    ReaderError,
    ResourceError,
    UsageError,
)
from esa_cli.storage.library import Library
from esa_cli.storage.library.checksummed_file import write_errors

UNUSABLE = "cannot be used; its log has more"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UsageError("too long", "ask less"), 400, "too long; ask less"),
        (ResourceError("no room"), 413, "no room"),
        (ModelError("broken"), 500, "broken"),
        (ReaderError("http://elsewhere"), 502, f"the server's reader {UNUSABLE}"),
        (ZeroDivisionError("inside"), 500, "a bug in esa; its log has more"),
        (SystemExit(3), 500, "a bug in esa; its log has more"),
        (KeyboardInterrupt(), 500, "a bug in esa; its log has more"),
        (MemoryError(), 503, "the server's memory ran out; its log has more"),
        (LibraryError("/srv/lib/a.doc", "rm it"), 500, f"the server's library {UNUSABLE}"),
        (ForeignVersionError("/srv/lib/a.doc", "update"), 500, f"the server's library {UNUSABLE}"),
    ],
)
def test_errors_of_an_answer(
    live: LiveServer,
    asker: FakeAsker,
    stream: bool,
    error: BaseException,
    status: int,
    message: str,
) -> None:
    asker.failures["bad"] = error
    with pytest.raises(openai.APIStatusError) as caught:
        live.ask("bad", stream=stream)
    assert caught.value.status_code == status
    assert caught.value.body["message"] == message  # type: ignore[index]
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert live.ask("good").choices[0].message.content == "You asked: good", "it lives on"


def disk_full(root: Path) -> None:
    with write_errors(root):
        raise OSError(errno.ENOSPC, "No space left on device")


def too_little_disk(root: Path) -> None:
    Library(root).check_room(1 << 60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fail", [disk_full, too_little_disk])
def test_a_full_disk_is_the_servers_and_its_log_says_where(
    live: LiveServer,
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
    live: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise LibraryError(f"{tmp_path}/lib/x.seg is damaged", "esa library rm 1234")

    monkeypatch.setattr(live.asker, "ingest", broken)
    status, _, body = live.post({**user("one"), "documents": ["a.txt"]})
    assert status == 500
    assert str(tmp_path) not in json.dumps(body)
    assert live.notes == [f"{tmp_path}/lib/x.seg is damaged; esa library rm 1234"]


def test_one_at_a_time_and_a_full_queue(start: Start, asker: FakeAsker) -> None:
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


def test_a_place_in_the_queue_is_free_when_its_client_goes(start: Start, asker: FakeAsker) -> None:
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


def test_the_worker_ends_a_reading(slow: FakeAsker, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text a", "utf-8")
    documents, events, worker = AllowedDocuments(slow, [], [tmp_path]), [], Worker(1)
    worker.submit(
        Job(
            lambda job: documents.open(documents.find(["a.txt"]), job.report_progress),
            events.append,
        )
    )  # type: ignore[arg-type, return-value]
    until(lambda: slow.read > 2)
    worker.close(5)
    assert not worker._thread.is_alive()
    assert slow.stopped == 1
    assert events == [("begun", None)]


def test_waiting_is_not_counted(start: Start, asker: FakeAsker) -> None:
    live = start(timeout_s=1.0)
    asker.delay, asker.answers["a"] = 0.1, "word word word word word word word"
    first = in_thread(lambda: live.ask("a"))
    assert asker.running.wait(10)
    second = in_thread(lambda: live.ask("a"))
    for thread, found in (first, second):
        thread.join(10)
        assert found[0].choices[0].finish_reason == "stop"


def test_many_clients_at_once(start: Start, asker: FakeAsker) -> None:
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
