"""Workers in processes of this machine, one of which is killed, and what a worker sends back."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from command import ROOT
from engine_process import Notes, ended, start
from square_worker import SquareWorker

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.engine import LocalEngine, WorkerProcess
from esa_cli.errors import ResourceError

process = pytest.mark.process
pytestmark = pytest.mark.timeout(200)
TWO = ["--workers", "2"]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESA_MEMORY_LIMIT", raising=False)
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ESA_LIBRARY", "library")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests/support'}")


def workers_below(pid: int) -> list[psutil.Process]:
    every = psutil.Process(pid).children(recursive=True)
    return [child for child in every if "spawn_main" in " ".join(child.cmdline())]


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
    outcome = pickle.loads(pickle.dumps(WorkerProcess(ShortWorker(), str(tmp_path)).do(error)))
    assert outcome.warnings == ("it is large",)
    with pytest.raises(ResourceError, match="the memory of a worker ran out"):
        outcome.result(Reporter(quiet=True))
    with pytest.raises(ValueError, match="a bug"):
        WorkerProcess(ShortWorker(), str(tmp_path)).do(ValueError("a bug"))
    assert WorkerProcess(ShortWorker(), str(tmp_path / "none")).do(error).error, "no folder"


@process
def test_tasks_and_their_errors(tmp_path: Path) -> None:
    reporter = Notes()
    engine = LocalEngine(reporter, 2)
    tasks = [0, 1, 2, *range(4, 20)]
    assert sorted(engine.run(SquareWorker(tmp_path), tasks)) == [n * n for n in tasks]
    with pytest.raises(ResourceError, match="no root of -2") as raised:
        list(engine.run(SquareWorker(tmp_path), [1, -2]))
    assert raised.value.hint == "take another"
    assert reporter.lines[-1] == "below zero"
    with pytest.raises(ResourceError, match="a worker died"):
        list(engine.run(SquareWorker(tmp_path / "none"), [3]))
    with pytest.raises(TypeError):
        list(engine.run(SquareWorker(tmp_path), ["two"]))
    assert not workers_below(os.getpid())


def wait_for_documents(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """The workers, when the library has so many documents."""
    while len(list(Path("library").glob("documents/*.doc"))) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return workers_below(process.pid)


@process
@pytest.mark.parametrize("what", ["worker killed", "command killed", "Ctrl-C"])
def test_an_ingest_continues_after_an_end(what: str) -> None:
    Path("docs").mkdir()
    for number in range(12):
        Path(f"docs/{number}.md").write_text(f"Gate {number} opens at nine. " * 400, "utf-8")
    process = start("ingest", "docs", *TWO)
    workers = wait_for_documents(process, 1)
    assert len(workers) == 2
    if what == "worker killed":
        workers[0].send_signal(signal.SIGKILL)
        assert "a worker died" in ended(process, 6)
    elif what == "command killed":
        process.kill()
        process.communicate()
    else:
        for running in (*workers, process):  # as a terminal does
            running.send_signal(signal.SIGINT)
        ended(process, 130)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    ended(start("ingest", "docs", *TWO))
    assert len(list(Path("library").glob("documents/*.doc"))) == 12
    subprocess.run([sys.executable, "-m", "esa_cli", "library", "verify"], check=True)


@process
def test_a_batch_is_that_of_one_process() -> None:
    for name in "ab":
        Path(f"{name}.md").write_text(f"Mill {name} grinds rye. " * 40, "utf-8")
    asked = [
        {"question": f"What grinds, {number}?", "documents": [name]}
        for number in range(2)
        for name in ("a.md", "none.md", "*.md")
    ]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), "utf-8")
    command = ["batch", "q.jsonl", "--max-new-tokens", "4"]
    ended(start(*command, "--out", "here.jsonl"), 7)
    ended(start(*command, *TWO, "--out", "there.jsonl"), 7)
    here, there = (
        [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]
        for name in ("here.jsonl", "there.jsonl")
    )
    for row in (*here, *there):
        row.pop("timing", None)
    assert here == there
