"""Options that say which processes do a command's tasks."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli.terminal import Reporter
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.apps.engine.task_engine import TaskEngine

EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="local: this process; ray: actors of a Ray cluster."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Actors of --engine ray; else one for each GPU or machine."
    ),
]


@dataclass(frozen=True)
class EngineOptions:
    """The engine of a command, and the number of its workers."""

    engine: EngineName = "local"
    workers: Workers = None

    @property
    def local(self) -> bool:
        """True if this process does everything."""
        return self.engine == "local"

    def check(self) -> None:
        """Raises UsageError: the engine is not installed, or has no workers."""
        if self.local and self.workers is not None:
            raise UsageError(
                "--workers must be given with --engine ray, got --engine local", "add --engine ray"
            )
        if not self.local and importlib.util.find_spec("ray") is None:
            raise UsageError("--engine ray needs ray", "pip install 'esa-cli[ray]'")

    @contextmanager
    def open(self, reporter: Reporter, device: str) -> Iterator[TaskEngine]:
        """The engine, for another than `local`. Raises UsageError."""
        from esa_cli.apps.engine.ray_engine import ray_engine

        with ray_engine(reporter, self.workers, device) as engine:
            yield engine


LOCAL = EngineOptions()
