"""Long documents divided among workers: the library is that of one process.

An engine in this process does tasks in any order, some twice, and sends everything as pickles;
`test_ray_engine.py` has a real cluster.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import pytest
from cli_fixtures import cache, esa, surroundings
from command import TINY, Esa
from tiny_finder import tiny_finder

from esa_cli.apps.cli.options.engine_options import EngineOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine import ingest_tasks
from esa_cli.apps.engine.task_engine import TaskQueue, TaskResult, WorkerProcess
from esa_cli.documents.document import Document
from esa_cli.qa.finding import reduced_keys
from esa_cli.qa.finding.segments import SEGMENT_TOKENS
from esa_cli.qa.ingestion import index_ingest
from esa_cli.qa.ingestion.index_ranges import RANGE_SEGMENTS, TokenRange
from esa_cli.storage.library import Library

__all__ = ["cache", "esa", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")

RAY = ["--engine", "ray"]
SEGMENT = 2 * SEGMENT_TOKENS
"""Tokens of a segment of the library, and of what is encoded at a time: shorter than they are, so
that shorter documents have several ranges."""
CHARACTERS = 37 * SEGMENT
RANGES = -(-CHARACTERS // (RANGE_SEGMENTS * SEGMENT))


class MixedEngine:
    """Three tasks are running at a time, and one of them ends; it may have been done before.

    Args:
        stop: Ctrl-C after so many results.
    """

    workers = 3

    def __init__(self, reporter: Reporter, stop: int = -1) -> None:
        self.reporter, self.stop, self.order = reporter, stop, random.Random(7)
        self.done: list[Any] = []
        """What was wanted, by task."""

    def run(self, worker: Any, tasks: Iterator[Any]) -> Iterator[TaskResult[Any]]:
        process = WorkerProcess(pickle.loads(pickle.dumps(worker)), ".")
        queue = TaskQueue(tasks)
        while True:
            queue.fill(self.workers)
            if not queue.waiting:
                return
            if len(self.done) == self.stop:
                raise KeyboardInterrupt
            number, task = queue.waiting.pop(self.order.randrange(len(queue.waiting)))
            self.begin(task.wanted)
            for _ in range(self.order.choice((1, 1, 2))):
                sent = pickle.loads(pickle.dumps(task))
                outcome = pickle.loads(pickle.dumps(process.do(sent)))
            self.done.append(task.wanted)
            yield TaskResult(number, outcome.result(self.reporter))

    def begin(self, wanted: Any) -> None:
        """A task begins."""


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Makers of the engines of the next commands; the engines that commands have opened."""
    made: list[Any] = [MixedEngine]

    @contextmanager
    def engine(self: EngineOptions, reporter: Reporter, device: str) -> Iterator[Any]:
        made[-1] = made[-1](reporter)
        yield made[-1]

    monkeypatch.setattr(EngineOptions, "open", engine)
    monkeypatch.setattr(EngineOptions, "check", lambda self: None)
    return made


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ingests three documents: two long ones with an equal beginning, and a short one."""
    monkeypatch.setattr(reduced_keys, "SEGMENT", SEGMENT)
    monkeypatch.setattr(index_ingest, "PIECE", SEGMENT)
    monkeypatch.setattr(ingest_tasks, "LONG", CHARACTERS - 1)
    Path("docs").mkdir()
    text = "".join(f"Gate {number} opens at nine. " for number in range(6500))[:CHARACTERS]
    for name, end in (("a", ""), ("b", "x"), ("c", None)):
        Path(f"docs/{name}.md").write_text("Mill grinds." if end is None else text + end, "utf-8")
    assert len(text) == CHARACTERS
    return ["ingest", "docs", "--json", *TINY, *tiny_finder(tmp_path / "finder")]


def files(root: str) -> dict[str, bytes]:
    """What must be equal: all but manifests, which have a date, and the catalogue."""
    kinds = {".seg", ".text", ".tokens", ".words"}
    return {path.name: path.read_bytes() for path in Path(root).rglob("*") if path.suffix in kinds}


def run(esa: Esa, monkeypatch: pytest.MonkeyPatch, root: str, *words: str) -> list[Any]:
    monkeypatch.setenv("ESA_LIBRARY", root)
    done = esa(*words)
    assert done.code == 0, done.err
    assert not list(Path(root, "claims").glob("*.claim"))
    return [{**one, "read_s": 0} for one in done.data["documents"]]


def test_the_library_is_that_of_one_process(
    esa: Esa, command: list[str], engines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run(esa, monkeypatch, "here", *command)
    assert run(esa, monkeypatch, "there", *command, *RAY) == here
    assert files("there") == files("here")
    kinds = [type(one) for one in engines[0].done]
    assert kinds.count(type(None)) == 1, "a worker tells the identity"
    assert kinds.count(Document) == 3
    assert RANGES < kinds.count(TokenRange) < 2 * RANGES, "the beginning is shared"
    engines.append(MixedEngine)
    assert run(esa, monkeypatch, "there", *command, *RAY) == here
    assert TokenRange not in map(type, engines[1].done)
    assert [entry.damage for entry in Library(Path("there")).entries()] == [""] * 3


@pytest.mark.parametrize("engine", [[], RAY])
def test_ctrl_c_keeps_what_was_written_in_order(
    esa: Esa,
    command: list[str],
    engines: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    engine: list[str],
) -> None:
    here = run(esa, monkeypatch, "here", *command)
    monkeypatch.setenv("ESA_LIBRARY", "there")
    engines[0] = lambda reporter: MixedEngine(reporter, 7)
    assert esa(*command, *RAY).code == 130
    kept = files("there")
    whole = {name for name in kept if name.endswith(".seg")}
    assert 4 < len(whole) <= 5 * 4 + 1, "one task was the identity, and one the short document"
    assert len(list(Path("there/documents").glob("*.doc"))) == 1
    engines.append(MixedEngine)
    assert run(esa, monkeypatch, "there", *command, *engine) == here
    assert files("there") == files("here")


def _ends(path: Path, end: bytes) -> bool:
    return path.read_bytes().endswith(end)


def test_a_document_that_another_process_has_is_waited_for_last(
    esa: Esa, command: list[str], engines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run(esa, monkeypatch, "here", *command)
    [key] = [path.stem for path in Path("here/documents").glob("*.text") if _ends(path, b"x")]
    Path("there").mkdir()
    Library(Path("there")).prune()
    lock = filelock.FileLock(f"there/locks/{key}.lock")

    class Engine(MixedEngine):
        def begin(self, wanted: Any) -> None:
            if isinstance(wanted, Document) and wanted.name == "b.md":
                lock.release()

    with lock:
        engines[0] = Engine
        assert run(esa, monkeypatch, "there", *command, *RAY) == here
    kinds = list(map(type, engines[0].done))
    assert kinds.count(TokenRange) == RANGES
    assert kinds[-1] is Document
    assert engines[0].done[-1].name == "b.md"
    assert files("there") == files("here")
