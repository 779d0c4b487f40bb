"""Streams, and answers that end before they are whole."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from fake_asker import FakeAsker
from live_server import LiveServer, Start, in_thread, send, until, user

from esa_cli.apps.server import server_app, server_run
from esa_cli.errors import ResourceError


def test_streaming(live: LiveServer) -> None:
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


def test_pieces_come_while_the_answer_is_being_given(live: LiveServer, asker: FakeAsker) -> None:
    asker.delay = 0.05
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
    stream = iter(live.ask("one", stream=True))
    with pytest.raises(openai.APIError, match="the memory ran out"):
        list(stream)


@pytest.mark.parametrize("stream", [False, True])
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


def test_openais_client_may_close_a_stream(live: LiveServer, asker: FakeAsker) -> None:
    asker.delay, asker.answers["long"] = 0.02, "word " * 500
    with live.client() as client:
        stream = client.chat.completions.create(
            model="any", messages=user("long")["messages"], stream=True
        )
        next(iter(stream))
        stream.close()
    until(lambda: asker.stopped)


def test_an_answer_that_takes_too_long(start: Start, asker: FakeAsker) -> None:
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


A = {"documents": ["a.txt"]}


@pytest.mark.parametrize("stream", [False, True])
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


LATE = (
    r"no answer within 0\.3 s: the document was still being read \(\d+ of 500 tokens\); "
    r"`esa serve` needs a longer --timeout, or --keep: then asking again goes on where this stopped"
)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reading_that_takes_too_long(
    start: Start, slow: FakeAsker, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "TICK_S", 0.1 if stream else 5)
    live = start(timeout_s=0.3)
    with pytest.raises(openai.APIError, match=LATE) as caught:
        list(live.ask("long", stream=stream, extra_body=A))
    assert stream or getattr(caught.value, "status_code", None) == 504
    assert caught.value.code == "timeout"
    until(lambda: slow.stopped)
    assert slow.read < 200
    slow.delay = 0
    assert live.ask("next").choices[0].message.content == "You asked: next"


def test_a_question_whose_time_is_up_is_read_no_further(start: Start, asker: FakeAsker) -> None:
    asker.question_delay = 0.02
    live = start(timeout_s=0.3)
    status, _, body = live.post(user("word " * 900))
    assert (status, body["error"]["code"]) == (504, "timeout")
    until(lambda: asker.stopped)
    assert asker.spoken == []
    assert live.post(user("next"))[0] == 200


def test_an_answer_that_is_late_blames_no_reading(start: Start, asker: FakeAsker) -> None:
    live = start(timeout_s=0.3)
    asker.words, asker.delay, asker.answers["long"] = 2, 0.05, "word " * 100
    with pytest.raises(openai.APIError, match=r"no answer within 0\.3 s$"):
        live.ask("long", extra_body=A)
    assert asker.read == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_ends_ends_the_reading_and_says_so(
    start: Start, slow: FakeAsker, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "TICK_S", 0.1 if stream else 5)
    monkeypatch.setattr(server_run, "END_WITHIN_S", 1)
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


def test_silence_is_filled(start: Start, asker: FakeAsker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_app, "TICK_S", 0.1)
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


def test_async_client(live: LiveServer) -> None:
    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=live.url, api_key="x", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="any", messages=user("one")["messages"], stream=True
            )
            return "".join([one.choices[0].delta.content or "" async for one in stream])

    assert asyncio.run(ask()) == "You asked: one"
