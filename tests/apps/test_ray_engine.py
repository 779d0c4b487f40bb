"""`--engine ray` on a real cluster of two actors on this machine, one of which is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import ROOT
from engine_process import LONGEST_S, ended, start
from square_worker import SquareWorker

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.engine import ray_engine
from esa_cli.errors import ResourceError

pytest.importorskip("ray")
pytestmark = [pytest.mark.process, pytest.mark.ray, pytest.mark.timeout(240)]

RAY = ["--engine", "ray", "--workers", "2"]
MEASURED = {"time", "memory", "timing", "seconds"}
ACTOR = "ray::WorkerProcess"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("esa-home")


@pytest.fixture(autouse=True)
def surroundings(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "ESA_MEMORY_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ESA_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests/support'}")


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def actors(process: subprocess.Popen[str]) -> Iterator[psutil.Process]:
    """The actors that are doing a task."""
    for one in below(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            if f"{ACTOR}.do" in " ".join(one.cmdline()):
                yield one


def wait_for_actors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        if found := list(actors(process)):
            return found
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("no actor began a task")


def write_documents() -> None:
    Path("docs").mkdir()
    for name in "abcd":
        Path(f"docs/{name}.md").write_text(f"Mill {name} grinds rye. " * 60, "utf-8")
    asked = [
        {"question": f"What grinds, {number}?", "documents": [f"docs/{name}.md"]}
        for number in range(3)
        for name in "abcd"
    ]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), "utf-8")


def test_tasks_and_their_errors(tmp_path: Path) -> None:
    with ray_engine(Reporter(quiet=True), 2, "cpu") as engine:
        tasks = [0, 1, 2, *range(4, 20)]
        assert sorted(engine.run(SquareWorker(tmp_path), tasks)) == [n * n for n in tasks]
        with pytest.raises(ResourceError, match="no root of -2") as raised:
            list(engine.run(SquareWorker(tmp_path), [1, -2]))
        assert raised.value.hint == "take another"
        with pytest.raises(ResourceError, match="a worker died"):
            list(engine.run(SquareWorker(tmp_path / "none"), [3]))


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    write_documents()
    assert "the Ray cluster cannot be used" in ended(start("ingest", "docs", *RAY), 2)


def test_an_ingest_continues_after_a_killed_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents()
    monkeypatch.setenv("ESA_LIBRARY", "library")
    process = start("ingest", "docs", *RAY)
    wait_for_actors(process)[0].send_signal(signal.SIGKILL)
    assert "a worker died" in ended(process, 6)
    ended(start("ingest", "docs", *RAY))
    assert len(list(Path("library/documents").glob("*.doc"))) == 4
    assert not list(Path("library/claims").glob("*.claim"))


def test_ctrl_c_stops_all() -> None:
    write_documents()
    process = start("batch", "q.jsonl", "--max-new-tokens", "4", *RAY, "--out", "there.jsonl")
    wait_for_actors(process)
    every = below(process)
    assert len(every) > 2
    os.kill(process.pid, signal.SIGINT)
    assert "esa: stopped; the same command goes on" in ended(process, 130)
    _, alive = psutil.wait_procs(every, timeout=20)
    assert not alive
