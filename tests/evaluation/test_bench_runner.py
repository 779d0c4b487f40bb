"""A benchmark run: selected tasks, the loop that can be resumed, and tables of scores."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_rows import longbench_row, records, rows_of, whole, write

from esa_cli.errors import DocumentError, LengthError, UsageError
from esa_cli.evaluation import bench
from esa_cli.evaluation.bench import BenchRecord
from esa_cli.evaluation.bench import bench_runner as order
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench.bench_runner import KEY, BenchReply, run
from esa_cli.evaluation.bench.session_asker import RecordAsker
from esa_cli.evaluation.report import bench_table as table
from esa_cli.qa.presets.preset import load
from esa_cli.system.jsonl import Journal

# -- what is run


def test_tasks_are_those_asked_or_those_there(tmp_path: Path) -> None:
    longbench = bench.find("longbench")
    with pytest.raises(DocumentError, match="none of the benchmark's files"):
        order.tasks(longbench, tmp_path, None)
    for task in ("trec", "qasper"):
        write(tmp_path / f"{task}.jsonl", [longbench_row("a", all_classes=["x"])])
    assert order.tasks(longbench, tmp_path, None) == ["qasper", "trec"], "in the table's order"
    assert order.tasks(longbench, tmp_path, ["trec", "lcc"]) == ["trec", "lcc"]
    with pytest.raises(UsageError) as caught:
        order.tasks(longbench, tmp_path, ["hotpot"])
    assert "hotpotqa" in caught.value.hint
    with pytest.raises(DocumentError, match="there is no folder"):
        order.tasks(longbench, tmp_path / "nowhere", None)
    asked = order.TaskSelection(longbench, tmp_path, ["qasper", "trec"])
    assert len(asked.left_out()) == 14


def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "qasper.jsonl", [longbench_row("a"), longbench_row("a")])
    asked = order.TaskSelection(bench.find("longbench"), tmp_path, ["qasper"])
    with pytest.raises(DocumentError, match="two records 'a'"):
        asked.survey()


def test_files_without_records_are_refused(tmp_path: Path) -> None:
    longbench = bench.find("longbench")
    write(tmp_path / "qasper.jsonl", [longbench_row("a")])
    for content in ("", "\n\n"):
        (tmp_path / "trec.jsonl").write_text(content)
        with pytest.raises(DocumentError, match=r"trec\.jsonl has no records"):
            order.TaskSelection(longbench, tmp_path, ["qasper", "trec"]).survey()
    context = "A gate. " * 5
    row = {"prompt": context + "?", "context_span": [0, len(context)], "answers": "a"}
    write(tmp_path / "mini" / "longbench_mini.jsonl", [row | {"task": "qasper"}])
    with pytest.raises(DocumentError, match="has no records of trec, lcc"):
        order.TaskSelection(longbench, tmp_path / "mini", ["qasper", "trec", "lcc"]).survey()
    (tmp_path / "array.json").write_text("[]")
    with pytest.raises(DocumentError, match="has no records"):
        files.array(tmp_path / "array.json")


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    write(tmp_path / "qasper.jsonl", [longbench_row("a")])
    plain = (tmp_path / "qasper.jsonl").read_bytes()
    (tmp_path / "qasper.jsonl").write_bytes(b"\xef\xbb\xbf" + plain)
    assert [record.id for record in records("longbench", tmp_path, "qasper")] == ["a"]
    (tmp_path / "array.json").write_bytes(b"\xef\xbb\xbf" + b"[" + plain.strip() + b"]")
    assert [row.text("_id") for row in files.array(tmp_path / "array.json")] == ["a"]


def test_positions_are_stretched_as_in_the_paper_or_to_the_files_length(tmp_path: Path) -> None:
    row = {"index": 7, "outputs": ["12"], "length": 130_000}
    write(tmp_path / "vt/validation.jsonl", [row | {"input": "Memorize and track the chain(s) "
        "Question: Find all variables that are assigned"}])  # fmt: skip
    survey = order.TaskSelection(bench.find("ruler"), tmp_path, ["vt"]).survey()
    assert survey.length == 131_072
    write(tmp_path / "qasper.jsonl", [longbench_row("a")])
    survey = order.TaskSelection(bench.find("longbench"), tmp_path, ["qasper"]).survey()
    assert survey == ({("qasper", "a"): 1}, 32_000)


def test_methods_become_presets() -> None:
    base = load("tiny-random")
    made = order.presets(base, ["preset", "streaming-llm"], 1000)
    assert made["preset"] is base
    assert made["streaming-llm"].window.selected == 0
    with pytest.raises(UsageError, match="unknown method"):
        order.presets(base, ["streming-llm"], 1000)
    with pytest.raises(UsageError, match="--methods must name a method"):
        order.presets(base, [], 1000)


@pytest.mark.parametrize("name", ["full", "origin", "ntk-dynamic"])
def test_full_attention_reads_with_everything_in_view(name: str) -> None:
    base = load("tiny-random", ["reading=local"])
    made = order.presets(base, [name], 1000)[name]
    assert (made.reading, made.selector) == ("select", {"name": "full"})
    assert load("default").reading == "local"
    assert order.presets(load("default"), ["full"], 1000)["full"].reading == "select"


@pytest.mark.parametrize(
    ("length", "heading"),
    [(200_000, "ntk(200k)"), (128_000, "ntk(128k)"), (131_072, "ntk(128k)"), (999, "ntk(999)")],
)
def test_what_is_stretched_says_so_in_its_heading(length: int, heading: str) -> None:
    base = load("tiny-random")
    methods = ["preset", "origin", "ntk", "infllm", "of a plugin"]
    titles = order.titles(base, methods, length)
    assert titles == {"ntk": heading}
    assert order.titles(base, methods, 0) == {}
    found = table.scores([*rows_of("ntk", trec=[1.0]), *rows_of("preset", trec=[0.5])])
    headers, _ = table.table(bench.find("longbench"), found, titles)
    assert headers == ["task", "records", heading, "preset"]


# -- the loop


def some(count: int) -> list[BenchRecord]:
    return [
        BenchRecord("longbench", "qasper", str(at), "b", f"d{at // 2}", "q", ("yes",), 8)
        for at in range(count)
    ]


def journal(path: Path, **settings: Any) -> Journal:
    header = {"command": "esa", "settings": settings}
    return Journal(path, header, same=("settings",), key=KEY)


def yes(record: BenchRecord) -> BenchReply:
    return BenchReply("yes", 7)


def right(record: BenchRecord, output: str) -> float:
    return float(output in record.answers)


def test_every_row_is_kept_and_none_asked_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    asked: list[str] = []

    def ask(record: BenchRecord) -> BenchReply:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(record.id)
        return yes(record)

    with pytest.raises(KeyboardInterrupt), journal(path) as first:
        run(some(4), ask, right, first, method="m", settings="s")
    with path.open("a") as file:
        file.write('{"method": "m", "task": "qasp')
    heard: list[dict[str, Any]] = []
    with journal(path) as second:
        assert run(some(4), yes, right, second, method="m", settings="s", on_row=heard.append)
    assert asked == ["0", "1"]
    assert [row["id"] for row in heard] == ["2", "3"]
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [row["id"] for row in rows] == ["0", "1", "2", "3"]
    assert {**rows[0], "seconds": 0} == {
        "method": "m", "benchmark": "longbench", "task": "qasper", "id": "0", "answers": ["yes"],
        "output": "yes", "score": 1.0, "tokens": 7, "seconds": 0, "record": some(1)[0].digest,
        "settings": "s",
    }  # fmt: skip


def test_another_method_asks_again_and_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with journal(path, w=1) as rows:
        run(some(2), yes, right, rows, method="m")
        run(some(2), yes, right, rows, method="n")
        with pytest.raises(UsageError, match="other settings of n"):
            run(some(2), yes, right, rows, method="n", settings="edited")
    assert len(rows.rows) == 4
    with pytest.raises(UsageError, match="another settings"):
        journal(path, w=2)


@pytest.mark.parametrize(
    "change",
    [
        {"before": "B"},
        {"document": "D"},
        {"question": "Q"},
        {"prime": "p"},
        {"chat": False},
        {"answers": ("no",)},
        {"longest": 9},
        {"data": {"classes": ["a"]}},
    ],
)
def test_rows_of_other_data_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with journal(path) as first:
        run(some(2), yes, right, first, method="m")
    again = some(3)
    asked: list[str] = []

    def ask(record: BenchRecord) -> BenchReply:
        asked.append(record.id)
        return yes(record)

    with journal(path) as second:
        run(again, ask, right, second, method="m")
    assert asked == ["2"]
    again[1] = replace(again[1], **change)
    with journal(path) as third, pytest.raises(UsageError) as caught:
        run(again, ask, right, third, method="m")
    assert f"{path} has another record as qasper, 1:" in caught.value.message
    assert "--data" in caught.value.hint
    assert asked == ["2"]
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [row["record"] for row in rows] == [record.digest for record in some(3)]


def test_where_a_prompt_is_cut_counts() -> None:
    record = some(1)[0]
    moved = replace(record, before=record.before + record.document, document="")
    assert moved.digest != record.digest, "it is read otherwise"
    assert replace(record, id="another").digest == record.digest


def test_no_record_is_begun_after_the_time(tmp_path: Path) -> None:
    with journal(tmp_path / "rows.jsonl") as rows:
        assert not run(some(2), yes, right, rows, method="m", until=time.monotonic())
        assert rows.rows == []
        assert run(some(2), yes, right, rows, method="m", until=time.monotonic() + 60)


class Recorder:
    """A session that remembers what it was told."""

    document_tokens = 10

    def __init__(self) -> None:
        self.read_texts: list[str] = []
        self.prompts: list[str] = []

    def clear(self) -> None:
        self.text = ""

    def use(self, preset: Any) -> None:
        self.prompt = preset.prompt

    def check(self, question: str, **options: Any) -> None:
        if "too long" in question:
            raise LengthError("no room", "a shorter one")

    def read(self, text: str, progress: Any) -> None:
        self.text = text
        self.read_texts.append(text)

    def ask(self, question: str, on_text: Any, **options: Any) -> Any:
        assert self.prompt.after == "{question}"
        self.options = options
        self.prompts.append(self.prompt.before + self.text + question)
        on_text("    a = 1")
        return SimpleNamespace(text="a = 1", question_tokens=3)


def test_a_record_is_put_as_it_is_and_a_document_read_once() -> None:
    recorder = Recorder()
    seen: list[BenchRecord] = []
    asker = RecordAsker(recorder, load("tiny-random"), seen.append)  # type: ignore[arg-type]
    replies = [asker(record) for record in some(4)]
    assert recorder.read_texts == ["d0", "d1"]
    assert [record.id for record in seen] == ["0", "2"]
    assert recorder.prompts == [whole(record) for record in some(4)]
    assert replies[0] == BenchReply("    a = 1", 13), "the margin is kept, for code"
    assert recorder.options == {"prime": "", "max_new_tokens": 8, "temperature": 0.0}
    plain = BenchRecord("longbench", "lcc", "9", "b", "d1", "q", ("x",), 8, chat=False)
    asker(plain)
    assert recorder.read_texts == ["d0", "d1", "d1"], "another prompt is another reading"
    assert not recorder.prompt.chat


def test_a_question_without_room_is_left_out_before_its_document_is_read(tmp_path: Path) -> None:
    recorder = Recorder()
    asker = RecordAsker(recorder, load("tiny-random"), lambda record: None)  # type: ignore[arg-type]
    long = BenchRecord("longbench", "qasper", "x", "b", "d9", "too long", ("yes",), 8)
    left: list[str] = []
    with journal(tmp_path / "rows.jsonl") as rows:
        with pytest.raises(LengthError, match="no room"):
            run([long, *some(1)], asker, right, rows, method="m")
        assert run(
            [*some(1), long, *some(3)[2:]],
            asker,
            right,
            rows,
            method="m",
            on_left_out=lambda record, error: left.append(f"{record.id}: {error.message}"),
        )
        assert [row["id"] for row in rows.rows] == ["0", "2"]
    assert left == ["x: no room"]
    assert recorder.read_texts == ["d0", "d1"]


def test_a_reading_that_was_interrupted_is_done_again() -> None:
    recorder = Recorder()
    asker = RecordAsker(recorder, load("tiny-random"), lambda record: None)  # type: ignore[arg-type]
    read = recorder.read

    def interrupted(text: str, progress: Any) -> None:
        raise KeyboardInterrupt

    recorder.read = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        asker(some(1)[0])
    recorder.read = read  # type: ignore[method-assign]
    asker(some(1)[0])
    assert recorder.read_texts == ["d0"]


# -- tables


def test_table_has_means_averages_and_counts() -> None:
    rows = [*rows_of("ours", qasper=[0.5, 1.0], trec=[0.0]), *rows_of("theirs", trec=[1.0, 0.5])]
    found = table.scores(rows)
    headers, lines = table.table(bench.find("longbench"), found)
    assert headers == ["task", "records", "ours", "theirs"]
    assert lines == [
        ["Qasper", "2 / 0 of 200", "75.00", "-"],
        ["TREC", "1 / 2 of 200", "0.00", "75.00"],
        # (75 + 0) / 2: each task counts once, however many records
        ["LongBench average", "2 / 1 of 16 tasks", "37.50", "75.00"],
    ]
    assert table.markdown(headers, lines).splitlines()[:3] == [
        "| task | records | ours | theirs |",
        "| - | -: | -: | -: |",
        "| Qasper | 2 / 0 of 200 | 75.00 | - |",
    ]
    data = table.as_dict(bench.find("longbench"), found)["ours"]
    assert data["tasks"]["qasper"] == {"score": 75.0, "records": 2, "of": 200}
    assert data["averages"] == {"LongBench": {"score": 37.5, "tasks": 2, "of": 16}}


def test_groups_are_averaged_apart() -> None:
    searching, reasoning = "searching-128k-32-32", "reasoning-128k-32-32"
    found = table.scores(rows_of("m", **{searching: [1.0], reasoning: [0.5]}))
    _, lines = table.table(bench.find("counting-stars"), found)
    assert [line[0] for line in lines] == [
        "(128k, 32, 32)", "Counting-Stars, searching average",
        "(128k, 32, 32)", "Counting-Stars, reasoning average",
    ]  # fmt: skip
    assert [line[2] for line in lines] == ["100.00", "100.00", "50.00", "50.00"]


def test_a_benchmark_of_unknown_size_says_how_many() -> None:
    _, lines = table.table(bench.find("ruler"), table.scores(rows_of("m", vt=[1.0])))
    assert lines[0] == ["VT", "1", "100.00"]
