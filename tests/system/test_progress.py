"""Callbacks: several as one, and while another process works."""

from __future__ import annotations

import pytest

from esa_cli.system.progress import WaitNotice, combined


def test_an_exception_propagates_and_the_later_ones_are_not_called() -> None:
    calls: list[int] = []

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    last = combined(lambda *now: calls.append(now[0]), None, lambda *now: calls.append(now[1]))
    with pytest.raises(KeyboardInterrupt):
        combined(stop, last)(1, 2)
    assert not calls
    last(1, 2)
    assert calls == [1, 2]


def test_waiting_is_announced_once() -> None:
    calls: list[object] = []
    notice = WaitNotice(lambda: calls.append("waits"), lambda *now: calls.append(now), 7)
    notice()
    notice()
    assert calls == ["waits", (0, 7), (0, 7)]
