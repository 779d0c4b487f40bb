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
from typing import Any

import psutil
import pytest
from command import ROOT
from engine_process import LONGEST_S, Notes, ended, start
from square_worker import SquareWorker
from tiny_finder import tiny_finder

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine import actor_pool
from esa_cli.apps.engine.ray_engine import ray_engine
from esa_cli.apps.engine.task_engine import WorkerProcess
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


def rows(path: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    return [
        {key: value for key, value in line.items() if key not in MEASURED}
        for line in lines
        if "command" not in line
    ]


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


def test_each_task_is_done_once_though_a_worker_dies(tmp_path: Path) -> None:
    with ray_engine(Reporter(quiet=True), 2, "cpu") as engine:
        done = list(engine.run(SquareWorker(tmp_path), iter(range(20))))
        assert sorted(done) == [(number, number * number) for number in range(20)]
        with pytest.raises(ResourceError, match="no root of -2") as raised:
            list(engine.run(SquareWorker(tmp_path), iter([1, -2])))
        assert raised.value.hint == "take another"
        with pytest.raises(ResourceError, match="3 workers died of one task"):
            list(engine.run(SquareWorker(tmp_path / "none"), iter([3])))


def test_a_cluster_that_others_use_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    reporter = Notes()
    with ray_engine(reporter, 1, "cpu") as engine:
        every = ray.cluster_resources()["CPU"]
        other = ray.remote(WorkerProcess).options(num_cpus=every).remote(None, str(tmp_path))
        ray.get(other.ready.remote())
        monkeypatch.setattr(actor_pool, "NOTICE_S", 1.0)
        monkeypatch.setattr(actor_pool, "PLACE_S", 4.0)
        with pytest.raises(ResourceError, match=r"no worker could start in .* 0 cores and 0 GPUs"):
            list(engine.run(SquareWorker(tmp_path), iter([1, 2])))
        assert len(reporter.lines) == 1
        assert "esa: ray: waiting for 1 workers" in reporter.lines[0]
        monkeypatch.setattr(actor_pool, "PLACE_S", float(LONGEST_S))
        ray.kill(other)
        assert sorted(engine.run(SquareWorker(tmp_path), iter([1, 2]))) == [(0, 1), (1, 4)]


def test_more_than_the_cluster_has_is_refused() -> None:
    write_documents()
    err = ended(start("ingest", "docs", "--engine", "ray", "--workers", "99999"), 6)
    assert "workers must be at most 10000, got 99999" in err
    assert "give fewer --workers" in err


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    write_documents()
    err = ended(start("ingest", "docs", *RAY), 2)
    assert "the Ray cluster cannot be used" in err


def test_a_batch_loses_nothing_by_a_killed_worker() -> None:
    write_documents()
    command = ["batch", "q.jsonl", "--max-new-tokens", "4"]
    ended(start(*command, "--out", "here.jsonl"))
    there = start(*command, *RAY, "--out", "there.jsonl")
    wait_for_actors(there)[0].send_signal(signal.SIGKILL)
    err = ended(there)
    assert "a worker died; its task is done again" in err
    assert "esa: ray: machines 1, workers 2" in err
    assert rows("there.jsonl") == rows("here.jsonl")


def test_an_ingest_loses_nothing_by_a_killed_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents()
    monkeypatch.setenv("ESA_LIBRARY", "library")
    process = start("ingest", "docs", *RAY)
    wait_for_actors(process)[0].send_signal(signal.SIGKILL)
    assert "a worker died" in ended(process)
    assert len(list(Path("library/documents").glob("*.doc"))) == 4
    assert not list(Path("library/claims").glob("*.claim"))


def test_a_long_document_is_divided_and_loses_nothing_by_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"Gate {number} opens at nine. " for number in range(20_000))
    Path("long.md").write_text(text, "utf-8")
    command = ["ingest", "long.md", *tiny_finder(tmp_path / "finder")]
    monkeypatch.setenv("ESA_LIBRARY", "here")
    ended(start(*command))
    monkeypatch.setenv("ESA_LIBRARY", "there")
    process = start(*command, *RAY)
    wait_for_segments(process, "there")
    wait_for_actors(process)[0].send_signal(signal.SIGKILL)
    assert "a worker died; its task is done again" in ended(process)
    assert stored("there") == stored("here")
    assert not list(Path("there/claims").glob("*.claim"))

    monkeypatch.setenv("ESA_LIBRARY", "stopped")
    process = start(*command, *RAY)
    wait_for_segments(process, "stopped")
    os.kill(process.pid, signal.SIGINT)
    ended(process, 130)
    kept = list(Path("stopped").glob("segments/*.seg"))
    assert 0 < len(kept) < len(stored("here")) - 3
    ended(start(*command, *RAY))
    assert stored("stopped") == stored("here")


def wait_for_segments(process: subprocess.Popen[str], root: str) -> None:
    """Waits for two: the first one is removed if the command is stopped while it is written."""
    while len(list(Path(root).glob("segments/*.seg"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def stored(root: str) -> dict[str, bytes]:
    """All but manifests, which have a date."""
    kinds = {".seg", ".text", ".tokens", ".words"}
    return {path.name: path.read_bytes() for path in Path(root).rglob("*") if path.suffix in kinds}


def test_a_selftest_is_that_of_one_process() -> None:
    command = ["selftest", "passkey", "--len", "600", "--samples", "2", "--exact", "--no-dense"]
    command += ["--methods", "preset,streaming-llm"]
    ended(start(*command, "--out", "here.jsonl"))
    ended(start(*command, *RAY, "--out", "there.jsonl"))

    def order(row: dict[str, Any]) -> str:
        return json.dumps(row)

    assert sorted(map(order, rows("there.jsonl"))) == sorted(map(order, rows("here.jsonl")))


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
