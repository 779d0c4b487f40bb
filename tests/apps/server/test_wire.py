"""Requests and answers in the shapes of OpenAI's chat completions."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from fake_asker import FakeAsker, fake_book
from live_server import LiveServer, Start, user

from esa_cli.apps.server import wire
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document
from esa_cli.qa.answering.reply import CheckedSentence, Turn


def test_an_answer(live: LiveServer, asker: FakeAsker) -> None:
    found = live.ask("one two")
    choice, usage = found.choices[0], found.usage
    assert (choice.message.role, choice.message.content) == ("assistant", "You asked: one two")
    assert choice.finish_reason == "stop"
    assert (found.object, found.model) == ("chat.completion", "fake-model")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 4, 6)
    assert [one["document"] for one in choice.message.evidence] == [
        f"book{n}.txt" for n in range(3)
    ]
    assert set(choice.message.evidence[0]) == {
        "document", "page", "line", "chapter", "title", "link", "start", "end", "text", "weight",
    }  # fmt: skip
    message = choice.message
    assert (message.found, message.answered_from, message.quotation) == (True, "rows", None)
    assert message.read is True
    assert asker.calls[0]["books"] == ["alpha"]
    assert live.notes == ["4 tokens answered in 0.2 s"]
    with live.client() as client:
        assert [one.id for one in client.models.list()] == ["fake-model"]
    assert live.raw("GET", "/health")[2] == {"status": "ok", "questions": 0}


def test_checked_sentences(live: LiveServer, asker: FakeAsker) -> None:
    asker.sentences = (CheckedSentence(0, 9, False, None, ("asked",)),)
    wanted = [{"start": 0, "end": 9, "supported": False, "passage": None, "missing": ["asked"]}]
    message = live.ask("one").choices[0].message
    assert (message.content, message.sentences) == ("You asked: one", wanted)
    assert list(live.ask("one", stream=True))[-1].sentences == wanted


def test_parameters_are_handed_on(live: LiveServer, asker: FakeAsker) -> None:
    found = live.ask(
        "one", temperature=0.5, top_p=0.9, seed=-1, max_tokens=99, max_completion_tokens=2, n=1,
        presence_penalty=1.0, user="me", tools=[], stop=["", "zwei"],
        response_format={"type": "text"}, extra_body={"evidence": 1, "unknown": {"a": 1}},
    )  # fmt: skip
    assert found.choices[0].finish_reason == "length"
    assert found.choices[0].message.content == "You asked:"
    call = asker.calls[0]
    assert (call["temperature"], call["top_p"], call["max_new_tokens"]) == (0.5, 0.9, 2)
    assert (call["seed"], call["evidence"]) == (2**63 - 1, 1)
    live.ask("one", max_tokens=1)
    call = asker.calls[1]
    assert (call["max_new_tokens"], call["temperature"], call["seed"]) == (1, None, None)


def test_earlier_messages_are_history(live: LiveServer, asker: FakeAsker) -> None:
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


def test_an_instruction_that_no_reader_gets(live: LiveServer, asker: FakeAsker) -> None:
    said = [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "one"}]
    assert "missing" not in live.post({"messages": said})[2]["choices"][0]["message"]
    asker.answers_unread = True
    (note,) = live.post({"messages": said})[2]["choices"][0]["message"]["missing"]
    assert "system message" in note
    assert asker.calls[-1]["question"] == "one"
    asker.reader = object()
    assert "missing" not in live.post({"messages": said})[2]["choices"][0]["message"]


@pytest.mark.parametrize(
    ("said", "question", "history"),
    [
        (["a:hello", "u:one"], "one", [Turn("", "hello")]),
        (["u:one", "u:two"], "one\n\ntwo", []),
        (["u:one", "a:x", "a:y", "u:two"], "two", [Turn("one", "x\n\ny")]),
        (["u:one", "a: ", "u:two"], "two", []),
        (["u:one", "s:late", "u:two"], "one\n\ntwo", [Turn("late", "")]),
    ],
)
def test_odd_orders_of_messages(said: list[str], question: str, history: list[Turn]) -> None:
    roles = {"u": "user", "a": "assistant", "s": "developer"}
    messages = [{"role": roles[one[0]], "content": one[2:]} for one in said]
    found = wire.parse_request(wire.ChatRequest, json.dumps({"messages": messages}).encode())
    assert found.split_question_and_history() == (question, history)


MOST = wire.MAX_DOCUMENTS
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]


NOT_REQUESTS: list[tuple[Any, str | None]] = [
    (b"{", None),
    (b"\xff", None),
    (b"[" * 100_000, None),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None),
    ([], None),
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["x"]}, "messages"),
    (user(""), "messages"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
    (user(None), "messages"),
    (user(IMAGE), "messages[0].content"),
    (user(["x"]), "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
]
"""Requests, and the parameter that is named."""
WRONG_VALUES: dict[str, list[Any]] = {
    "tools": [[{"type": "function"}]], "stop": [5, [1], ["a"] * 17], "logprobs": [True], "n": [2],
    "response_format": [{"type": "json_object"}], "stream": ["yes", 1], "top_p": [-1],
    "temperature": ["hot", True, float("nan"), 2.1, 10**400, float("inf")],
    "max_tokens": [0, 32_769], "max_completion_tokens": [10**400, 1.5], "seed": ["1"],
    "evidence": [51], "documents": ["a.txt", [], [""], [str(n) for n in range(MOST + 1)]],
}  # fmt: skip


def refusal(body: Any) -> ApiError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        wire.parse_request(wire.ChatRequest, data).split_question_and_history()
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(("body", "param"), NOT_REQUESTS)
def test_requests_that_are_refused(body: Any, param: str | None) -> None:
    assert refusal(body).param == param


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_values_that_are_refused(name: str) -> None:
    for value in WRONG_VALUES[name]:
        assert refusal({**user("x"), name: value}).param == name


def test_errors_have_openais_shape(live: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        live.ask("one", tools=[{"type": "function", "function": {"name": "f"}}])
    body = caught.value.body
    assert isinstance(body, dict)
    assert (body["param"], body["code"]) == ("tools", "unsupported_parameter")
    for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/chat/completions", 405)):
        got, _, body = live.raw(method, path)
        assert got == status
        assert set(body["error"]) == {"message", "type", "param", "code"}


def test_what_documents_lack(start: Start) -> None:
    document = Document("a.pdf", "alpha", "a.pdf", "", 9, missing=("page 7 has no text",))
    live = start(fixed=[fake_book("alpha", document)])
    wanted = ["a.pdf: page 7 has no text"]
    assert live.ask("one").choices[0].message.missing == wanted
    *_, last = live.ask("one", stream=True)
    assert last.missing == wanted
    live = start()
    assert not hasattr(live.ask("one").choices[0].message, "missing")
