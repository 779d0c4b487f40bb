"""A benchmark run: selected tasks, the loop that writes rows, how records are asked, tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_rows import longbench_row, rows_of, whole, write

from esa_cli.errors import DocumentError, LengthError, UsageError
from esa_cli.evaluation import bench
from esa_cli.evaluation.bench import BenchRecord, bench_run
from esa_cli.evaluation.bench.bench_run import KEY, BenchSelection, RecordAsker
from esa_cli.evaluation.row_run import Case, DocumentCases, write_rows
from esa_cli.qa.presets.preset import load
from esa_cli.system.jsonl import Journal

# -- what is run


@pytest.mark.parametrize("second", [longbench_row("a"), longbench_row("b", input="")])
def test_records_of_one_name_or_without_a_question_are_refused(
    second: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "qasper.jsonl", [longbench_row("a"), second])
    selection = BenchSelection(bench.find("longbench"), tmp_path, ["qasper"])
    if second["_id"] == "b":
        read = selection.benchmark.read
        blank = [replace(record, question=" ") for record in read(tmp_path, "qasper")]
        benchmark = replace(selection.benchmark, read=lambda folder, task: iter(blank))
        selection = replace(selection, benchmark=benchmark)
    with pytest.raises(DocumentError):
        selection.survey()


# -- the loop


def some(count: int) -> list[BenchRecord]:
    return [
        BenchRecord("longbench", "qasper", str(at), "b", f"d{at // 2}", "q", ("yes",), 8)
        for at in range(count)
    ]


def journal(path: Path, **settings: Any) -> Journal:
    header = {"command": "esa", "settings": settings}
    return Journal(path, header, same=("settings",), key=KEY)


class Loop:
    """Documents for the loop, whose questions are answered by `ask`."""

    def __init__(self, ask: Callable[[BenchRecord], str] = lambda record: "yes") -> None:
        self.asked: list[str] = []
        self.read: list[str] = []
        self._ask = ask

    def documents(self, records: Sequence[BenchRecord], method: str) -> Iterator[DocumentCases]:
        for record in records:
            fields = {"method": method, "task": record.task, "id": record.id}
            fields |= {"record": record.digest}
            case = Case(fields, lambda record=record: self._row(record), lambda: None)
            yield DocumentCases([case], lambda record=record: self._read(record))

    def _read(self, record: BenchRecord) -> bool:
        self.read.append(record.document)
        return record.document != "unreadable"

    def _row(self, record: BenchRecord) -> dict[str, Any]:
        output = self._ask(record)
        self.asked.append(record.id)
        return {"output": output}


def test_every_row_is_kept_and_none_asked_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def interrupted(record: BenchRecord) -> str:
        if record.id == "2":
            raise KeyboardInterrupt
        return "yes"

    first = Loop(interrupted)
    with pytest.raises(KeyboardInterrupt), journal(path) as rows:
        write_rows(first.documents(some(4), "m"), rows)
    with path.open("a") as file:
        file.write('{"method": "m", "task": "qasp')
    heard: list[dict[str, Any]] = []
    second = Loop()
    with journal(path) as rows:
        assert write_rows(second.documents(some(4), "m"), rows, on_row=heard.append)
    assert first.asked == ["0", "1"]
    assert [row["id"] for row in heard] == second.asked == ["2", "3"]
    assert second.read == ["d1", "d1"], "a document without open questions is not read"
    written = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [row["id"] for row in written] == ["0", "1", "2", "3"]
    with journal(path) as rows:
        write_rows(Loop().documents(some(1), "another"), rows)
        assert len(rows.rows) == 5


def test_rows_of_other_data_are_refused_and_nothing_is_asked(tmp_path: Path) -> None:
    path, loop = tmp_path / "rows.jsonl", Loop()
    with journal(path) as rows:
        write_rows(loop.documents(some(2), "m"), rows)
    changed = replace(some(1)[0], document="D")
    with journal(path) as rows, pytest.raises(UsageError, match="qasper, 0 with another record"):
        write_rows(loop.documents([changed], "m"), rows)
    assert loop.asked == ["0", "1"]


def test_all_of_a_record_but_its_name_counts() -> None:
    record = some(1)[0]
    assert replace(record, id="another").digest == record.digest
    changes = {"before": "B", "document": "D", "question": "Q", "prime": "p", "chat": False}
    changes |= {"answers": ("no",), "longest": 9, "data": {"classes": ["a"]}}
    changed = [replace(record, **{name: value}) for name, value in changes.items()]
    changed.append(replace(record, before="bd0", document=""))  # it is cut elsewhere
    assert record.digest not in {other.digest for other in changed}


def test_nothing_is_begun_after_the_time_and_an_unreadable_document_is_passed_over(
    tmp_path: Path,
) -> None:
    loop = Loop()
    with journal(tmp_path / "rows.jsonl") as rows:
        assert not write_rows(loop.documents(some(2), "m"), rows, until=time.monotonic())
        assert rows.rows == []
        later = time.monotonic() + 60
        unreadable = replace(some(1)[0], document="unreadable")
        documents = loop.documents([unreadable, *some(2)[1:]], "m")
        assert write_rows(documents, rows, until=later)
        assert [row["id"] for row in rows.rows] == ["1"]


# -- how a record is asked


class Recorder:
    """A session that remembers what it was called with."""

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
        on_text("    yes")
        return SimpleNamespace(text="yes", question_tokens=3)


def test_a_record_is_asked_as_it_is_and_a_document_read_once(tmp_path: Path) -> None:
    recorder, seen, left = Recorder(), list[str](), list[str]()
    long = BenchRecord("longbench", "qasper", "x", "b", "d9", "too long", ("yes",), 8)
    wanted = [*some(4), long]
    benchmark = replace(
        bench.find("longbench"),
        read=lambda folder, task: iter(wanted),
        files=lambda task: ["file"],
        score=lambda record, output: float(output == "    yes"),
    )
    (tmp_path / "file").touch()
    selection = BenchSelection(benchmark, tmp_path, ["qasper"])
    session: Any = recorder
    asker = RecordAsker(session, "m", load("tiny-random"), lambda record: seen.append(record.id))
    with journal(tmp_path / "rows.jsonl") as rows:
        assert write_rows(
            (asker.cases(benchmark, records) for records in selection.documents()),
            rows,
            on_left_out=lambda case, error: left.append(case.fields["id"]),
        )
        with pytest.raises(LengthError):
            write_rows([asker.cases(benchmark, [long])], rows)
    assert (recorder.read_texts, seen, left) == (["d0", "d1"], ["0", "2"], ["x"])
    assert recorder.prompts == [whole(record) for record in some(4)]
    assert recorder.options == {"prime": "", "max_new_tokens": 8, "temperature": 0.0}
    row = rows.rows[0]
    assert row == {
        "method": "m", "benchmark": "longbench", "task": "qasper", "id": "0", "answers": ["yes"],
        "output": "    yes", "score": 1.0, "tokens": 13, "seconds": row["seconds"],
        "record": some(1)[0].digest, "settings": bench_run.settings_of("m", load("tiny-random")),
    }  # fmt: skip


# -- tables


def test_table_has_means_averages_and_counts() -> None:
    rows = [*rows_of("ours", qasper=[0.5, 1.0], trec=[0.0]), *rows_of("theirs", trec=[1.0, 0.5])]
    scores = bench_run.group_scores(rows)
    headers, lines = bench_run.table(bench.find("longbench"), scores)
    assert headers == ["task", "records", "ours", "theirs"]
    assert lines == [
        ["Qasper", "2 / 0 of 200", "75.00", "-"],
        ["TREC", "1 / 2 of 200", "0.00", "75.00"],
        # (75 + 0) / 2: each task counts once, however many records
        ["LongBench average", "2 / 1 of 16 tasks", "37.50", "75.00"],
    ]
    assert bench_run.markdown(headers, lines).splitlines()[:3] == [
        "| task | records | ours | theirs |",
        "| - | -: | -: | -: |",
        "| Qasper | 2 / 0 of 200 | 75.00 | - |",
    ]
    data = bench_run.as_dict(bench.find("longbench"), scores)["ours"]
    assert data["tasks"]["qasper"] == {"score": 75.0, "records": 2, "of": 200}
    assert data["averages"] == {"LongBench": {"score": 37.5, "tasks": 2, "of": 16}}
