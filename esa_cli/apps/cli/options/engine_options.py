"""Options that divide a command's work among processes and machines, and join what they wrote."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.errors import UsageError
from esa_cli.system.work_shard import WorkShard

EngineName = Annotated[
    Literal["local", "ray"],
    option(
        "--engine local|ray",
        "local: this process, or --workers of this machine; ray: actors of a Ray cluster.",
    ),
]
Workers = Annotated[
    int | None,
    option(
        "--workers N",
        "Processes of this machine; of --engine ray actors, else one for each GPU or machine.",
        min=1,
    ),
]
Shard = Annotated[
    str | None, option("--shard K/N", "Only the K-th of N parts of the work, as 3/16; see --join.")
]
Join = Annotated[
    list[Path] | None,
    option("--join FILE", "Take the rows of this --out of a shard first. Repeatable."),
]


@dataclass(frozen=True)
class EngineOptions:
    """The processes of `esa ingest`."""

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


@dataclass(frozen=True)
class ShardOptions:
    """The shard of a command that writes rows, and files with rows of other shards."""

    shard: Shard = None
    join: Join = None

    def check(self, out: Path | None) -> WorkShard:
        """The shard. Raises UsageError: it is none, or a file to join is missing or is --out."""
        for path in self.join or ():
            if not path.is_file():
                raise UsageError(f"--join must be a file, got {path}", "name the --out of a shard")
        files.spare("--out", out, map(str, self.join or ()), "one of the files of --join")
        return WorkShard.parse(self.shard)
