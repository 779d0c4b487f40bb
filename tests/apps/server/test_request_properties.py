"""Random requests: a valid one, or an error of status 400 that says what is allowed."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from typing import Any
from urllib.parse import quote

from hypothesis import example, given, settings
from hypothesis import strategies as st
from live_server import LiveServer, Start, user
from properties import EXAMPLES, NUMBERS, SCALARS, expect_one_line, trees

from esa_cli.apps.server import wire
from esa_cli.apps.server.wire import ApiError

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
