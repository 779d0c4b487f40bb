"""`esa bench`, with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_rows import longbench_row, records, rows_of, stars_row, whole, write

from esa_cli import models
from esa_cli.__main__ import main
from esa_cli.apps.cli.commands import bench_command as bench_table
from esa_cli.apps.cli.output.terminal import print_table
from esa_cli.evaluation import bench
from esa_cli.evaluation.report import bench_table as table
from esa_cli.qa.answering import session
from esa_cli.qa.presets.preset import load

TINY = ["--preset", "tiny-random", "--device", "cpu", "--dtype", "float32"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("esa-home")


class Esa:
    """Runs the command in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str], data: Path) -> None:
        self.capture, self.data = capture, data

    def __call__(self, *words: str, code: int = 0) -> str:
        given = main(["bench", *words])
        self.out, self.err = self.capture.readouterr()
        assert "Traceback" not in self.err
        assert given == code, self.err
        return self.out


@pytest.fixture
def esa(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    short_answers: None,
) -> Esa:
    for name in ("ESA_MEMORY_LIMIT", "ESA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ESA_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = tmp_path / "data"
    write(data / "qasper.jsonl", [longbench_row("a"), longbench_row("b", input="Which gate?")])
    write(data / "lcc.jsonl", [longbench_row("c", input="")])
    monkeypatch.chdir(tmp_path)
    return Esa(capsys, data)


def test_the_command_prints_a_table(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    read = session.Session.read
    texts: list[str] = []

    def counted(self: session.Session, text: str, progress: Any = None) -> None:
        texts.append(text)
        read(self, text, progress)

    monkeypatch.setattr(session.Session, "read", counted)
    out = esa(
        "longbench", "--data", str(esa.data), *TINY, "--methods", "preset,streaming-llm",
        "--out", "rows.jsonl", "--markdown", "table.md",
    )  # fmt: skip
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["task", "records", "preset", "streaming-llm"]
    assert lines[1][:4] == ["Qasper", "2", "of", "200"]
    assert lines[3][:6] == ["LongBench", "average", "2", "of", "16", "tasks"]
    assert "left out, their files are not in" in esa.err
    assert Path("table.md").read_text().startswith("| task | records | preset | streaming-llm |")
    assert len(texts) == 4, "both questions of qasper share a reading, for each method"
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert [(row["method"], row["task"], row["id"]) for row in rows[1:]] == [
        (method, *rest)
        for method in ("preset", "streaming-llm")
        for rest in (("qasper", "a"), ("qasper", "b"), ("lcc", "c"))
    ]
    assert all(row["tokens"] > 100 for row in rows[1:])


def trec_row(name: str, question: str, context: str) -> dict[str, Any]:
    return longbench_row(name, input=question, context=context, all_classes=["Date", "Place"])


def test_a_record_without_room_is_named_and_the_others_are_asked(esa: Esa) -> None:
    questions = {"a": "When?", "b": "When? " * 300, "c": "Where?"}
    rows = [trec_row(name, asked, "Who? Person. " * 60) for name, asked in questions.items()]
    write(esa.data / "trec.jsonl", rows)
    words = ("--tasks", "trec", "--set", "window.ending=0", "--set", "window.selected=16")
    out = esa("longbench", "--data", str(esa.data), *TINY, *words)
    assert "preset: trec, b left out: the question and the answer take" in esa.err
    assert out.splitlines()[1].split()[:4] == ["TREC", "2", "of", "200"]
    assert "note: preset: trec: 1 left out, for want of room" in out
    told = json.loads(esa("longbench", "--data", str(esa.data), *TINY, *words, "--json"))
    assert told["complete"]
    (missed,) = told["left_out"]
    assert (missed["method"], missed["task"], missed["id"]) == ("preset", "trec", "b")
    assert missed["why"].startswith("the question and the answer take")


@pytest.mark.parametrize(("dense", "said"), [("512", True), ("0", False)])
def test_prompts_too_short_to_select_from_are_counted(esa: Esa, dense: str, said: bool) -> None:
    rows = [trec_row("short", "When?", "Who?"), trec_row("long", "When?", "Who? Person. " * 60)]
    write(esa.data / "trec.jsonl", rows)
    words = ("--tasks", "trec", "--set", f"window.dense={dense}")
    esa("longbench", "--data", str(esa.data), *TINY, *words)
    note = "1 of 2 prompts have at most 512 tokens (window.dense): plain attention"
    assert (note in esa.err) is said


def test_the_command_goes_on_where_it_was(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("longbench", "--data", str(esa.data), *TINY, "--out", "rows.jsonl")
    ask = session.Session.ask
    left = [1]

    def once(self: session.Session, *given: Any, **options: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return ask(self, *given, **options)

    monkeypatch.setattr(session.Session, "ask", once)
    out = esa(*words, code=130)
    assert "1 of 200" in out, "what was done is shown"
    assert "the same command with --out rows.jsonl goes on" in esa.err
    monkeypatch.setattr(session.Session, "ask", ask)
    data = json.loads(esa(*words, "--json", "--quiet"))
    assert esa.err == ""
    assert data["complete"]
    assert data["scores"]["preset"]["tasks"]["qasper"]["records"] == 2
    assert [row["id"] for row in data["rows"]] == ["a", "b", "c"]
    esa(*words, "--set", "window.selected=32", code=2)
    assert "has results of another settings" in esa.err


def test_the_command_refuses_rows_of_other_data(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*TINY, "--tasks", "qasper", "--out", "rows.jsonl")
    esa("longbench", "--data", str(esa.data), *words)
    kept = Path("rows.jsonl").read_bytes()
    monkeypatch.setattr("esa_cli.models.load", lambda *args, **options: pytest.fail("loaded"))
    other = esa.data.parent / "other"
    write(other / "qasper.jsonl", [longbench_row("a"), longbench_row("b", context="A fox. " * 30)])
    esa("longbench", "--data", str(other), *words, code=2)
    assert "another record as qasper, b:" in esa.err
    assert Path("rows.jsonl").read_bytes() == kept


def test_no_token_of_a_prompt_is_left_out(esa: Esa) -> None:
    row = longbench_row("a", context="The keeper opens the gate. " * 100)
    write(esa.data / "qasper.jsonl", [row])
    words = ("longbench", "--data", str(esa.data), *TINY, "--tasks", "qasper", "--json")
    data = json.loads(esa(*words, "--methods", "preset,streaming-llm,full"))
    (record,) = records("longbench", esa.data, "qasper")
    tokenizer = models.load("random:llama", device="cpu", dtype="float32").tokenizer
    said = [{"role": "user", "content": whole(record)}]
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert tokens > 5 * load("tiny-random").context
    assert [row["tokens"] for row in data["rows"]] == [tokens] * 3


def test_the_command_stops_at_its_time(esa: Esa) -> None:
    out = esa("longbench", "--data", str(esa.data), *TINY, "--time-limit", "0", "--json")
    assert json.loads(out)["complete"] is False
    assert "the time limit was reached" in esa.err


def test_the_command_limits_records_of_each_task(esa: Esa) -> None:
    out = esa("longbench", "--data", str(esa.data), *TINY, "--limit", "1", "--tasks", "qasper,lcc")
    assert "1 of 200" in out
    assert "left out" not in esa.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["longbench"], 2, "data.zip of the dataset THUDM/LongBench"),
        (["longbensh"], 2, "did you mean 'longbench'?"),
        (["longbench", "--data", "nowhere"], 3, "there is no folder nowhere"),
        (["longbench", "--data", "data", "--tasks", "qaspr"], 2, "did you mean 'qasper'?"),
        (["longbench", "--data", "data", "--methods", "streming-llm"], 2, "unknown method"),
        (["longbench", "--data", "data", "--markdown", "no/t.md"], 2, "there is no folder"),
        (["ruler", "--data", "data", "--download"], 2, "cannot be downloaded"),
    ],
)
def test_mistakes_are_found_before_the_model_is_loaded(
    words: list[str], code: int, said: str, esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esa_cli.models.load", lambda *args, **options: pytest.fail("loaded"))
    esa(*words, *TINY, code=code)
    assert said in esa.err


def test_no_file_of_the_data_is_written_over(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("longbench", "--data", str(esa.data), *TINY, "--limit", "1")
    before = (esa.data / "lcc.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("esa_cli.models.load", lambda *given, **options: pytest.fail("loaded"))
        esa(*words, "--markdown", str(esa.data / "lcc.jsonl"), code=2)
        assert "must not be one of the files in --data" in esa.err
        esa(*words, "--out", str(esa.data / "lcc.jsonl"), code=2)
        assert "not a results file" in esa.err
        esa(*words, "--out", "same.x", "--markdown", "same.x", code=2)
        assert "--out and --markdown must be two files, got same.x" in esa.err
    assert (esa.data / "lcc.jsonl").read_bytes() == before
    for _ in range(2):
        esa(*words, "--markdown", str(esa.data / "table.md"), "--out", str(esa.data / "o.jsonl"))
    assert (esa.data / "table.md").read_text().startswith("| task |"), (
        "a table takes a table's place"
    )


def test_a_table_of_many_methods_fits_a_narrow_terminal(
    esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [f"method-number-{n}" for n in range(8)]
    found = table.scores(
        [row for name in methods for row in rows_of(name, qasper=[0.5, 1.0], lcc=[0.25])]
    )
    pieces = bench_table._pieces(bench.find("longbench"), found, {}, 80)
    assert [name for headers, _ in pieces for name in headers[2:]] == methods
    assert 2 <= len(pieces) < 8
    monkeypatch.setattr("esa_cli.apps.cli.output.terminal.room", lambda: 80)
    for piece in pieces:
        print_table(*piece)
        lines = esa.capture.readouterr().out.splitlines()
        assert len(lines) == 4, "a line for each row, and one for the headers"
        assert max(map(len, lines)) <= 80
        assert lines[1].split()[:4] == ["Qasper", "2", "of", "200"]
    monkeypatch.setattr(bench_table, "room", lambda: 46)
    words = ("--data", str(esa.data), *TINY, "--limit", "1", "--methods", "preset,streaming-llm")
    headers = [line.split() for line in esa("longbench", *words).splitlines() if "task " in line]
    assert headers == [["task", "records", "preset"], ["task", "records", "streaming-llm"]]
    assert len(bench_table._pieces(bench.find("longbench"), found, {}, 1000)) == 1
    assert len(bench_table._pieces(bench.find("longbench"), found, {}, 10)) == 8


def test_a_broken_line_is_found_before_the_model_is_loaded(
    esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esa_cli.models.load", lambda *args, **options: pytest.fail("loaded"))
    write(esa.data / "trec.jsonl", [longbench_row("a", all_classes=["x"]), ["broken"]])
    esa("longbench", "--data", str(esa.data), *TINY, code=3)
    assert "trec.jsonl, line 2" in esa.err


def test_words_are_put_into_the_mouth_and_notes_printed(esa: Esa) -> None:
    name = "Counting_Stars_EN_multi-evidence-retrieval-searching_128000_32_32.jsonl"
    write(esa.data / name, [stars_row(False)])
    assert "(128k, 32, 32)" in esa("counting-stars", "--data", str(esa.data), *TINY)
    book = {"context": "def f(): ...", "input": "", "answer": "f", "options": ["f", "g", "h", "i"]}
    write(esa.data / "code_debug.jsonl", [book])
    assert "note: Code.Debug" in esa("infinitebench", "--data", str(esa.data), *TINY)
