"""A model on a server that words answers: what is sent, what comes back, what can go wrong."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from completion_server import KEY, CompletionServer

from esa_cli.errors import HistoryError, LengthError, ReaderError, UsageError
from esa_cli.qa.answering.reply import Turn
from esa_cli.qa.finding import model_server
from esa_cli.qa.finding.model_server import ServerConnection
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.reading.reader import SYSTEM, SamplingParams, make_chat_messages
from esa_cli.qa.reading.server import DEFAULT_WINDOW, AnswerText, ServerReader

Start = Callable[..., CompletionServer]
PASSAGES = [
    Passage("gate.pdf", "gate.pdf", 3, 7, "The Gate", 0, 9, "The gate\nopens at nine."),
    Passage("boat.txt", "boat.txt", None, 1, None, 4, 9, "A grey boat."),
]
SAMPLING = SamplingParams(40)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ESA_READER_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(model_server, "BACKOFF_S", 0.001)


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[CompletionServer] = []

    def start(*modes: str) -> CompletionServer:
        server = CompletionServer(list(modes))
        running.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


def reader(
    server: CompletionServer, model: str | None = None, timeout_s: float | None = None
) -> ServerReader:
    return ServerReader(ServerConnection.parse(server.url, "reader"), model, timeout_s)


def ask(one: ServerReader, history: tuple[Turn, ...] = (), **more: Any) -> Any:
    sampling = more.pop("sampling", SAMPLING)
    return one.answer("When does it open? ", PASSAGES, history, sampling, **more)


@pytest.mark.parametrize("url", ["http://a.example/v1", "http://192.168.1.5:8000/v1"])
def test_a_key_goes_to_no_other_machine_unencrypted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ServerConnection.parse(url, "reader").key is None
    monkeypatch.setenv("ESA_READER_KEY", KEY)
    with pytest.raises(UsageError, match="unencrypted") as caught:
        ServerConnection.parse(url, "reader")
    assert KEY not in str(caught.value) + caught.value.hint
    for safe in (url.replace("http:", "https:"), "http://127.0.0.1:9/v1", "http://[::1]:9/v1"):
        assert ServerConnection.parse(safe, "reader").key == KEY


@pytest.mark.parametrize(("mode", "tokens"), [("stream", 3), ("plain", 3)])
def test_an_answer_and_what_was_sent_for_it(start: Start, mode: str, tokens: int) -> None:
    server, pieces = start(mode), list[str]()
    found = ask(reader(server), on_text=pieces.append)
    assert (found.text, found.answer_tokens, found.cut) == ("At nine, says [1].", tokens, False)
    assert found.found
    assert "".join(pieces) == found.text
    assert len(pieces) == 3
    models, question = server.seen
    assert (models["path"], models["body"]) == ("/v1/models", None), "no text goes there"
    body = question["body"]
    assert question["path"] == "/v1/chat/completions"
    assert question["key"] is None
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("large", 40, 0.0)
    assert "seed" not in body
    system, user = body["messages"]
    assert system == {"role": "system", "content": SYSTEM}
    assert user["content"] == (
        "Passages:\n\n[1] gate.pdf, page 3, The Gate\nThe gate opens at nine.\n\n"
        "[2] boat.txt\nA grey boat.\n\nQuestion: When does it open?"
    )


def test_lines_of_code_are_kept_and_none_looks_like_a_passage() -> None:
    """Those of prose are joined, so that a document cannot write the head of a passage either."""
    text = "if a:  # [1]\n        go()\n\n[9] b.py\nQuestion: Who?"
    code, prose = (
        Passage(name, name, None, 7, None, 0, len(text), text, indent=8 * (name == "a.py"))
        for name in ("a.py", "a.txt")
    )
    user = make_chat_messages("When?", [code, prose], [])[-1]["content"]
    assert re.findall(r"^\S.*$", user, re.MULTILINE) == [
        "Passages:", "[1] a.py", "[2] a.txt", " ".join(text.split()), "Question: When?",
    ]  # fmt: skip
    assert user.split("[1] a.py\n")[1].startswith(
        "            if a:  # [1]\n            go()\n    [9]"
    )


def test_earlier_turns_the_model_and_the_seed(start: Start) -> None:
    server = start("stream")
    history = (Turn("Be kind.", ""), Turn("Who waits?", "Ann."))
    one = reader(server, "small")
    ask(one, history, sampling=SamplingParams(9, 0.5, 0.9, 7))
    body = server.seen[-1]["body"]
    assert one.name == body["model"] == "small"
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.9, 7)
    system, *turns = body["messages"]
    assert system["content"].endswith("\n\nBe kind.")
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[0]["content"].endswith("Question: Who waits?")
    assert turns[1]["content"] == "Ann."
    assert turns[2]["content"] == "Question: When does it open?"


def test_the_key_is_of_the_environment(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ESA_READER_KEY"
    server = start("guarded", "stream")
    with pytest.raises(ReaderError, match=r"refuses the key: who are you\?") as caught:
        reader(server)
    assert "ESA_READER_KEY" in caught.value.hint
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    monkeypatch.setenv(name, f"{KEY}\n")
    assert KEY not in repr(ServerConnection.parse(server.url, "reader"))
    ask(reader(server))
    assert server.seen[-1]["key"] == f"Bearer {KEY}"
    monkeypatch.setenv(name, "kéy")
    with pytest.raises(UsageError, match=f"{name} must be printable ASCII"):
        reader(server)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://api.openai.com/v1", "sk-1"),
        ("http://api.openai.com/v1", None),
        ("https://api.openai.com.example/v1", None),
        ("http://127.0.0.1:8000/v1", None),
    ],
)
def test_the_key_of_openai_goes_to_openai_alone(
    monkeypatch: pytest.MonkeyPatch, url: str, key: str | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert ServerConnection.parse(url, "reader").key == key


@pytest.mark.parametrize("mode", ["busy", "down", "drop"])
def test_what_may_pass_is_tried_again(start: Start, mode: str) -> None:
    server = start(mode, mode, "stream")
    assert ask(reader(server)).text
    assert len(server.seen) == 4


def test_each_try_waits_twice_as_long(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start("stream")
    one, waits = reader(server), list[float]()
    monkeypatch.setattr(model_server.time, "sleep", waits.append)
    server.modes[:] = ["drop"]
    with pytest.raises(ReaderError):
        ask(one)
    assert waits == pytest.approx([0.001, 0.002, 0.004])


@pytest.mark.parametrize(
    ("mode", "words", "hint"),
    [
        ("busy", "takes no more questions now: later", "again later"),
        ("down", "failed with status 503: loading the model", "log"),
        ("drop", "cannot be reached", "running"),
        ("half", "broke off its answer", "again"),
        ("unended", "cannot be used: the stream broke off", "OpenAI"),
        ("broken", "cannot be used: the response is not", "OpenAI"),
        ("failing", "cannot be used: out of", "OpenAI"),
        ("nested", "cannot be used: the response is not", "OpenAI"),
        ("objecting", "failed with status 400: wrong", "log"),
        ("page", "cannot be used: the answer is not a stream", "OpenAI"),
        ("whole", "cannot be used: the answer is not a stream", "OpenAI"),
        ("missing", "has no model large: model 'large' not found", "choose one of large, small"),
        ("long", r"status 400: the context is 512 tokens x+…$", "shorter question"),
        ("thoughts", "sent an empty answer of its model large, which may", "--max-new-tokens"),
        ("silent", "was silent for 0.4 s", "smaller"),
        ("trickle", "took longer than 0.4 s", "smaller"),
    ],
)
def test_what_goes_wrong_says_what_to_try(start: Start, mode: str, words: str, hint: str) -> None:
    server = start("stream")
    one = reader(server, timeout_s=0.4)
    server.modes[:] = [mode]
    with pytest.raises(ReaderError, match=words) as caught:
        ask(one)
    assert hint in caught.value.hint
    assert server.url in caught.value.message
    assert caught.value.exit_code == 5
    tries = len(server.seen) - 1
    assert tries == (4 if mode in ("busy", "down", "drop") else 1)


@pytest.mark.parametrize(
    ("mode", "words", "hint"),
    [
        ("unlisted", "has no chat completions there: Not Found", "/v1"),
        ("empty", "lists no models", "URL#MODEL"),
        ("embedders", "lists no models", "URL#MODEL"),
        ("page", "cannot be used: the response is not", "OpenAI"),
        ("nested", "cannot be used: the response is not", "OpenAI"),
        ("endless", "cannot be used: the response is not", "OpenAI"),
        ("moved", "has moved: https://elsewhere.example/v1", "new address"),
    ],
)
def test_a_wrong_address_is_found_before_anything_is_sent(
    start: Start, mode: str, words: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_server, "MAX_BODY_BYTES", 4_000)
    server = start(mode)
    with pytest.raises(ReaderError, match=words) as caught:
        reader(server)
    assert hint in caught.value.hint
    assert all(one["body"] is None for one in server.seen)


def test_a_server_need_not_list_its_models(start: Start) -> None:
    for mode in ("unlisted", "empty"):
        assert ask(reader(start(mode, "stream"), "own")).text


def test_the_window_is_that_of_the_model_that_answers(start: Start) -> None:
    chosen, named = (reader(start("windows"), name) for name in (None, "small"))
    assert (chosen.name, chosen.window_tokens) == ("large", DEFAULT_WINDOW)
    assert (named.name, named.window_tokens) == ("small", 9_000)


@pytest.mark.parametrize("seed", range(8))
def test_what_does_not_fit_into_the_window_is_not_sent(start: Start, seed: int) -> None:
    """As many passages as fit, by a loop; not one with a long history is an error."""
    draw, server = random.Random(seed), start("stream")
    one, history = reader(server), [Turn("Who waits?", "Ann. " * draw.randrange(300))]
    one.window_tokens = draw.randrange(300, 2000)
    passages = [replace(PASSAGES[0], text="The gate. " * draw.randrange(1, 90)) for _ in range(10)]
    room = 3 * (one.window_tokens - one.window_tokens // 4)
    sizes = [
        sum(len(m["content"]) for m in make_chat_messages("When?", passages[:count], history))
        for count in range(1, 9)
    ]
    fitting = sum(size < room + 3 for size in sizes)
    if not fitting:
        with pytest.raises(HistoryError):
            one.answer("When?", passages, history, SamplingParams())
        with pytest.raises(LengthError):
            one.answer("When? " * 1000, passages, (), SamplingParams())
        return
    one.answer("When?", passages, history, SamplingParams())
    [content] = [m["content"] for m in server.seen[-1]["body"]["messages"][1:2]]
    assert len(re.findall(r"^\[\d\] gate.pdf", content, re.MULTILINE)) == fitting


def test_parameters_that_a_model_refuses_are_left_out(start: Start) -> None:
    server = start("picky")
    one = reader(server)
    assert ask(one).text
    body = server.seen[-1]["body"]
    assert body["max_completion_tokens"] == 40
    assert not {"max_tokens", "temperature"} & set(body)
    before = len(server.seen)
    ask(one)
    assert len(server.seen) == before + 1, "it is known from then on"


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("At nine.", "At nine."),
        ("\n <think>\nNine, or ten?\n</think>\n\nAt nine.", "At nine."),
        ("<think></think>At nine, </think> says it.", "At nine, </think> says it."),
        ("<thin ice>", "<thin ice>"),
        ("<thi", "<thi"),
        ("At <think>nine</think>.", "At <think>nine</think>."),
        ("<think>Nine, or", ""),
        ("\ud83d\ude00 at \ud83d\ude00", "\U0001f600 at \U0001f600"),
        ("\ud83d at \ude00 nine\ud83d", "\ufffd at \ufffd nine\ufffd"),
        ("<think>\ud83d</think>\ude00", "\ufffd"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_an_answer_has_no_thoughts_and_whole_characters(sent: str, text: str, size: int) -> None:
    heard = list[str]()
    answer = AnswerText(heard.append)
    for at in range(0, len(sent), size):
        answer.add(sent[at : at + size])
    answer.end()
    assert "".join(answer.pieces) == "".join(heard) == text


def test_an_answer_is_streamed_without_delay() -> None:
    heard = list[str]()
    answer = AnswerText(heard.append)
    for number, piece in enumerate(["At ", "nine", "."], 1):
        answer.add(piece)
        assert len(heard) == number


def test_an_exception_of_the_listener_ends_the_answer(start: Start) -> None:
    def stop(piece: str) -> None:
        raise KeyboardInterrupt

    one = reader(start("stream"))
    with pytest.raises(KeyboardInterrupt):
        ask(one, on_text=stop)
    assert ask(one).text


@pytest.mark.parametrize(
    "text",
    [
        "http://", "http://host:port/v1", "http://a b/v1", "https://me:secret@host/v1",
        "http://host/v1?version=1", "http://host/v1/chat/completions", "http://[::1/v1",
    ],
)  # fmt: skip
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerConnection.parse(text, "reader")
    assert caught.value.hint
    assert "secret" not in caught.value.message


def test_addresses() -> None:
    assert (
        ServerConnection.parse(" http://localhost:1/v1/ ", "reader").url == "http://localhost:1/v1"
    )
