"""`--engine ray` on a real cluster of two actors on this machine, one of which is killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from engine_process import LONGEST_S, ended, start

pytest.importorskip("ray")
pytestmark = [pytest.mark.process, pytest.mark.ray, pytest.mark.timeout(240)]

RAY = ["--engine", "ray", "--workers", "2"]
ACTOR = "ray::IngestWorker"


def actors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The actors that are reading a document."""
    reading = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            if f"{ACTOR}.run_ingest_task" in " ".join(child.cmdline()):
                reading.append(child)
    return reading


@pytest.fixture(autouse=True)
def documents(surroundings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("ESA_LIBRARY", "library")
    Path("docs").mkdir()
    for name in "abcd":
        Path(f"docs/{name}.md").write_text(f"Mill {name} grinds rye. " * 60, "utf-8")


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert "the Ray cluster cannot be used" in ended(start("ingest", "docs", *RAY), 2)


def test_an_ingest_continues_after_a_killed_worker() -> None:
    process = start("ingest", "docs", *RAY)
    until = time.monotonic() + LONGEST_S
    while not (running := actors(process)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    running[0].send_signal(signal.SIGKILL)
    assert "a worker process died" in ended(process, 6)
    ended(start("ingest", "docs", *RAY))
    assert len(list(Path("library/documents").glob("*.doc"))) == 4
    assert not list(Path("library/claims").glob("*.claim"))
