"""Tasks done by actors of a Ray cluster: of $RAY_ADDRESS, else of this machine alone.

Each actor has a worker with its model. The task of an actor that dies is done again by another one.
Usage statistics of Ray are switched off unless $RAY_USAGE_STATS_ENABLED says otherwise.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from esa_cli.apps.cli.terminal import Reporter
from esa_cli.apps.engine.task_engine import (
    Result,
    Task,
    TaskOutcome,
    TaskResult,
    TaskWorker,
    WorkerProcess,
)
from esa_cli.errors import ResourceError, UsageError, first_line

MOST_DEATHS = 3
"""Actors that may die of one task."""
WAIT_S = 1.0
CONNECT_S = 10.0


class ActorPool:
    """Actors of one run, made when there is work for them."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._made = make, list[Any]()
        self.idle: list[Any] = []

    def take(self) -> Any:
        """An idle actor, else a new one."""
        if self.idle:
            return self.idle.pop()
        self._made.append(self._make())
        return self._made[-1]

    def stop(self) -> None:
        """Ends all actors."""
        import ray

        if ray.is_initialized():  # else they have ended, and `kill` would start a cluster
            for actor in self._made:
                ray.kill(actor)


class RayEngine:
    """Runs tasks on actors; a `TaskEngine`.

    Args:
        workers: number of actors; None: one for each GPU, or for each machine where there is none.
        gpus: whether actors get a GPU each.
    """

    def __init__(self, reporter: Reporter, workers: int | None, gpus: bool) -> None:
        import ray

        self.reporter = reporter
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        found = sum(int(one.get("GPU", 0)) for one in machines) if gpus else 0
        self.workers = workers or found or len(machines)
        each = math.ceil(self.workers / len(machines))
        cores = min(one.get("CPU", 1) for one in machines) / each
        self._needs: dict[str, Any] = {"num_cpus": int(cores) if cores >= 1 else cores}
        if found:
            self._needs["num_gpus"] = min(1, found / self.workers)
        reporter.note(
            f"esa: ray: machines {len(machines)}, workers {self.workers}, cores of each "
            f"{self._needs['num_cpus']:g}",
            dim=False,
        )

    def run(
        self, worker: TaskWorker[Task, Result], tasks: Iterator[Task]
    ) -> Iterator[TaskResult[Result]]:
        """See `TaskEngine.run`. Raises ResourceError: actors die of a task."""
        import ray

        kind = ray.remote(WorkerProcess).options(max_restarts=0, **self._needs)
        pool = ActorPool(lambda: kind.remote(worker, os.getcwd()))
        errors = ray.exceptions
        died = errors.RayActorError, errors.NodeDiedError, errors.OutOfMemoryError
        waiting, again = enumerate(tasks), list[tuple[int, Task]]()
        deaths: Counter[int] = Counter()
        running: dict[Any, tuple[Any, tuple[int, Task]]] = {}
        try:
            while True:
                while len(running) < self.workers:
                    task = again.pop() if again else next(waiting, None)
                    if task is None:
                        break
                    one = pool.take()
                    running[one.do.remote(task[1])] = one, task
                if not running:
                    return
                for reference in ray.wait(list(running), num_returns=1, timeout=WAIT_S)[0]:
                    one, task = running.pop(reference)
                    try:
                        outcome: TaskOutcome = ray.get(reference)
                    except died as error:
                        ray.kill(one)  # it may only be out of reach
                        deaths[task[0]] += 1
                        self._died(deaths[task[0]], error)
                        again.append(task)
                        continue
                    pool.idle.append(one)
                    yield TaskResult(task[0], self._value(outcome))
        finally:
            pool.stop()

    def _value(self, outcome: TaskOutcome) -> Any:
        """The task's value, after its warnings. Raises EsaError: the one that the task raised."""
        for text in outcome.warnings:
            self.reporter.warn(text)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _died(self, times: int, error: Exception) -> None:
        if times >= MOST_DEATHS:
            lines = str(error).strip().splitlines()
            why = lines[-1 if "creation task" in lines[0] else 0]
            raise ResourceError(
                f"{times} workers died of one task: {why}",
                "memory may be short: try fewer --workers; esa must be the same on all machines",
            ) from error
        self.reporter.warn("esa: a worker died; its task is done again by another one")


@contextmanager
def ray_engine(reporter: Reporter, workers: int | None, device: str) -> Iterator[RayEngine]:
    """The engine on the cluster; in the end its actors are stopped, and a cluster of its own.

    Raises:
        UsageError: there is no cluster at $RAY_ADDRESS.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    reporter.stage("import", 0, None)
    try:
        # Without "local" Ray joins any cluster of this machine, whoever started it.
        address = os.environ.get("RAY_ADDRESS") or "local"
        _connect_once(address)
        ray.init(
            address,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            include_dashboard=False,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the Ray cluster cannot be used: {first_line(error)}",
            "check RAY_ADDRESS, or unset it to use this machine alone",
        ) from error
    try:
        yield RayEngine(reporter, workers, gpus=device != "cpu")
    finally:
        ray.shutdown()


def _connect_once(address: str) -> None:
    """Raises OSError where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    if found := re.fullmatch(r"(?:ray://)?([^:/]+):([0-9]+)", address):
        socket.create_connection((found[1], int(found[2])), CONNECT_S).close()
