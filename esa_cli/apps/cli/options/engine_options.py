"""Options that say which processes do a command's tasks."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.apps.engine.engine import Engine

EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option(
        "--engine",
        metavar="local|ray",
        help="local: this process, or --workers of this machine; ray: actors of a Ray cluster.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Processes of this machine; of --engine ray actors, else one for each GPU or machine.",
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
        return self.engine == "local" and self.workers is None

    def check(self) -> None:
        """Raises UsageError: the engine is not installed."""
        if self.engine == "ray" and importlib.util.find_spec("ray") is None:
            raise UsageError("--engine ray needs ray", "pip install 'esa-cli[ray]'")

    @contextmanager
    def open(self, reporter: Reporter, device: str) -> Iterator[Engine]:
        """The engine, where not this process does everything. Raises UsageError."""
        if self.engine == "local":
            from esa_cli.apps.engine.engine import LocalEngine

            yield LocalEngine(reporter, self.workers or 1)
            return
        from esa_cli.apps.engine.engine import ray_engine

        with ray_engine(reporter, self.workers, device) as engine:
            yield engine


LOCAL = EngineOptions()
