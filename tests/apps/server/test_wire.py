"""Requests and answers in the shapes of OpenAI's chat completions."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from typing import Any
from urllib.parse import quote

import openai
import pytest
from fake_asker import FakeAsker, fake_book
from hypothesis import example, given, settings
from hypothesis import strategies as st
from live_server import LiveServer, Start, user
from properties import EXAMPLES, NUMBERS, SCALARS, expect_one_line, trees

from esa_cli.apps.server import wire
from esa_cli.apps.server.wire import ApiError, StoppedText
from esa_cli.documents.document import Document
from esa_cli.qa.answering.reply import CheckedSentence, Quotation, Reply, Turn
from esa_cli.qa.finding.passage import Passage


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
    assert live.notes == ["esa: 4 tokens answered in 0.2 s"]
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
    said = [Turn("Be short.", ""), Turn("one", "eins"), Turn("two\n\nmore of two", "zwei")]
    assert asker.calls[0]["history"] == said


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


SURROGATE = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
SAID = [{"role": "assistant", "content": "x"}]
NOT_REQUESTS: dict[str | None, list[Any]] = {
    None: [b"{", b"\xff", b"[" * 100_000, SURROGATE, []],
    "messages": [{}, *({"messages": one} for one in ([], ["x"], SAID)), user(""), user(None)],
    "messages[0].content": [user(IMAGE), user(["x"])],
    "messages[0].role": [{"messages": [{"role": "tool", "content": "x"}]}],
    "messages[0].tool_calls": [{"messages": [{"role": "assistant", "tool_calls": [{}]}]}],
}
"""Requests by the parameter that is named."""
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


@pytest.mark.parametrize("param", NOT_REQUESTS)
def test_requests_that_are_refused(param: str | None) -> None:
    for body in NOT_REQUESTS[param]:
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


TEXTS = st.text(alphabet="abc", max_size=30)


@given(TEXTS, st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3), st.data())
@example("aabaac", ["aac"], None)
def test_the_same_text_in_pieces_and_whole(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    ends = [at for at in range(len(text)) if any(text.startswith(one, at) for one in stops)]
    expected = text[: min(ends, default=len(text))]
    sent = list[str]()
    stopped, at = StoppedText(stops, sent.append), 0
    while at < len(text):
        step = 1 if data is None else data.draw(st.integers(1, 5))
        stopped.add_piece(text[at : at + step])
        assert expected.startswith("".join(sent))
        at += step
    assert stopped.finish_reply(Reply(text)).text == expected
    assert "".join(sent) == expected


def test_what_belongs_to_the_rest_is_left_out() -> None:
    sentences = (CheckedSentence(0, 4, True, 1), CheckedSentence(5, 9, True, 1))
    reply = Reply("One. Two.", cut=True, quotations=(Quotation("a", 0, 9),), sentences=sentences)
    found = StoppedText([" "], lambda piece: None).finish_reply(reply)
    assert (found.text, found.cut, found.quotation) == ("One.", False, None)
    assert found.sentences == sentences[:1]
    assert StoppedText(["x"], lambda piece: None).finish_reply(reply) == reply


def test_requests_with_stop_sequences(live: LiveServer, asker: FakeAsker) -> None:
    asker.answers["one"] = "It is nine. Observation: nothing"
    for stop in ("Observation:", ["zzz", "Observation:"]):
        choice = live.ask("one", stop=stop).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("It is nine. ", "stop")
        pieces = [one.choices[0] for one in live.ask("one", stop=stop, stream=True)]
        assert "".join(one.delta.content or "" for one in pieces) == "It is nine. "
        assert pieces[-1].finish_reason == "stop"
    assert live.ask("one", stop="").choices[0].message.content == asker.answers["one"]


def test_numbers_of_the_passages_that_are_shown() -> None:
    texts = [("The mill burned down.", 0.6), ("The mill burned down.", 0.3), ("A cat slept.", 1e-9)]
    texts.append(("Ann sailed to Ulm in May.", 0.1))
    places = ("a.txt", "a.txt", None, 1, None, 0, 9)
    evidence = tuple(Passage(*places, text, weight=weight) for text, weight in texts)
    reply = Reply("burned", evidence, True, 1, 1, 0.1, 0.2, answered_from="text")
    [end] = wire.ChatCompletionMaker("fake").make_last_stream_chunks(reply, False)
    assert (len(end["evidence"]), end["shown"]) == (4, [1, 4])


NAMES = list(wire.ChatRequest.model_fields)
PARTS = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)})
CONTENT = st.text(max_size=5) | st.lists(PARTS, max_size=2) | trees(["type", "text"])
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    optional={"content": CONTENT, "tool_calls": SCALARS},
)
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, max_size=4)},
    optional={
        name: trees(["type", "include_usage"]) | NUMBERS for name in NAMES if name != "messages"
    },
) | trees([*NAMES, "role", "content"])
RANGES = {"temperature": (0, 2), "top_p": (0, 1), "evidence": (0, wire.MAX_EVIDENCE)}


def dumped(body: Any) -> bytes:
    try:
        return json.dumps(body).encode()
    except ValueError:  # a number of more digits than Python writes
        return repr(body).encode("utf-8", "replace")


def expect_refusal(error: ApiError) -> None:
    assert error.status == 400
    expect_one_line(error)


@given(BODIES)
@example({"messages": [{"role": "user", "content": "x"}], "seed": 10**400})
@example({"messages": [{"role": "user", "content": "x"}], "temperature": float("nan")})
@example({"messages": [{"role": "user", "content": "\ud800"}]})
def test_bodies(body: Any) -> None:
    try:
        found = wire.parse_request(wire.ChatRequest, dumped(body))
        question, history = found.split_question_and_history()
    except ApiError as error:
        expect_refusal(error)
        return
    options = found.make_esa_ask_arguments()
    assert question.strip()
    assert all(isinstance(turn.question + turn.answer, str) for turn in history)
    for name, (low, high) in RANGES.items():
        assert options[name] is None or low <= options[name] <= high
    assert options["max_new_tokens"] is None or 1 <= options["max_new_tokens"] <= wire.MAX_TOKENS
    assert options["seed"] is None or 0 <= options["seed"] < 2**63
    assert found.documents is None or 1 <= len(found.documents) <= wire.MAX_DOCUMENTS


@given(st.binary(max_size=40) | st.text('{}[]":,0e9-.\\u \n', max_size=40))
@example(b"[" * 100_000)
@example(b'{"messages": ' + b"[" * 100_000)
@example(b'{"seed": ' + b"9" * 5000 + b"}")
def test_bytes_that_are_no_request(data: bytes | str) -> None:
    try:
        wire.parse_request(wire.ChatRequest, data if isinstance(data, bytes) else data.encode())
    except ApiError as error:
        expect_refusal(error)


HEADERS = st.sampled_from(
    ["Host", "Origin", "Authorization", "Content-Length", "Transfer-Encoding", "Content-Type",
     "Expect", "Connection", "Cookie", "X-Forwarded-Host"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["", "localhost", "127.0.0.1:1", "evil.org", "null", "http://localhost", "chunked", "-1", "0",
     "9" * 30, "keep-alive", "100-continue", "[::1", "Bearer x", "\u00e9", "a" * 9000]
) | st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=12)  # fmt: skip
STATUSES = {200, 400, 401, 403, 404, 405, 408, 413, 429, 431, 499, 504}


def test_a_server_goes_on_after_any_request(start: Start) -> None:
    live = start(max_body=5000)

    @given(
        st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "HEAD", "BREW"]),
        st.sampled_from(
            ["/v1/chat/completions", "/v1/models", "/v1/models/%00/../x", "/", "//", "*", "/é"]
        ),
        st.dictionaries(HEADERS, VALUES, max_size=3),
        BODIES.map(dumped) | st.binary(max_size=30),
    )
    @settings(max_examples=max(EXAMPLES, 60))
    def ask(method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        status = status_of(live, method, path, headers, body)
        assert status is None or status in STATUSES

    ask()
    assert live.ask("one two").choices[0].message.content == "You asked: one two"
    # A question whose client hung up may be in work for a moment.
    for _ in range(100):
        if (health := live.raw("GET", "/health")[2]) == {"status": "ok", "questions": 0}:
            break
        time.sleep(0.1)
    assert health == {"status": "ok", "questions": 0}


DOCUMENTS = st.sampled_from(
    ["esa:1", "esa:01", "esa:0000000019999", "esa:" + "1" * 6000, "esa:-1", "esa:\u0661",
     "esa:\u00b9", "esa:1e9", "library:", "library:0", "../x", "/etc/passwd", "\0", ".", "",
     "\ud800", "a" * 5000]
) | st.text(max_size=9)  # fmt: skip


def test_names_of_documents(start: Start) -> None:
    live = start()

    @given(st.lists(DOCUMENTS, max_size=3))
    def ask(names: list[str]) -> None:
        assert live.post({**user("one"), "documents": names})[0] in STATUSES
        for name in names:
            place = quote(name.encode("utf-8", "surrogatepass"))
            assert live.raw("GET", f"/v1/documents/text?document={place}")[0] in STATUSES

    ask()


def status_of(
    live: LiveServer, method: str, path: str, headers: dict[str, str], body: bytes
) -> int | None:
    """None where the server hung up, or waits for what was promised."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    names = {name.lower() for name in headers}
    lines += [] if "host" in names else ["Host: localhost"]
    lines += (
        [] if {"content-length", "transfer-encoding"} & names else [f"Content-Length: {len(body)}"]
    )
    found = http.client.HTTPConnection("127.0.0.1", live.port, timeout=0.2)
    with contextlib.suppress(OSError, http.client.HTTPException):
        found.connect()
        found.sock.sendall("\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + body)
        answer = http.client.HTTPResponse(found.sock, method=method)
        answer.begin()
        return answer.status
    found.close()
    return None
