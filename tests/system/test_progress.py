"""Callbacks: several as one, and while another process works."""

from __future__ import annotations

import pytest

from esa_cli.system.progress import WaitNotice, combined


def test_all_are_called_in_order() -> None:
    calls: list[tuple[str, int, int]] = []
    both = combined(
        lambda *now: calls.append(("a", *now)), None, lambda *now: calls.append(("b", *now))
    )
    both(1, 2)
    assert calls == [("a", 1, 2), ("b", 1, 2)]


def test_an_exception_propagates_and_the_later_ones_are_not_called() -> None:
    calls: list[int] = []

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        combined(stop, lambda done, total: calls.append(done))(1, 2)
    assert not calls


def test_waiting_is_announced_once() -> None:
    calls: list[object] = []
    notice = WaitNotice(lambda: calls.append("waits"), lambda *now: calls.append(now), 7)
    notice()
    notice()
    assert calls == ["waits", (0, 7), (0, 7)]
