"""Actors of a Ray cluster: all find a place, or the command ends; Ray itself is replaced."""

from __future__ import annotations

import itertools
import math
import sys
import types
from typing import Any

import pytest
from engine_process import Notes

from esa_cli.apps.engine import actor_pool
from esa_cli.apps.engine.actor_pool import ActorPool
from esa_cli.apps.engine.actor_share import ActorShare, actor_share
from esa_cli.errors import ResourceError

Machine = dict[str, float]


def placed(machines: list[Machine], share: ActorShare) -> int:
    """How many actors find a place, one after another; GPUs are not put together."""
    found = 0
    for machine in machines:
        cpus, gpus = machine.get("CPU", 0.0), [1.0] * int(machine.get("GPU", 0))
        while found < share.actors and cpus + 1e-9 >= share.cpus:
            if share.gpus:
                at = next((i for i, one in enumerate(gpus) if one + 1e-9 >= share.gpus), None)
                if at is None:
                    break
                gpus[at] -= share.gpus
            cpus -= share.cpus
            found += 1
    return found


KINDS: list[Machine] = [
    {"CPU": 16.0}, {"CPU": 2.0}, {"CPU": 16.0, "GPU": 8.0}, {"CPU": 4.0, "GPU": 1.0}, {},
    {"CPU": 3.0, "GPU": 2.0}, {"GPU": 1.0},
]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_actors_find_a_place(count: int) -> None:
    for machines in itertools.combinations_with_replacement(KINDS, count):
        there = list(machines)
        for workers, device in itertools.product((None, 1, 2, 3, 7, 20), ("cpu", "auto")):
            try:
                share = actor_share(there, workers, device)
            except ResourceError:
                assert not any(one.get("CPU") for one in there)
                continue
            assert placed(there, share) == share.actors == (workers or share.actors)


def test_the_share_of_common_clusters() -> None:
    assert actor_share([{"CPU": 2.0}], 2, "cpu") == (2, 1.0, 0.0)
    assert actor_share([{"CPU": 2.0}], 3, "cpu") == (3, 0.6666, 0.0)
    assert actor_share([{"CPU": 16.0}, {"CPU": 8.0}], None, "auto") == (2, 8.0, 0.0)
    head, worker = {"CPU": 16.0}, {"CPU": 32.0, "GPU": 8.0}
    assert actor_share([head, worker], None, "auto") == (8, 4.0, 1.0)
    assert actor_share([head, worker], 12, "cuda") == (12, 2.0, 0.5)
    assert actor_share([head, worker], None, "cpu") == (2, 16.0, 0.0)


def test_what_can_never_be_placed_is_refused() -> None:
    with pytest.raises(ResourceError, match="has no GPU, and --device is cuda"):
        actor_share([{"CPU": 2.0}], None, "cuda")
    with pytest.raises(ResourceError, match="has no processor for a worker"):
        actor_share([{}, {}], None, "cpu")
    with pytest.raises(ResourceError, match=r"workers must be at most 10000, got 99999") as raised:
        actor_share([{"CPU": 2.0}], 99999, "cpu")
    assert "1 machines with 2 cores and 0 GPUs" in raised.value.hint
    assert raised.value.exit_code == 6


def test_waiting_is_said_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = types.SimpleNamespace(available_resources=lambda: {"CPU": 0.5})
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    clock = types.SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(actor_pool, "time", clock)
    names = itertools.count()

    def make() -> Any:
        return types.SimpleNamespace(
            ready=types.SimpleNamespace(remote=lambda: f"reference {next(names)}")
        )

    reporter = Notes()
    pool = ActorPool(make, "2 cores", reporter)
    pool.start(2)
    pool.check(0)
    assert reporter.lines == []
    clock.now = actor_pool.NOTICE_S + 1
    pool.check(0)
    pool.check(0)
    assert reporter.lines == [
        "esa: ray: waiting for 2 workers of 2 cores each; the cluster now has 0.5 cores and 0 GPUs "
        "free"
    ]
    clock.now = actor_pool.PLACE_S + 1
    pool.check(1)  # another one does the tasks
    with pytest.raises(ResourceError, match="no worker could start in 601 s: waiting for 2"):
        pool.check(0)
    assert math.isclose(clock.now, 601)
