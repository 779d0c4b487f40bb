"""One question at a time, the queue, streams, answers that end early, and errors of an answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import openai
import pytest
from fake_asker import FakeAsker
from forked import child, ended
from live_server import LiveServer, Start, in_thread, send, until, user

from esa_cli.apps.server import server_app
from esa_cli.apps.server.worker import JobThread
from esa_cli.errors import (
    BUG,
    DiskError,
    LibraryError,
    LibraryFileVersionError,
    ModelError,
    ReaderError,
    ResourceError,
    UsageError,
)

A = {"documents": ["a.txt"]}
both = pytest.mark.parametrize("stream", [False, True])


@both
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UsageError("too long", "ask less"), 400, "too long; ask less"),
        (ResourceError("no room"), 413, "no room"),
        (ModelError("broken"), 500, "broken"),
        (ReaderError("http://elsewhere"), 502, None),
        (ZeroDivisionError("inside"), 500, None),
        (SystemExit(3), 500, None),
        (KeyboardInterrupt(), 500, None),
        (MemoryError(), 503, None),
        (LibraryError("/srv/lib/a.doc", "rm it"), 500, None),
        (LibraryFileVersionError("/srv/lib/a.doc", "update"), 500, None),
        (DiskError("/srv/lib cannot be written", "free some space"), 507, None),
    ],
)
def test_errors_of_an_answer(
    live: LiveServer, asker: FakeAsker, stream: bool, error: BaseException, status: int,
    message: str | None,
) -> None:  # fmt: skip
    """What is the server's own is not told to the client."""
    asker.failures["bad"] = error
    with pytest.raises(openai.APIStatusError) as caught:
        live.ask("bad", stream=stream)
    said = caught.value.body["message"]  # type: ignore[index]
    assert caught.value.status_code == status
    assert said == message if message else said.endswith(("see its log", "see the server's log"))
    assert caught.value.response.headers["x-should-retry"] == "false"
    if "/srv" in str(error):
        assert any("/srv" in note for note in live.notes)
    assert live.ask("good").choices[0].message.content == "You asked: good", "it lives on"


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


def test_streaming(live: LiveServer, asker: FakeAsker) -> None:
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
    asker.delay, asker.spoken = 0.05, []
    stream = iter(live.ask("one", stream=True))
    next(stream)
    next(stream)
    assert len(asker.spoken) < 3, "the first word is here before the last is said"
    assert [one.usage for one in stream][-1] is None


def test_an_error_in_the_middle_of_a_stream(live: LiveServer, asker: FakeAsker) -> None:
    say = asker._say

    def break_off(pieces: Any, on_text: Any) -> None:
        say(pieces[:1], on_text)
        raise ResourceError("the memory ran out")

    asker._say = break_off  # type: ignore[method-assign]
    with pytest.raises(openai.APIError, match="the memory ran out"):
        list(live.ask("one", stream=True))


@both
def test_a_client_that_goes_stops_its_answer(
    live: LiveServer, asker: FakeAsker, stream: bool
) -> None:
    asker.delay, asker.answers["long"] = 0.02, "word " * 500
    sock = send(live, "long", stream=stream)
    until(lambda: len(asker.spoken) > 2)
    sock.close()
    until(lambda: asker.stopped)
    assert len(asker.spoken) < 200
    asker.delay = 0
    assert live.ask("next").choices[0].message.content == "You asked: next"


@both
def test_a_client_that_goes_ends_the_reading(
    live: LiveServer, slow: FakeAsker, stream: bool
) -> None:
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


@both
def test_an_answer_that_takes_too_long(start: Start, asker: FakeAsker, stream: bool) -> None:
    live = start(timeout_s=0.3)
    asker.words, asker.delay, asker.answers["long"] = 2, 0.05, "word " * 100
    with pytest.raises(openai.APIError, match=r"no answer within 0\.3 s") as caught:
        list(live.ask("long", stream=stream, extra_body=A))
    assert stream or getattr(caught.value, "status_code", None) == 504
    assert caught.value.code == "timeout"
    until(lambda: asker.stopped == 1)
    asker.delay, asker.question_delay = 0, 0.02
    assert live.post(user("word " * 900))[0] == 504
    until(lambda: asker.stopped == 2)
    assert live.post(user("next"))[0] == 200


def test_a_server_that_ends_ends_the_reading(
    start: Start, slow: FakeAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "END_STREAMS_WITHIN_S", 1)
    live = start()
    thread, found = in_thread(lambda: list(live.ask("long", stream=True, extra_body=A)))
    until(lambda: slow.read > 2)
    live.server.should_exit = True
    thread.join(10)
    assert isinstance(found[0], Exception)
    live.thread.join(10)
    assert slow.stopped == 1
    assert slow.read < 200


def test_a_job_that_does_not_end_ends_the_process() -> None:
    """The model would else be closed under it."""

    async def begin(worker: JobThread) -> None:
        with worker.queue_job_with_events(lambda job: threading.Event().wait(60)) as events:
            assert await events.get() == ("begun", None)
            worker.close(0.1)

    assert ended(child(lambda: asyncio.run(begin(JobThread(0))))) == BUG
