"""The actors of one run on a Ray cluster: started when there is work, and used when they are up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.worker_deaths import STARTING, WorkerDeaths
from esa_cli.errors import ResourceError

NOTICE_S = 20.0
"""Seconds after which it is said that an actor has not started."""
PLACE_S = 600.0
"""Seconds without any actor after which the run ends: others use the cluster, or it is broken."""


def actor_errors() -> tuple[type[Exception], ...]:
    """What Ray raises for an actor that died."""
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError

    return RayActorError, NodeDiedError, OutOfMemoryError


def _reason(error: Exception) -> str:
    """Why an actor died, for people: the last line of what Ray says of one that did not start."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if "creation task" in lines[0] else 0]


class ActorPool:
    """Actors of one run.

    Args:
        make: asks the cluster for an actor. needs: what each needs, for people.
    """

    def __init__(self, make: Callable[[], Any], needs: str, reporter: Reporter) -> None:
        self._make, self._needs, self._reporter = make, needs, reporter
        self._made = list[Any]()
        self._deaths = WorkerDeaths(
            reporter,
            "memory may be short: try fewer --workers; esa must be the same on all machines",
        )
        self._since, self._said = 0.0, False
        self.starting: dict[Any, Any] = {}
        """Actors that are not up yet, by the reference that tells it."""
        self.idle: list[Any] = []

    def start(self, count: int) -> None:
        """Starts actors until so many are idle or starting."""
        if not self.starting:
            self._since = time.monotonic()
        while len(self.idle) + len(self.starting) < count:
            actor = self._make()
            self._made.append(actor)
            self.starting[actor.ready.remote()] = actor

    def started(self, reference: Any) -> None:
        """The reference tells that its actor is up, or has died. Raises ResourceError."""
        import ray

        actor = self.starting.pop(reference)
        self._since = time.monotonic()
        try:
            ray.get(reference)
        except actor_errors() as error:
            self.lost(actor, STARTING, error)
        else:
            self._deaths.forget(STARTING)
            self.idle.append(actor)

    def lost(self, actor: Any, task: int, error: Exception) -> None:
        """An actor died of the task with this number. Raises ResourceError: too many did."""
        import ray

        ray.kill(actor)  # it may only be out of reach
        self._since = time.monotonic()
        self._deaths.add(task, _reason(error), error)

    def check(self, running: int) -> None:
        """Says, once, that actors are waited for. Raises ResourceError: none came for too long.

        Args:
            running: how many actors are at work.
        """
        waited = time.monotonic() - self._since
        if not self.starting or waited < NOTICE_S:
            return
        if not self._said:
            self._said = True
            self._reporter.warn(f"esa: ray: waiting for {self._waiting}")
        if not running and not self.idle and waited > PLACE_S:
            raise ResourceError(
                f"no worker could start in {waited:,.0f} s: waiting for {self._waiting}",
                "see what else uses the cluster: ray status; then give the same command again",
            )

    @property
    def _waiting(self) -> str:
        import ray

        free = ray.available_resources()
        return (
            f"{len(self.starting)} workers of {self._needs} each; the cluster now has "
            f"{free.get('CPU', 0):g} cores and {free.get('GPU', 0):g} GPUs free"
        )

    def stop(self) -> None:
        """Ends all actors."""
        import ray

        if ray.is_initialized():  # else they have ended, and `kill` would start a cluster
            for actor in self._made:
                ray.kill(actor)
