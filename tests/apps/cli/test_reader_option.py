"""`--reader`: the answer is another model's, the evidence the first one's."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import cache, esa, note, surroundings
from command import ROOT, Esa, fail
from completion_server import CompletionServer
from reader_models import WINDOW, wide_model

from esa_cli import Esa as Interface
from esa_cli.errors import ReaderError, UsageError
from esa_cli.qa.answering.reply import Turn

__all__ = ["cache", "esa", "note", "surroundings"]

pytestmark = pytest.mark.usefixtures("surroundings")
SUPPORT = Path(__file__).parents[2] / "support"
SENT = "esa: questions and the passages found are sent to large at "
QUESTION = "When does the gate open?"


class Elsewhere:
    """A server in a process of its own."""

    def __init__(self, log: Path, *modes: str) -> None:
        script = str(SUPPORT / "completion_server.py")
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, script, str(log), *modes], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/v1"

    def asked(self) -> list[dict[str, Any]]:
        rows = map(json.loads, self.log.read_text().splitlines())
        return [row["body"] for row in rows if row["body"] is not None]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    for name in ("ESA_READER_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    one = Elsewhere(tmp_path / "log", "stream", "unknown", "stream")
    yield one
    one.end()


@pytest.fixture
def preset(tmp_path: Path) -> list[str]:
    wide_model(tmp_path / "wide")
    text = f"extends: tiny-random\nmodel: ./wide\ncontext: {WINDOW}\nanswer: {{passages: 3}}\n"
    Path("own.yaml").write_text(text)
    return ["--preset", "./own.yaml", "--device", "cpu", "--dtype", "float32"]


@pytest.mark.process
def test_ask_and_its_json(esa: Esa, note: str, preset: list[str], server: Elsewhere) -> None:
    result = esa("ask", note, QUESTION, *preset, "--reader", server.url)
    assert result.code == 0, result.err
    assert result.out == "At nine, says [1].\n"
    assert result.err.count(SENT + server.url) == 1
    assert "  note.md, line 1" in result.err
    result = esa("ask", note, QUESTION, *preset, "--reader", server.url, "--json", "--quiet")
    assert SENT not in result.err
    data = result.data
    assert (data["answer"], data["found"]) == ("The documents do not say.", False)
    assert (data["reader"], data["answered_from"], data["quotation"]) == ("large", "text", None)
    assert len(data["evidence"]) == 3, "it stays"
    first, _ = server.asked()
    user = first["messages"][-1]["content"]
    assert user.endswith(f"Question: {QUESTION}")
    assert "[3] note.md\n" in user
    assert "[4]" not in user


@pytest.mark.process
def test_lines_chat_and_batch(
    esa: Esa, note: str, preset: list[str], server: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [*preset, "--reader", f"{server.url}#small"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"When?\nWho?\n")))
    result = esa("ask", note, "-", *there)
    assert result.out == "At nine, says [1].\n\nThe documents do not say.\n\n"
    assert result.err.count("esa: questions and the passages found are sent to small") == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"When?\nAnd why?\n")))
    result = esa("chat", note, *there, "--quiet")
    assert result.out.count("At nine, says [1].") == 2
    assert [one["role"] for one in server.asked()[-1]["messages"]] == [
        "system", "user", "assistant", "user",
    ]  # fmt: skip
    Path("q.jsonl").write_text('{"question": "When?"}\n')
    batch = ["batch", "q.jsonl", note, "--out", "out.jsonl", *preset, "--quiet"]
    assert esa(*batch, "--reader", server.url).code == 0
    row = json.loads(Path("out.jsonl").read_text())
    assert (row["answer"], row["answered_from"]) == ("At nine, says [1].", "text")
    assert esa(*batch, "--reader", server.url).code == 0
    for other in (["--reader", "http://127.0.0.1:1/v1"], []):
        fail(esa(*batch, *other), 2, "settings")
    server.end()
    result = esa("chat", note, *there, "--quiet")
    fail(result, 5, "cannot be reached: Connection refused", "is the server running")


@pytest.mark.process
def test_our_own_server_reads_for_another(
    esa: Esa, note: str, preset: list[str], server: Elsewhere
) -> None:
    """`esa serve --reader` asks the server, and `esa ask --reader` asks `esa serve`."""
    command = [sys.executable, "-m", "esa_cli", "serve", note, "--port", "0", *preset]
    served = subprocess.Popen(
        [*command, "--reader", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert served.stdout is not None
        url = served.stdout.readline().strip()
        asked = ["ask", note, QUESTION, *preset, "--reader", url]
        result = esa(*asked)
        assert (result.code, result.out) == (0, "At nine, says [1].\n")
        assert "sent to wide at " + url in result.err
        server.end()
        fail(esa(*asked, "--quiet"), 5, "the server's reader cannot be used")
    finally:
        served.kill()
        _, err = served.communicate()
    assert err.count(SENT) == 1
    assert "cannot be reached: Connection refused" in err, "whoever runs the server is told"


def test_a_second_model_here(esa: Esa, note: str, preset: list[str]) -> None:
    result = esa(
        "ask", note, QUESTION, *preset, "--reader", "./wide", "--json", "--max-new-tokens", "4"
    )
    assert result.code == 0, result.err
    assert (result.data["reader"], result.data["answered_from"]) == ("wide", "text")
    assert result.data["tokens"]["answer"] <= 4
    assert "sent to" not in result.err


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--reader-model", "large"], 2),
        (["--reader", "tiny-random", "--answer", "span"], 2),
        (["--reader", "tiny-random", "--method", "infllm"], 2),
        (["--reader", "tiny-random", "--set", "answer.from=rows"], 2),
        (["--reader", "http://127.0.0.1:9/v1", "--reader-timeout", "nan"], 2),
        (["--reader", "gone-random"], 5),
        (["--reader", "http://127.0.0.1:1/v1#large"], 5),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch, more: list[str], code: int
) -> None:
    monkeypatch.setattr("esa_cli.models.load", lambda *given, **named: pytest.fail("loaded"))
    monkeypatch.setattr("esa_cli.qa.reading.server.BACKOFF_S", 0.001)
    fail(esa("ask", note, "When?", "--preset", "tiny-random", "--quiet", *more), code)


def test_in_python(note: str, preset: list[str]) -> None:
    one = CompletionServer(["stream"])
    threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
    place = {"device": "cpu", "dtype": "float32"}
    try:
        with Interface.load("./own.yaml", reader=one.url, reader_model="small", **place) as esa:
            pieces: list[str] = []
            book = esa.ingest(note)
            reply = esa.ask(QUESTION, [book], on_text=pieces.append, history=[Turn("Who?", "Ann")])
            assert (reply.text, len(pieces)) == ("At nine, says [1].", 3)
            assert (reply.found, reply.answered_from, reply.doubtful) == (True, "text", False)
            assert 0 < reply.first_token_s < reply.total_s
            assert esa.report(reply, QUESTION, [book]).startswith("<!")
            one.modes[:] = ["page"]
            with pytest.raises(ReaderError, match="it is no JSON"):
                esa.ask(QUESTION, [book])
            one.modes[:] = ["stream"]
            assert esa.ask(QUESTION, [book]).found
    finally:
        one.shutdown()
        one.server_close()
    with pytest.raises(UsageError, match="words answers from passages"):
        Interface.load("tiny-random", reader="./wide", method="infllm", **place)
