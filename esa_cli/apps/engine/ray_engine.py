"""Tasks done by actors of a Ray cluster: of $RAY_ADDRESS, else of this machine alone.

Each actor has a worker with its model. The task of an actor that dies is done again by another one.
Usage statistics of Ray are switched off unless $RAY_USAGE_STATS_ENABLED says otherwise.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterator
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
from esa_cli.errors import ResourceError, UsageError

MOST_DEATHS = 3
"""Actors that may die of one task."""
WAIT_S = 1.0


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

        actor = ray.remote(WorkerProcess).options(max_restarts=0, **self._needs)
        waiting = enumerate(tasks)
        again: list[tuple[int, Task]] = []
        errors = ray.exceptions
        died = errors.RayActorError, errors.NodeDiedError, errors.OutOfMemoryError
        deaths: Counter[int] = Counter()
        idle: list[Any] = [None] * self.workers
        running: dict[Any, tuple[Any, tuple[int, Task]]] = {}
        while True:
            while idle and (task := again.pop() if again else next(waiting, None)) is not None:
                # None is the place of an actor that is made when there is work for it.
                one = idle.pop()
                if one is None:
                    one = actor.remote(worker, os.getcwd())
                running[one.do.remote(task[1])] = one, task
            if not running:
                return
            ended, _ = ray.wait(list(running), num_returns=1, timeout=WAIT_S)
            for reference in ended:
                one, task = running.pop(reference)
                try:
                    outcome: TaskOutcome = ray.get(reference)
                except died as error:
                    ray.kill(one)  # it may only be out of reach
                    deaths[task[0]] += 1
                    self._died(deaths[task[0]], error)
                    again.append(task)
                    idle.append(None)
                    continue
                idle.append(one)
                for text in outcome.warnings:
                    self.reporter.warn(text)
                if outcome.error is not None:
                    raise outcome.error
                yield TaskResult(task[0], outcome.value)

    def _died(self, times: int, error: Exception) -> None:
        if times >= MOST_DEATHS:
            raise ResourceError(
                f"{times} workers died of one task: {str(error).splitlines()[0]}",
                "memory may be short: try fewer --workers",
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
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the Ray cluster cannot be used: {str(error).splitlines()[0]}",
            "check RAY_ADDRESS, or unset it to use this machine alone",
        ) from error
    try:
        yield RayEngine(reporter, workers, gpus=device != "cpu")
    finally:
        ray.shutdown()
