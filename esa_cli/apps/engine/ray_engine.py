"""Tasks done by actors of a Ray cluster: of $RAY_ADDRESS, else of this machine alone.

Each actor has a worker with its model. The task of an actor that dies is done again by another one.
Usage statistics of Ray are switched off unless $RAY_USAGE_STATS_ENABLED says otherwise.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.actor_pool import ActorPool, actor_errors
from esa_cli.apps.engine.actor_share import actor_share
from esa_cli.apps.engine.task_engine import (
    Result,
    Task,
    TaskOutcome,
    TaskQueue,
    TaskResult,
    TaskWorker,
    WorkerProcess,
)
from esa_cli.errors import UsageError, first_line

WAIT_S = 1.0
CONNECT_S = 10.0


class RayEngine:
    """Runs tasks on actors; a `TaskEngine`.

    Args:
        workers, device: see `actor_share`. Raises ResourceError.
    """

    def __init__(self, reporter: Reporter, workers: int | None, device: str) -> None:
        import ray

        self.reporter = reporter
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._share = actor_share(machines, workers, device)
        self.workers = self._share.actors
        reporter.note(
            f"esa: ray: machines {len(machines)}, workers {self.workers}, each {self._share}",
            dim=False,
        )

    def run(
        self, worker: TaskWorker[Task, Result], tasks: Iterator[Task | None]
    ) -> Iterator[TaskResult[Result]]:
        """See `TaskEngine.run`. Raises ResourceError: actors die of a task, or none can start."""
        import ray

        kind = ray.remote(WorkerProcess).options(max_restarts=0, **self._share.options())
        pool = ActorPool(lambda: kind.remote(worker, os.getcwd()), str(self._share), self.reporter)
        queue = TaskQueue(tasks)
        running: dict[Any, tuple[Any, tuple[int, Task]]] = {}
        try:
            while True:
                queue.fill(self.workers - len(running))
                if not running and not queue.waiting:
                    return
                pool.start(len(queue.waiting))
                while queue.waiting and pool.idle:
                    one, task = pool.idle.pop(), queue.waiting.pop(0)
                    running[one.do.remote(task[1])] = one, task
                references = [*running, *pool.starting]
                for reference in ray.wait(references, num_returns=1, timeout=WAIT_S)[0]:
                    if reference in pool.starting:
                        pool.started(reference)
                        continue
                    one, task = running.pop(reference)
                    try:
                        outcome: TaskOutcome = ray.get(reference)
                    except actor_errors() as error:
                        pool.lost(one, task[0], error)
                        queue.waiting.insert(0, task)
                        continue
                    pool.idle.append(one)
                    yield TaskResult(task[0], outcome.result(self.reporter))
                pool.check(len(running))
        finally:
            pool.stop()


@contextmanager
def ray_engine(reporter: Reporter, workers: int | None, device: str) -> Iterator[RayEngine]:
    """The engine on the cluster; in the end its actors are stopped, and a cluster of its own.

    Raises:
        UsageError: there is no cluster at $RAY_ADDRESS. ResourceError: as `actor_share`.
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
        yield RayEngine(reporter, workers, device)
    finally:
        ray.shutdown()


def _connect_once(address: str) -> None:
    """Raises OSError where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    if found := re.fullmatch(r"(?:ray://)?([^:/]+):([0-9]+)", address):
        socket.create_connection((found[1], int(found[2])), CONNECT_S).close()
