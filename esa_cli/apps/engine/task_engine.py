"""Interfaces of a command's tasks, of the process that does them, and of the engine between.

A worker is sent to a process as a pickle and opened there, once; then it does one task after
another. A task has no effect that doing it again changes: an engine may do it twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import EsaError, ResourceError, UsageError
from esa_cli.system.machine import memory_ran_out

MEMORY_HINT = "try fewer --workers, --dtype bfloat16 or a smaller model"
Task = TypeVar("Task")
Result = TypeVar("Result")
GivenTask = TypeVar("GivenTask", contravariant=True)
GivenResult = TypeVar("GivenResult", covariant=True)


class TaskWorker(Protocol[GivenTask, GivenResult]):
    """What a process needs to do a command's tasks; a pickle of it is small."""

    def open(
        self, reporter: Reporter
    ) -> AbstractContextManager[Callable[[GivenTask], GivenResult]]:
        """Loads the model; gives the function that does a task. Raises EsaError."""
        ...


class TaskResult(NamedTuple, Generic[Result]):
    """What the task of this number, from 0, returned."""

    number: int
    value: Result


class TaskQueue(Generic[Task]):
    """Tasks with their numbers, from 0, as processes become free for them.

    Args:
        tasks: a None among them, which has no number: there is none until one more has ended.
    """

    def __init__(self, tasks: Iterator[Task | None]) -> None:
        self._tasks, self._taken = tasks, 0
        self.waiting: list[tuple[int, Task]] = []

    def fill(self, count: int) -> None:
        """Takes tasks until so many are waiting, or there is none now."""
        while len(self.waiting) < count and (task := next(self._tasks, None)) is not None:
            self.waiting.append((self._taken, task))
            self._taken += 1


class TaskEngine(Protocol):
    """Does tasks in several processes.

    Attributes:
        workers: their number, at most.
    """

    workers: int

    def run(
        self, worker: TaskWorker[Task, Result], tasks: Iterator[Task | None]
    ) -> Iterator[TaskResult[Result]]:
        """The results, in the order in which tasks end. A task is taken when a process is free; a
        None says that there is none until a result of a running one has been used.

        Raises:
            EsaError: the worker could not be opened, or a task raised it.
        """
        ...


@dataclass(frozen=True)
class TaskOutcome:
    """What a process sends back: a value or an error, and the warnings on the way."""

    value: Any = None
    error: EsaError | None = None
    warnings: tuple[str, ...] = ()

    def result(self, reporter: Reporter) -> Any:
        """The value, after the warnings. Raises EsaError: the one that the task raised."""
        for text in self.warnings:
            reporter.warn(text)
        if self.error is not None:
            raise self.error
        return self.value


class WarningReporter(Reporter):
    """Keeps warnings, and shows nothing."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self._warnings: list[str] = []

    def warn(self, text: str) -> None:
        self._warnings.append(text)

    def take(self) -> tuple[str, ...]:
        """The warnings since the last call."""
        taken, self._warnings = tuple(self._warnings), []
        return taken


class WorkerProcess:
    """A worker in its process, opened at its first task.

    Args:
        folder: the working folder, by which relative paths are meant.
    """

    def __init__(self, worker: TaskWorker[Any, Any], folder: str) -> None:
        self._worker, self._folder = worker, folder
        self._reporter = WarningReporter()
        self._opened = ExitStack()
        self._work: Callable[[Any], Any] | None = None

    def ready(self) -> None:
        """Tells that the process is up."""

    def do(self, task: Any) -> TaskOutcome:
        """Does a task; an EsaError is returned, as is the lack of memory."""
        try:
            if self._work is None:
                self._work = self._open()
            value = self._work(task)
        except EsaError as error:
            return TaskOutcome(error=error, warnings=self._reporter.take())
        except Exception as error:
            if not memory_ran_out(error):
                raise
            short = ResourceError("the memory of a worker ran out", MEMORY_HINT)
            return TaskOutcome(error=short, warnings=self._reporter.take())
        return TaskOutcome(value, warnings=self._reporter.take())

    def _open(self) -> Callable[[Any], Any]:
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise UsageError(
                f"a worker cannot use the folder {self._folder}: {error.strerror}",
                "start in a folder that all machines share",
            ) from error
        return self._opened.enter_context(self._worker.open(self._reporter))
