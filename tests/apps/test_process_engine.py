"""`--workers` without Ray: processes of this machine, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import ROOT
from engine_process import Notes, ended, start
from square_worker import SquareWorker
from tiny_finder import tiny_finder

from esa_cli.apps.engine.process_engine import ProcessEngine
from esa_cli.errors import ResourceError

pytestmark = [pytest.mark.process, pytest.mark.timeout(200)]

TWO = ["--workers", "2"]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESA_MEMORY_LIMIT", raising=False)
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests/support'}")


def test_each_task_is_done_once_though_a_process_dies(tmp_path: Path) -> None:
    reporter = Notes()
    engine = ProcessEngine(reporter, 2)
    assert engine.workers == 2
    done = list(engine.run(SquareWorker(tmp_path), iter(range(20))))
    assert sorted(done) == [(number, number * number) for number in range(20)]
    assert reporter.lines == ["esa: a worker died; its task is done again by another one"]
    with pytest.raises(ResourceError, match="no root of -2") as raised:
        list(engine.run(SquareWorker(tmp_path), iter([1, -2])))
    assert raised.value.hint == "take another"
    assert reporter.lines[-1] == "below zero"
    with pytest.raises(ResourceError, match="3 workers died of one task: signal 9"):
        list(engine.run(SquareWorker(tmp_path / "none"), iter([3])))
    with pytest.raises(RuntimeError, match="TypeError in a worker: '<' not supported"):
        list(engine.run(SquareWorker(tmp_path), iter(["two"])))  # type: ignore[list-item]
    children = psutil.Process().children(recursive=True)
    assert not [one for one in children if "spawn_main" in " ".join(one.cmdline())]


def test_a_task_that_waits_for_another_one(tmp_path: Path) -> None:
    found = list[Any]()

    def tasks() -> Any:
        yield 5
        while not found:
            yield None
        yield found[0].value

    for result in ProcessEngine(Notes(), 2).run(SquareWorker(tmp_path), tasks()):
        found.append(result)
    assert found == [(0, 25), (1, 625)]


def wait_for_segments(process: subprocess.Popen[str], root: str) -> list[psutil.Process]:
    """The workers, when there are two segments: the first one is removed if the command is stopped
    while it is written."""
    while len(list(Path(root).glob("segments/*.seg"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    every = psutil.Process(process.pid).children(recursive=True)
    return [one for one in every if "spawn_main" in " ".join(one.cmdline())]


def stored(root: str) -> dict[str, bytes]:
    """All but manifests, which have a date."""
    kinds = {".seg", ".text", ".tokens", ".words"}
    return {path.name: path.read_bytes() for path in Path(root).rglob("*") if path.suffix in kinds}


def test_a_long_document_survives_a_kill_and_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"Gate {number} opens at nine. " for number in range(20_000))
    Path("long.md").write_text(text, "utf-8")
    command = ["ingest", "long.md", *tiny_finder(tmp_path / "finder")]
    monkeypatch.setenv("ESA_LIBRARY", "here")
    ended(start(*command))

    monkeypatch.setenv("ESA_LIBRARY", "killed")
    process = start(*command, *TWO)
    wait_for_segments(process, "killed")[0].send_signal(signal.SIGKILL)
    err = ended(process)
    assert "esa: workers 2, each" in err
    assert "a worker died; its task is done again" in err
    assert stored("killed") == stored("here")

    monkeypatch.setenv("ESA_LIBRARY", "stopped")
    process = start(*command, *TWO)
    workers = wait_for_segments(process, "stopped")
    assert len(workers) == 2
    for one in (*workers, process):  # as a terminal does
        one.send_signal(signal.SIGINT)
    ended(process, 130)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    assert 0 < len(list(Path("stopped").glob("segments/*.seg"))) < len(stored("here")) - 3
    ended(start(*command, *TWO))
    assert stored("stopped") == stored("here")


def test_a_batch_is_that_of_one_process() -> None:
    Path("mill.md").write_text("The mill grinds rye. " * 40, "utf-8")
    asked = [{"question": f"What grinds, {n}?", "documents": ["mill.md"]} for n in range(3)]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), "utf-8")
    command = ["batch", "q.jsonl", "--max-new-tokens", "4"]
    ended(start(*command, "--out", "here.jsonl"))
    ended(start(*command, *TWO, "--out", "there.jsonl"))
    here, there = (
        [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]
        for name in ("here.jsonl", "there.jsonl")
    )
    assert [row.get("answer") for row in here] == [row.get("answer") for row in there]
