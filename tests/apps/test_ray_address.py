"""Which Ray cluster `--engine ray` uses, and why actors died; Ray itself is replaced."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import pytest

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.engine.actor_pool import ActorPool
from esa_cli.apps.engine.ray_engine import ray_engine
from esa_cli.errors import ResourceError


@pytest.mark.parametrize(
    ("given", "used"), [(None, "local"), ("", "local"), ("auto", "auto"), ("local", "local")]
)
def test_no_cluster_is_joined_that_was_not_named(
    monkeypatch: pytest.MonkeyPatch, given: str | None, used: str
) -> None:
    addresses = list[str]()

    def init(address: str, **more: Any) -> None:
        addresses.append(address)

    ray = types.SimpleNamespace(init=init, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    with contextlib.suppress(AttributeError), ray_engine(Reporter(True), 1, "cpu"):
        pass
    assert addresses == [used]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "RuntimeError"),
        (" \n", "RuntimeError"),
        ("the node died\nat 10.0.0.1", "the node died"),
        ("the actor died in its creation task:\n  ...\nNoMemory: 3 GB", "NoMemory: 3 GB"),
    ],
)
def test_why_an_actor_died(monkeypatch: pytest.MonkeyPatch, said: str, reason: str) -> None:
    ray = types.SimpleNamespace(kill=lambda actor: None)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    pool = ActorPool(lambda: None, "1 core", Reporter(True))
    pool.lost(None, 1, RuntimeError(said))
    pool.lost(None, 1, RuntimeError(said))
    with pytest.raises(ResourceError, match=f"3 workers died of one task: {reason}$"):
        pool.lost(None, 1, RuntimeError(said))
