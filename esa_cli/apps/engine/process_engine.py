"""Tasks done by processes of this machine, each with a worker and its model.

A process that dies is replaced, and its task done again. Processes end with the one that started
them: at its exit, and when their pipe breaks.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, resource_tracker
from typing import Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.task_engine import (
    Result,
    Task,
    TaskOutcome,
    TaskQueue,
    TaskResult,
    TaskWorker,
    WorkerProcess,
)
from esa_cli.apps.engine.worker_deaths import WorkerDeaths
from esa_cli.errors import first_line

END_S = 5.0
"""Seconds after which a process that was told to end is killed."""
HINT = "memory may be short: try fewer --workers"


class ProcessEngine:
    """Runs tasks in processes; a `TaskEngine`.

    Args:
        workers: their number; each gets an equal share of the processors.
    """

    def __init__(self, reporter: Reporter, workers: int) -> None:
        self.reporter, self.workers = reporter, workers
        self._threads = max(1, _processors() // workers)
        reporter.note(f"esa: workers {workers}, each {self._threads} cores", dim=False)

    def run(
        self, worker: TaskWorker[Task, Result], tasks: Iterator[Task | None]
    ) -> Iterator[TaskResult[Result]]:
        """See `TaskEngine.run`. Raises ResourceError: processes die of a task."""
        payload, deaths = pickle.dumps(worker), WorkerDeaths(self.reporter, HINT)
        queue = TaskQueue(tasks)
        made, idle = list[_Process](), list[_Process]()
        running: dict[Any, tuple[_Process, tuple[int, Task]]] = {}
        try:
            while True:
                queue.fill(self.workers - len(running))
                while queue.waiting:
                    if not idle:
                        idle.append(_Process(payload, self._threads))
                        made.append(idle[-1])
                    one = idle.pop()
                    number, task = queue.waiting.pop(0)
                    running[one.pipe] = one, (number, task)
                    one.send(task)
                if not running:
                    return
                for pipe in connection.wait(list(running)):
                    one, (number, task) = running.pop(pipe)
                    outcome = one.outcome()
                    if outcome is None:
                        deaths.add(number, one.end())
                        queue.waiting.insert(0, (number, task))
                        continue
                    idle.append(one)
                    yield TaskResult(number, outcome.result(self.reporter))
        finally:
            for one in made:
                one.stop()
            for one in made:
                one.end()


class _Process:
    """A process with a worker, and the pipe to it.

    Args:
        payload: a pickle of the worker, which is opened at its first task.
    """

    def __init__(self, payload: bytes, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, payload, os.getcwd(), threads), daemon=True
        )
        with _interruption_later():
            self._process.start()
        theirs.close()

    def send(self, task: Any) -> None:
        """Gives it a task; `outcome` tells that it has died."""
        with suppress(OSError):
            self.pipe.send_bytes(pickle.dumps(task))

    def outcome(self) -> TaskOutcome | None:
        """What it has sent; None: it has died. Raises RuntimeError: a bug."""
        try:
            found = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        if isinstance(found, TaskOutcome):
            return found
        raise RuntimeError(found)

    def stop(self) -> None:
        """Tells it to end."""
        self._process.terminate()

    def end(self) -> str:
        """Waits until it has ended; why it did, for people."""
        self._process.join(END_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self.pipe.close()
        code = self._process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


@contextmanager
def _interruption_later() -> Iterator[None]:
    """Holds Ctrl-C back, from what is started meanwhile for good: the command ends it."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # it would end the holding back
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _serve(pipe: connection.Connection, payload: bytes, folder: str, threads: int) -> None:
    """The work of a process: one task after another, until nobody is at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    process = None
    with suppress(EOFError, OSError):
        while True:
            sent = pipe.recv_bytes()
            # Not before the first task is here: unpickling imports torch.
            process = process or WorkerProcess(pickle.loads(payload), folder)
            try:
                outcome: TaskOutcome | str = process.do(pickle.loads(sent))
            except Exception as error:
                outcome = f"{type(error).__name__} in a worker: {first_line(error)}"
            pipe.send_bytes(pickle.dumps(outcome))


def _processors() -> int:
    """How many this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
