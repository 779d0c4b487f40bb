"""Options that divide a command's work among machines, and join what they wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.output_paths import spare
from esa_cli.errors import UsageError
from esa_cli.system.work_shard import WorkShard

Shard = Annotated[
    str | None, option("--shard K/N", "Only the K-th of N parts of the work, as 3/16; see --join.")
]


@dataclass(frozen=True)
class ShardOptions:
    """The shard of a command that writes rows, and files with rows of other shards."""

    shard: Shard = None
    join: Annotated[
        list[Path] | None,
        option("--join FILE", "Take the rows of this --out of a shard first. Repeatable."),
    ] = None

    def check(self, out: Path | None) -> WorkShard:
        """The shard. Raises UsageError: it is none, or a file to join is missing or is --out."""
        for path in self.join or ():
            if not path.is_file():
                raise UsageError(f"--join must be a file, got {path}", "name the --out of a shard")
        spare("--out", out, map(str, self.join or ()), "one of the files of --join")
        return WorkShard.parse(self.shard)
