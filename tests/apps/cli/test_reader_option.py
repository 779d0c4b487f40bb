"""`--reader`: the answer is another model's, the evidence the first one's."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from command import ROOT, Esa, fail
from completion_server import CompletionServer
from reader_models import WINDOW, wide_model

from esa_cli.system.local_servers import SERVERS

SENT = "esa: questions and the passages found are sent to large at "
QUESTION = "When does the gate open?"


@pytest.fixture
def server(completions: CompletionServer, monkeypatch: pytest.MonkeyPatch) -> CompletionServer:
    for name in ("ESA_READER_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    completions.modes[:] = ["stream", "unknown", "stream"]
    return completions


@pytest.fixture
def preset(tmp_path: Path) -> list[str]:
    wide_model(tmp_path / "wide")
    text = f"extends: tiny-random\nmodel: ./wide\ncontext: {WINDOW}\nanswer: {{passages: 3}}\n"
    Path("own.yaml").write_text(text)
    return ["--preset", "./own.yaml", "--device", "cpu", "--dtype", "float32"]


@pytest.mark.process
def test_ask_and_its_json(esa: Esa, note: str, preset: list[str], server: CompletionServer) -> None:
    result = esa("ask", note, QUESTION, *preset, "--reader", server.url)
    assert result.code == 0, result.err
    assert result.out == "At nine, says [1].\n"
    assert result.err.count(SENT + server.url) == 1
    assert "note.md:1" in result.err
    result = esa("ask", note, QUESTION, *preset, "--reader", server.url, "--json", "--quiet")
    assert SENT not in result.err
    data = result.data
    assert (data["answer"], data["found"]) == ("The documents do not say.", False)
    assert (data["reader"], data["answered_from"], data["quotation"]) == ("large", "text", None)
    assert len(data["evidence"]) == 3, "it stays"
    first, _ = (one["body"] for one in server.seen if one["body"] is not None)
    user = first["messages"][-1]["content"]
    assert user.endswith(f"Question: {QUESTION}")
    assert "[3] note.md\n" in user
    assert "[4]" not in user


@pytest.mark.parametrize("mode", ["unended", "half"])
def test_an_error_in_the_middle_of_an_answer_is_a_line_of_its_own(
    esa: Esa, note: str, preset: list[str], server: CompletionServer, mode: str
) -> None:
    server.modes[:] = [mode]
    result = esa("ask", note, QUESTION, *preset, "--reader", server.url)
    assert (result.code, result.out) == (5, "At \n")
    assert "broke off" in result.err


def test_a_sentence_that_no_passage_supports_is_marked(
    esa: Esa, note: str, preset: list[str], server: CompletionServer
) -> None:
    server.modes[:] = ["invented"]
    asked = ["ask", note, QUESTION, *preset, "--reader", server.url]
    result = esa(*asked)
    answer = "The gate opens at nine [1]. It was built by Ann Brown in 1803."
    assert result.out == f"{answer}\n"
    (line,) = (line for line in result.err.splitlines() if line.startswith("  ? "))
    assert line.endswith("(It was built by Ann Brown in 1803.)")
    assert "1803, " in line
    report = Path("report.html")
    first, second = esa(*asked, "--quiet", "--json", "--report", str(report)).data["sentences"]
    assert (first["supported"], first["passage"], first["missing"]) == (True, 1, [])
    assert (second["supported"], second["missing"][0]) == (False, "1803")
    assert answer[second["start"] : second["end"]] == "It was built by Ann Brown in 1803."
    assert "in 1803. [? not in the passages: 1803" in report.read_text("utf-8")


@pytest.mark.process
def test_on_a_terminal_an_answer_is_one_line(
    esa: Esa, note: str, preset: list[str], server: CompletionServer
) -> None:
    """Three pieces come, while a spinner turns."""
    screen, terminal = os.openpty()
    command = [sys.executable, "-m", "esa_cli", "ask", note, QUESTION, *preset, "--read", "first"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "60", "TERM": "xterm"}
    with subprocess.Popen(
        [*command, "--reader", server.url], stdout=terminal, stderr=terminal, env=environment
    ):
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # Linux ends a terminal with an error
            while piece := os.read(screen, 4096):
                shown += piece
    os.close(screen)
    assert b"At nine, says [1].\r\n" in shown


@pytest.mark.process
def test_our_own_server_reads_for_another(
    esa: Esa, note: str, preset: list[str], server: CompletionServer
) -> None:
    """`esa serve --reader` asks the server, and `esa ask --reader` asks `esa serve`."""
    command = [sys.executable, "-m", "esa_cli", "serve", note, "--port", "0", *preset]
    served = subprocess.Popen(
        [*command, "--reader", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        url = served.stdout.readline().strip()
        asked = ["ask", note, QUESTION, *preset, "--reader", url]
        result = esa(*asked)
        assert (result.code, result.out) == (0, "At nine, says [1].\n")
        assert "sent to wide at " + url in result.err
        server.shutdown()
        server.server_close()
        fail(esa(*asked, "--quiet"), 5, "the server's reader cannot be used")
    finally:
        served.kill()
        _, err = served.communicate()
    assert err.count(SENT) == 1
    assert "cannot be reached: Connection refused" in err, "whoever runs the server is told"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--reader-model", "large"], 2),
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
    monkeypatch.setattr("esa_cli.qa.finding.model_server.BACKOFF_S", 0.001)
    fail(esa("ask", note, "When?", "--preset", "tiny-random", "--quiet", *more), code)


@pytest.fixture
def ollama(server: CompletionServer, monkeypatch: pytest.MonkeyPatch) -> CompletionServer:
    """The server where Ollama would be; nobody listens on the ports of the other servers."""
    for name, known in SERVERS.items():
        port = server.server_address[1] if name == "ollama" else 1
        monkeypatch.setitem(SERVERS, name, replace(known, port=port))
    monkeypatch.setattr("esa_cli.apps.cli.output.answer_output.HINT_S", 5)
    return server


def test_ollama_is_known_by_name(
    esa: Esa, note: str, preset: list[str], ollama: CompletionServer
) -> None:
    result = esa("ask", note, QUESTION, *preset, "--reader", "ollama")
    assert (result.code, result.out) == (0, "At nine, says [1].\n")
    assert f"{SENT}{ollama.url}, one of 2 models" in result.err
    result = esa("ask", note, QUESTION, *preset, "--reader", "ollama#small")
    assert f"sent to small at {ollama.url}\n" in result.err
    asked = [one["body"]["model"] for one in ollama.seen if one["body"] is not None]
    assert asked == ["large", "small"]


def test_ollama_is_offered_where_nothing_answers_but_not_used(
    esa: Esa, note: str, preset: list[str], ollama: CompletionServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    offer = "Ollama runs here: with --reader ollama"
    preset += ["--set", "answer.from=text"]
    assert "Nothing found" not in esa("ask", note, QUESTION, *preset).out
    assert not ollama.seen, "nobody asks a server without need"
    monkeypatch.setattr("esa_cli.qa.reading.span.REQUEST", float("-inf"))
    assert offer in esa("ask", note, "Explain the gate to a child.", *preset).err
    ollama.modes[:] = ["embedders"]
    assert offer not in esa("ask", note, "Explain the gate to a child.", *preset).err
    assert {one["path"] for one in ollama.seen} == {"/v1/models"}
    ollama.modes[:] = ["empty"]
    assert "`esa models suggest`" in esa("ask", note, "Explain the gate to a child.", *preset).err
    assert esa("ask", note, "Explain the gate to a child.", *preset, "--quiet").err == ""
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("Explain the gate to a child.\nCompare Ahab and the gate.\n")
    )
    talk = esa("chat", note, *preset)
    assert talk.err.count("`esa models suggest`") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lmstudio", "`lms server start`"),
        ("qwen3:8b", "ollama#qwen3:8b"),
        ("olama", "'ollama'"),
        ("ollama", "`ollama pull MODEL`"),
    ],
)
def test_errors_say_what_to_try(
    esa: Esa, note: str, ollama: CompletionServer, monkeypatch: pytest.MonkeyPatch, name: str,
    words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("esa_cli.qa.finding.model_server.BACKOFF_S", 0.001)
    ollama.modes[:] = ["empty"] if name == "ollama" else ollama.modes
    fail(esa("ask", note, "When?", "--preset", "tiny-random", "--reader", name), 5, words)


def test_doctor_and_suggest_name_what_runs_here(esa: Esa, ollama: CompletionServer) -> None:
    assert esa("doctor", "--json").data["servers"] == {"ollama": ["large", "small"]}
    assert "use --reader ollama" in esa("doctor").out
    assert "--reader ollama, which runs here with large, small" in esa("models", "suggest").out
