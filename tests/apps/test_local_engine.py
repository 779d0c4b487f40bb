"""Workers in processes of this machine, one of which is killed, and what a worker sends back."""

from __future__ import annotations

import pickle
import signal
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import torch
from engine_process import ended, start

from esa_cli.__main__ import main
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.ingest_engine import IngestWorker
from esa_cli.documents.document import Document
from esa_cli.errors import ResourceError, UsageError
from esa_cli.qa.presets.preset import load_preset

process = pytest.mark.process
pytestmark = pytest.mark.timeout(200)
TWO = ["--workers", "2"]


@pytest.fixture(autouse=True)
def library(surroundings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_LIBRARY", "library")


def workers_below(pid: int) -> list[psutil.Process]:
    every = psutil.Process(pid).children(recursive=True)
    return [child for child in every if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail]\nDefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_worker_without_memory_is_no_bug(tmp_path: Path, error: Exception) -> None:
    document = Document("a.txt", "alpha", "a.txt", "", 5)

    def worker(error: Exception, folder: Path = tmp_path) -> IngestWorker:
        model = ModelOptions(preset="tiny-random")
        made = IngestWorker(load_preset("tiny-random"), model, "int8", tmp_path, str(folder))
        made = pickle.loads(pickle.dumps(made))
        if folder.exists():
            made.esa = Mock(ingest=Mock(side_effect=error))
        return made

    with pytest.raises(ResourceError, match="a worker process ran out of memory"):
        worker(error).run_ingest_task((0, document))
    with pytest.raises(ValueError, match="a bug"):
        worker(ValueError("a bug")).run_ingest_task((0, document))
    with pytest.raises(UsageError, match="cannot use the folder"):
        worker(error, tmp_path / "none").run_ingest_task((0, document))


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
        assert "a worker process died" in ended(process, 6)
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
    assert main(["library", "verify"]) == 0
