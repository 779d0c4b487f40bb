"""`--shard` and `--join`: the shards of a command together are the command, with a tiny random
model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from command import QUICK, TINY, Esa

pytestmark = [pytest.mark.usefixtures("surroundings", "short_answers")]

MEASURED = {"time", "memory", "timing", "seconds"}
COUNT = 3
SHORT = ["--max-new-tokens", "4"]


def rows(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a file, without the header and what is measured anew in each run."""
    lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    return [
        {key: value for key, value in line.items() if key not in MEASURED}
        for line in lines
        if "command" not in line
    ]


def by_text(found: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in found)


def run_shards(esa: Esa, *words: str) -> tuple[list[Path], list[str]]:
    """Runs the command in shards; the files of their rows, and --join for each."""
    files = []
    for number in range(1, COUNT + 1):
        file = Path(f"rows-{number}.jsonl")
        done = esa(*words, "--shard", f"{number}/{COUNT}", "--out", file)
        assert done.code == 0, done.err
        files.append(file)
    return files, [word for file in files for word in ("--join", str(file))]


def refuse_work(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError("something was asked")

    monkeypatch.setattr(f"esa_cli.qa.{method}", refuse)


SELFTEST = ["selftest", "passkey,needle", "--len", "600,900", "--samples", "2", *QUICK]


def test_shards_of_a_selftest_are_the_selftest(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*SELFTEST, "--methods", "preset,streaming-llm", "--quiet"]
    assert esa(*command, "--out", "whole.jsonl").code == 0
    files, joins = run_shards(esa, *command)
    parts = [rows(file) for file in files]
    assert all(parts)
    assert by_text(chain(*parts)) == by_text(rows("whole.jsonl"))
    refuse_work(monkeypatch, "answering.session.Session.ask")
    done = esa(*command, "--out", "joined.jsonl", *joins, "--json")
    assert done.data["complete"]
    assert by_text(rows("joined.jsonl")) == by_text(rows("whole.jsonl"))
    again = esa(*command, "--out", "joined.jsonl", *joins)
    assert again.code == 0
    assert len(rows("joined.jsonl")) == len(rows("whole.jsonl"))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"The gate {name} opens at nine. " * 30, "utf-8")
    asked = [
        {"question": f"When does the gate {name} open, {number}?", "documents": [f"{name}.txt"]}
        for number in range(3)
        for name in "abc"
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in asked), "utf-8")
    return path


def test_shards_of_a_batch_are_the_batch(
    esa: Esa, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["batch", str(questions), "--quiet", *SHORT, *TINY]
    assert esa(*command, "--out", "whole.jsonl").code == 0
    files, joins = run_shards(esa, *command)
    found = [{row["documents"][0] for row in rows(file)} for file in files]
    assert found == [{f"{name}.txt"} for name in "abc"], "each document is in one shard"
    refuse_work(monkeypatch, "answering.session.Session.ask")
    done = esa(*command, "--out", "joined.jsonl", *joins, "--json")
    assert done.data["kept"] == 9
    assert rows("joined.jsonl") == rows("whole.jsonl"), "in the order of the questions"


def ingest(esa: Esa, monkeypatch: pytest.MonkeyPatch, library: str, *more: str) -> list[str]:
    """The ids that an ingest into this library has printed."""
    monkeypatch.setenv("ESA_LIBRARY", library)
    done = esa("ingest", "docs", "docs/a.md", "--json", *more, *TINY)
    assert done.code == 0, done.err
    return [one["id"] for one in done.data["documents"]]


def test_shards_of_an_ingest_make_the_same_library(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in "abcd":
        (folder / f"{name}.md").write_text(f"Mill {name} grinds rye. " * 40, "utf-8")
    (folder / "z.pdf").write_bytes(b"%PDF-1.7 broken")
    whole = ingest(esa, monkeypatch, str(tmp_path / "whole"))
    shared, joined = tmp_path / "shared", tmp_path / "joined"
    parts = []
    for number in range(1, COUNT + 3):
        shard = ["--shard", f"{number}/{COUNT + 2}"]
        part = ingest(esa, monkeypatch, str(shared), *shard)
        own = tmp_path / f"own-{number}"
        assert ingest(esa, monkeypatch, str(own), *shard) == part
        if own.exists():
            catalogue = shutil.ignore_patterns("catalogue-*")
            shutil.copytree(own, joined, dirs_exist_ok=True, ignore=catalogue)
        parts.append(part)
    assert [len(part) for part in parts] == [1, 1, 1, 1, 0], "nobody can read z.pdf"
    assert sorted(chain(*parts)) == sorted(whole)
    for library in (shared, joined):
        monkeypatch.setenv("ESA_LIBRARY", str(library))
        kept = json.loads(esa("library", "list", "--json").out)
        assert sorted(one["id"] for one in kept["documents"]) == sorted(whole)
        assert esa("library", "verify").code == 0
