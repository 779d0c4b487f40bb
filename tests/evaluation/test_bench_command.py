"""`esa bench`, with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_rows import longbench_row, records, whole, write
from command import TINY, Esa, fail

from esa_cli import models
from esa_cli.qa.answering import session
from esa_cli.qa.presets.preset import load_preset

pytestmark = pytest.mark.usefixtures("surroundings", "short_answers")

LONGBENCH = ["bench", "longbench", "--data", "data", *TINY]


@pytest.fixture(autouse=True)
def data(surroundings: None) -> Path:
    folder = Path("data")
    write(folder / "qasper.jsonl", [longbench_row("a"), longbench_row("b", input="Which gate?")])
    write(folder / "lcc.jsonl", [longbench_row("c", input="")])
    return folder


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esa_cli.models.load", lambda *args, **options: pytest.fail("loaded"))


def test_the_command_prints_a_table(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    read, texts = session.Session.read, list[str]()

    def counted(self: session.Session, text: str, progress: Any = None) -> None:
        texts.append(text)
        read(self, text, progress)

    monkeypatch.setattr(session.Session, "read", counted)
    methods = ("--methods", "preset,streaming-llm")
    done = esa(*LONGBENCH, *methods, "--out", "rows.jsonl")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["task", "records", "preset", "streaming-llm"]
    assert lines[1][:4] == ["Qasper", "2", "of", "200"]
    assert lines[3][:6] == ["LongBench", "average", "2", "of", "16", "tasks"]
    assert len(texts) == 4, "both questions of qasper share a reading, for each method"
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert [(row["method"], row["task"], row["id"]) for row in rows[1:]] == [
        (method, *rest)
        for method in ("preset", "streaming-llm")
        for rest in (("qasper", "a"), ("qasper", "b"), ("lcc", "c"))
    ]
    assert all(row["tokens"] > 100 for row in rows[1:])
    again = esa(*LONGBENCH, *methods, "--out", "rows.jsonl")
    assert again.code == 0, again.err
    assert len(texts) == 4, "nothing is asked again"


def trec_row(name: str, question: str, context: str) -> dict[str, Any]:
    return longbench_row(name, input=question, context=context, all_classes=["Date", "Place"])


def test_a_record_without_room_is_named_and_the_others_are_asked(esa: Esa, data: Path) -> None:
    questions = {"a": "When?", "b": "When? " * 300, "c": "Where?"}
    rows = [trec_row(name, asked, "Who? Person. " * 60) for name, asked in questions.items()]
    write(data / "trec.jsonl", rows)
    words = ("--tasks", "trec", "--set", "window.ending=0", "--set", "window.selected=16")
    done = esa(*LONGBENCH, *words)
    assert "preset: trec, b left out: the question and the answer take" in done.err
    assert done.out.splitlines()[1].split()[:4] == ["TREC", "2", "of", "200"]
    assert "note: records left out, as they do not fit: 1" in done.out
    told = esa(*LONGBENCH, *words, "--json").data
    assert told["complete"]
    (missed,) = told["left_out"]
    assert (missed["method"], missed["task"], missed["id"]) == ("preset", "trec", "b")


def test_the_command_goes_on_where_it_was(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*LONGBENCH, "--out", "rows.jsonl")
    ask, left = session.Session.ask, [1]

    def once(self: session.Session, *given: Any, **options: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return ask(self, *given, **options)

    monkeypatch.setattr(session.Session, "ask", once)
    stopped = esa(*words)
    assert stopped.code == 130
    assert "1 of 200" in stopped.out, "what was done is shown"
    assert "the same command with --out rows.jsonl continues" in stopped.err
    monkeypatch.setattr(session.Session, "ask", ask)
    done = esa(*words, "--json", "--quiet")
    assert done.err == ""
    assert done.data["complete"]
    assert done.data["scores"]["preset"]["tasks"]["qasper"]["records"] == 2
    assert [row["id"] for row in done.data["rows"]] == ["a", "b", "c"]
    fail(esa(*words, "--set", "window.selected=32"), 2, "window.selected")


def test_no_token_of_a_prompt_is_left_out(esa: Esa, data: Path) -> None:
    write(data / "qasper.jsonl", [longbench_row("a", context="The keeper opens the gate. " * 100)])
    methods = ("--methods", "preset,streaming-llm,full")
    rows = esa(*LONGBENCH, "--tasks", "qasper", "--json", *methods).data["rows"]
    (record,) = records("longbench", data, "qasper")
    tokenizer = models.load("random:llama", device="cpu", dtype="float32").tokenizer
    said = [{"role": "user", "content": whole(record)}]
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert tokens > 5 * load_preset("tiny-random").context
    assert [row["tokens"] for row in rows] == [tokens] * 3


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["longbench"], 2),
        (["longbensh"], 2),
        (["longbench", "--data", "nowhere"], 3),
        (["longbench", "--data", "data", "--tasks", "qaspr"], 2),
        (["longbench", "--data", "data", "--methods", "streming-llm"], 2),
        (["longbench", "--data", "data", "--out", "data/lcc.jsonl"], 2),
        (["longbench", "--data", "broken"], 3),
    ],
)
def test_mistakes_are_found_before_the_model_is_loaded(
    words: list[str], code: int, esa: Esa, data: Path, no_model: None
) -> None:
    write(Path("broken/trec.jsonl"), [longbench_row("a", all_classes=["x"]), ["broken"]])
    before = (data / "lcc.jsonl").read_bytes()
    fail(esa("bench", *words, *TINY), code)
    assert (data / "lcc.jsonl").read_bytes() == before
