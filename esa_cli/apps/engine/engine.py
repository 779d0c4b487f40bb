"""Engines: processes that each open a worker once, and then do one task after another.

`LocalEngine` has processes of this machine, `RayEngine` actors of a Ray cluster. A task may be done
twice without harm. A process that dies ends the command: finished results are stored, and the same
command continues.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, connection, get_context, parent_process
from typing import Any, Protocol

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import EsaError, ResourceError, UsageError, first_line
from esa_cli.system.machine import memory_ran_out

HINT = "what is finished is kept; memory may be short: try fewer --workers"
CONNECT_S = 5.0
"""Seconds for a connection to a Ray cluster, which Ray itself would try for minutes."""
PLACE_S = 600.0
"""Seconds after which a Ray cluster that has started no actor is given up."""


class TaskWorker(Protocol):
    """What a process needs to do a command's tasks. Its pickle is small."""

    def open(self, reporter: Reporter) -> AbstractContextManager[Callable[[Any], Any]]:
        """Loads the model; gives the function that does a task. Raises EsaError."""
        ...


@dataclass(frozen=True)
class TaskOutcome:
    """What a process sends back: a value or an error, and the warnings before it."""

    value: Any = None
    error: EsaError | None = None
    warnings: tuple[str, ...] = ()

    def result(self, reporter: Reporter) -> Any:
        """The value, after the warnings are shown. Raises EsaError: the task's."""
        for text in self.warnings:
            reporter.warn(text)
        if self.error is not None:
            raise self.error
        return self.value


class _Warnings(Reporter):
    """Collects warnings and shows nothing."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


class WorkerProcess:
    """A worker in its process, opened at its first task in the command's working folder."""

    def __init__(self, worker: TaskWorker, folder: str) -> None:
        self._worker, self._folder = worker, folder
        self._stack, self._reporter = ExitStack(), _Warnings()
        self._work: Callable[[Any], Any] | None = None

    def ready(self) -> bool:
        """True: the process has started."""
        return True

    def do(self, task: Any) -> TaskOutcome:
        """Does a task. An EsaError and a lack of memory are returned, not raised."""
        self._reporter.texts.clear()
        value, error = None, None
        try:
            self._work = self._work or self._open()
            value = self._work(task)
        except EsaError as raised:
            error = raised
        except Exception as raised:
            if not memory_ran_out(raised):
                raise
            error = ResourceError("the memory of a worker ran out", HINT)
        return TaskOutcome(value, error, tuple(self._reporter.texts))

    def _open(self) -> Callable[[Any], Any]:
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise UsageError(
                f"a worker cannot use the folder {self._folder}: {error.strerror}",
                "start in a folder that all machines share",
            ) from error
        return self._stack.enter_context(self._worker.open(self._reporter))


_process: WorkerProcess
"""That of a process of `LocalEngine`."""


class LocalEngine:
    """Processes of this machine, each with an equal share of its cores."""

    def __init__(self, reporter: Reporter, workers: int) -> None:
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        self._reporter, self._workers = reporter, workers
        self._threads = max(1, cores // workers)
        reporter.note(f"esa: {workers} workers, {self._threads} cores each", dim=False)

    def run(self, worker: TaskWorker, tasks: Iterable[Any]) -> Iterator[Any]:
        """The results, in the order in which the tasks end.

        Raises:
            EsaError: the worker cannot be opened, or a task raised it. ResourceError: a process
                died.
        """
        # As a pickle: unpickling imports torch, which reads OMP_NUM_THREADS then.
        about = pickle.dumps(worker), os.getcwd(), self._threads
        pool = ProcessPoolExecutor(self._workers, get_context("spawn"), _start, about)
        try:
            futures = [pool.submit(_do, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result().result(self._reporter)
        except BrokenProcessPool as error:
            raise ResourceError("a worker died", HINT) from error
        except BaseException:
            for child in active_children():
                child.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _start(worker: bytes, folder: str, threads: int) -> None:
    """Prepares a process, which ends when its parent does; Ctrl-C is for the parent."""
    global _process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    _process = WorkerProcess(pickle.loads(worker), folder)


def _do(task: Any) -> TaskOutcome:
    return _process.do(task)


class RayEngine:
    """Actors of the Ray cluster that this process is connected to: `workers`, else one for each
    GPU, or for each machine where there is none. `device` as `--device`."""

    def __init__(self, reporter: Reporter, workers: int | None, device: str) -> None:
        import ray

        hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = 0 if device == "cpu" else sum(int(host.get("GPU", 0)) for host in hosts)
        if not gpus and device.startswith("cuda"):
            raise ResourceError(
                f"the Ray cluster has no GPU, and --device is {device}", "leave --device out"
            )
        hosts = [host for host in hosts if host.get("GPU" if gpus else "CPU", 0) > 0]
        self.workers = workers or gpus or max(1, len(hosts))
        cores = min((host.get("CPU", 0) for host in hosts), default=0)
        share = cores / math.ceil(self.workers / max(1, len(hosts)))
        self.options = {"num_cpus": float(math.floor(share)) if share >= 1 else round(share, 3)}
        if gpus:
            self.options["num_gpus"] = min(1.0, math.floor(1000 * gpus / self.workers) / 1000)
        self._reporter = reporter
        reporter.note(f"esa: ray: {self.workers} workers, each {self.options}", dim=False)

    def run(self, worker: TaskWorker, tasks: Iterable[Any]) -> Iterator[Any]:
        """As `LocalEngine.run`. Raises ResourceError, too: the cluster starts no actor."""
        import ray
        from ray.exceptions import RayActorError
        from ray.util import ActorPool

        kind = ray.remote(WorkerProcess).options(max_restarts=0, **self.options)
        actors = [kind.remote(worker, os.getcwd()) for _ in range(self.workers)]
        try:
            started = [actor.ready.remote() for actor in actors]
            if not ray.wait(started, num_returns=len(started), timeout=PLACE_S)[0]:
                raise ResourceError(
                    f"the Ray cluster started no worker in {PLACE_S:.0f} s",
                    "`ray status` shows what else uses it",
                )
            pool = ActorPool(actors)
            for outcome in pool.map_unordered(lambda actor, task: actor.do.remote(task), tasks):
                yield outcome.result(self._reporter)
        except RayActorError as error:
            raise ResourceError(f"a worker died: {first_line(error)}", HINT) from error
        finally:
            for actor in actors:
                ray.kill(actor)


Engine = LocalEngine | RayEngine


@contextmanager
def ray_engine(reporter: Reporter, workers: int | None, device: str) -> Iterator[RayEngine]:
    """The engine on the cluster at $RAY_ADDRESS, or on one of this machine alone.

    Raises:
        UsageError: there is no cluster at that address. ResourceError: it has no GPU.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        address = os.environ.get("RAY_ADDRESS") or "local"  # "" joins anybody's on this machine
        if host := re.fullmatch(r"(?:ray://)?([^:/]+):([0-9]+)", address):
            socket.create_connection((host[1], int(host[2])), CONNECT_S).close()
        ray.init(
            address, log_to_driver=False, logging_level=logging.CRITICAL, include_dashboard=False
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the Ray cluster cannot be used: {first_line(error)}",
            "check RAY_ADDRESS, or unset it to use this machine alone",
        ) from error
    try:
        yield RayEngine(reporter, workers, device)
    finally:
        ray.shutdown()
