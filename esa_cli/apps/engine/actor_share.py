"""What each actor of a Ray cluster gets, so that all of them find a place at the same time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from esa_cli.errors import ResourceError

STEP = 10_000
"""Ray counts parts of a processor or GPU in ten-thousandths."""


class ActorShare(NamedTuple):
    """How many actors there are, and the processors and GPUs of each; `gpus` 0: none."""

    actors: int
    cpus: float
    gpus: float

    def options(self) -> dict[str, float]:
        """For `ray.remote(...).options`."""
        gpus = {"num_gpus": self.gpus} if self.gpus else {}
        return {"num_cpus": self.cpus, **gpus}

    def __str__(self) -> str:
        gpus = f" and {self.gpus:g} GPU" if self.gpus else ""
        return f"{self.cpus:g} cores{gpus}"


def actor_share(
    machines: Sequence[Mapping[str, Any]], workers: int | None, device: str
) -> ActorShare:
    """Divides a cluster; by default one actor for each GPU, or for each machine where there is
    none.

    Args:
        machines: the total resources of each. workers: number of actors. device: as `--device`.

    Raises:
        ResourceError: no machine has a processor, or a GPU that `device` names; or there are more
            workers than can be placed.
    """
    gpus = 0 if device == "cpu" else sum(int(one.get("GPU", 0)) for one in machines)
    if not gpus and device.startswith(("cuda", "balanced")):
        raise ResourceError(
            f"the Ray cluster has no GPU, and --device is {device}",
            "leave --device out, or start Ray on a machine with one: ray start --num-gpus N",
        )
    hosts = [one for one in machines if one.get("GPU" if gpus else "CPU", 0) > 0]
    if not hosts:
        raise ResourceError(
            f"the Ray cluster has no processor for a worker, on {len(machines)} machines",
            "start Ray on another machine, or with: ray start --num-cpus N",
        )
    actors = workers or gpus or len(hosts)
    on_a_gpu = math.ceil(actors / gpus) if gpus else 0

    def cores(host: Mapping[str, Any]) -> float:
        most = min(actors, int(host["GPU"]) * on_a_gpu) if gpus else actors / len(hosts)
        return float(host.get("CPU", 0)) / max(1, math.ceil(most))

    least = min(map(cores, hosts))
    share = ActorShare(
        actors,
        float(math.floor(least)) if least >= 1 else math.floor(least * STEP) / STEP,
        math.floor(STEP / on_a_gpu) / STEP if gpus else 0.0,
    )
    if (places := _places(machines, share)) < actors or not (share.cpus or share.gpus):
        raise ResourceError(
            f"workers must be at most {places if share.cpus or share.gpus else STEP}, got {actors}",
            f"the Ray cluster has {_total(machines)}; give fewer --workers",
        )
    return share


def _places(machines: Sequence[Mapping[str, Any]], share: ActorShare) -> int:
    """How many actors the machines can have at the same time."""
    found = 0
    for one in machines:
        room = [
            *([one.get("CPU", 0) / share.cpus + 1e-6] if share.cpus else []),
            *([one.get("GPU", 0) // 1 * math.floor(1 / share.gpus)] if share.gpus else []),
        ]
        found += math.floor(min(room, default=0))
    return found


def _total(machines: Sequence[Mapping[str, Any]]) -> str:
    cpus, gpus = (sum(one.get(name, 0) for one in machines) for name in ("CPU", "GPU"))
    return f"{len(machines)} machines with {cpus:g} cores and {gpus:g} GPUs"
