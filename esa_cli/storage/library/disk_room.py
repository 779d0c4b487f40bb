"""Free space on the disk of a library, whose folder need not exist."""

from __future__ import annotations

import shutil
from pathlib import Path

from esa_cli.errors import DiskError
from esa_cli.system.machine import size_text


def nearest_folder(root: Path) -> Path:
    """The folder, or the nearest above that exists."""
    folder = root.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def check_room(root: Path, nbytes: int) -> None:
    """Raises DiskError if the disk has less free space."""
    free = shutil.disk_usage(nearest_folder(root)).free
    if free < nbytes:
        raise DiskError(
            f"the document would take {size_text(nbytes)} in the library {root}, and the "
            f"disk has {size_text(free)} left",
            "free some space, `esa library prune`, or point ESA_LIBRARY to another disk",
        )
