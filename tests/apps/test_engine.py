"""Tasks of the two commands, done by several workers: the same results as by one process.

An engine in this process takes Ray's place, and sends everything as pickles; `test_ray_engine.py`
has a real cluster.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_fixtures import cache, esa, note, surroundings
from command import TINY, Esa, fail

from esa_cli.apps.cli.options.engine_options import EngineOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.engine import WorkerProcess
from esa_cli.errors import ResourceError

__all__ = ["cache", "esa", "note", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings", "short_answers", "two_workers")

MEASURED = {"time", "memory", "timing", "seconds"}
CHECK = EngineOptions.check
RAY = ["--engine", "ray", "--workers", "2"]


class PickleEngine:
    """Two workers, in turn; the first one is lost after its first task, which is done again."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter, self.done, self.workers = reporter, 0, 2

    def run(self, worker: Any, tasks: Iterator[Any]) -> Iterator[Any]:
        def start() -> WorkerProcess:
            return WorkerProcess(pickle.loads(pickle.dumps(worker)), ".")

        workers = [start(), start()]
        for number, task in enumerate(tasks):
            sent = pickle.dumps(task)
            if number == 0:
                workers[0].do(pickle.loads(sent))
                workers[0] = start()
            outcome = pickle.loads(pickle.dumps(workers[number % 2].do(pickle.loads(sent))))
            for text in outcome.warnings:
                self.reporter.warn(text)
            if outcome.error is not None:
                raise outcome.error
            self.done += 1
            yield outcome.value


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> list[PickleEngine]:
    """The engines that commands have opened."""
    opened: list[PickleEngine] = []

    @contextmanager
    def engine(self: EngineOptions, reporter: Reporter, device: str) -> Iterator[PickleEngine]:
        opened.append(PickleEngine(reporter))
        yield opened[-1]

    monkeypatch.setattr(EngineOptions, "open", engine)
    monkeypatch.setattr(EngineOptions, "check", lambda self: None)
    return opened


def rows(path: str, ordered: bool = False) -> list[str]:
    """The rows of a file, without the header and what is measured anew in each run."""
    lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    found = [
        json.dumps({key: value for key, value in line.items() if key not in MEASURED})
        for line in lines
        if "command" not in line
    ]
    return found if ordered else sorted(found)


def test_a_batch_by_workers(esa: Esa, two_workers: list[PickleEngine]) -> None:
    Path("docs").mkdir()
    for name in "ab":
        Path(f"docs/{name}.txt").write_text(f"The gate {name} opens at nine. " * 30, "utf-8")
    asked = [
        {"question": f"When does it open, {number}?", "documents": [f"docs/{name}"]}
        for number in range(2)
        for name in ("a.txt", "b.txt", "none.txt", "*.txt")
    ]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), "utf-8")
    command = ["batch", "q.jsonl", "--quiet", "--max-new-tokens", "4", *TINY]
    here = esa(*command, "--out", "here.jsonl", "--json")
    there = esa(*command, *RAY, "--out", "there.jsonl", "--json")
    assert (there.code, there.data["failed"]) == (here.code, here.data["failed"]) == (7, 2)
    assert rows("there.jsonl", ordered=True) == rows("here.jsonl", ordered=True)
    assert two_workers[-1].done == 8


def test_an_ingest_by_workers(
    esa: Esa, two_workers: list[PickleEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("docs").mkdir()
    for name in "abc":
        Path(f"docs/{name}.md").write_text(f"Mill {name} grinds rye. " * 40, "utf-8")
    command = ["ingest", "docs", "--json", *TINY]
    found = []
    for library, engine in (("here", []), ("there", RAY), ("there", RAY)):
        monkeypatch.setenv("ESA_LIBRARY", library)
        done = esa(*command, *engine)
        assert done.code == 0, done.err
        found.append(done.data["documents"])
        assert esa("library", "verify").code == 0
    here, there, again = (
        [{key: value for key, value in one.items() if key != "read_s"} for one in documents]
        for documents in found
    )
    assert here == there == again
    assert all(one["read_s"] == 0 for one in found[2])
    assert two_workers[0].done == 3
    native = esa(*command, *RAY, "--rows", "native")
    assert native.code == 0


def test_mistakes_of_the_options(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineOptions, "check", CHECK)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fail(esa("ingest", "a.txt", *RAY, *TINY), 2, "--engine ray needs ray", "esa-cli[ray]")
    assert esa("ingest", "a.txt", "--workers", "0", *TINY).code == 2
    assert esa("ingest", "a.txt", "--engine", "dask", *TINY).code == 2


def test_a_worker_needs_the_commands_folder(tmp_path: Path) -> None:
    outcome = WorkerProcess(None, str(tmp_path / "none")).do("task")  # type: ignore[arg-type]
    assert "cannot use the folder" in str(outcome.error)
    assert pickle.loads(pickle.dumps(ResourceError("what", "hint"))).hint == "hint"


class ShortWorker:
    """Its tasks are errors to raise."""

    @contextmanager
    def open(self, reporter: Reporter) -> Iterator[Callable[[Exception], None]]:
        def work(error: Exception) -> None:
            reporter.warn("it is large")
            raise error

        yield work


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail]\nDefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_worker_without_memory_is_no_bug(tmp_path: Path, error: Exception) -> None:
    outcome = WorkerProcess(ShortWorker(), str(tmp_path)).do(error)
    assert outcome.warnings == ("it is large",)
    with pytest.raises(ResourceError, match="the memory of a worker ran out") as raised:
        outcome.result(Reporter(quiet=True))
    assert "fewer --workers" in raised.value.hint
    with pytest.raises(ValueError, match="a bug"):
        WorkerProcess(ShortWorker(), str(tmp_path)).do(ValueError("a bug"))
