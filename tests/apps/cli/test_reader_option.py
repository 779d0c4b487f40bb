"""`--reader`: the answer is another model's, the evidence the first one's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import cache, esa, note, surroundings
from command import ROOT, Esa, fail
from reader_models import WINDOW, wide_model

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


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--reader-model", "large"], 2, "--reader-model needs --reader"),
        (["--reader-timeout", "9"], 2, "--reader-timeout needs --reader"),
        (["--reader", "tiny-random", "--reader-timeout", "9"], 2, "is of a server"),
        (["--reader", "http://127.0.0.1:9/v1", "--reader-timeout", "0"], 2, "must be above 0"),
        (["--reader", "http://127.0.0.1:9/v1", "--reader-timeout", "nan"], 2, "must be above 0"),
        (["--reader", "tiny-random", "--answer", "span"], 2, "--answer span is of the model"),
        (["--reader", "tiny-random", "--method", "infllm"], 2, "and --method infllm"),
        (["--reader", "tiny-random", "--set", "answer.from=rows"], 2, "needs answers from"),
        (["--reader", "gone-random"], 5, "unknown model"),
        (["--reader", "http://127.0.0.1:1/v1"], 5, "cannot be reached"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_a_model_is_loaded(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch, more: list[str], code: int, words: str
) -> None:
    def load(*given: Any, **named: Any) -> None:
        raise AssertionError("it is not loaded")

    monkeypatch.setattr("esa_cli.models.load", load)
    monkeypatch.setattr("esa_cli.qa.reading.server.BACKOFF_S", 0.001)
    fail(esa("ask", note, "When?", "--preset", "tiny-random", "--quiet", *more), code, words)
