"""Children of the test's process: forked after the imports, so that a kill comes while they work
and not before."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import torch


def child(work: Callable[[], object], *, wait: bool = False) -> int:
    """Does the work in a forked child; its number.

    Args:
        wait: until it begins, which can take longer than the work.
    """
    begun, begins = os.pipe() if wait else (-1, -1)
    number = os.fork()
    if number == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            if wait:
                os.write(begins, b"x")
            work()
            code = 0
        finally:
            os._exit(code)
    if wait:
        os.close(begins)
        os.read(begun, 1)
        os.close(begun)
    return number


def ended(number: int) -> int:
    """Its exit code, when it has ended; below 0: the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def taken(work: Callable[[], object]) -> float:
    """Seconds the work takes a child."""
    number = child(work, wait=True)
    started = time.perf_counter()
    assert ended(number) == 0
    return time.perf_counter() - started


def killed(work: Callable[[], object], after: float) -> bool:
    """Starts the work and kills it so many seconds later; whether it was still at it."""
    number = child(work, wait=True)
    time.sleep(after)
    os.kill(number, signal.SIGKILL)
    return ended(number) != 0


def dying(work: Callable[[], object], number: int) -> Callable[[], object]:
    """Work for a child that is killed right before it removes or renames its file `number`, from
    1."""

    def run() -> object:
        count = 0

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def counting(*arguments: object, **named: object) -> object:
                nonlocal count
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **named)

            return counting

        for name in ("unlink", "remove", "replace", "rename"):
            setattr(os, name, counted(getattr(os, name)))
        return work()

    return run
