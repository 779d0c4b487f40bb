"""Which Ray cluster `--engine ray` uses; Ray itself is replaced."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import pytest

from esa_cli.apps.cli.terminal import Reporter
from esa_cli.apps.engine.ray_engine import ray_engine


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
