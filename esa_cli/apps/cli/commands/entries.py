"""What people see of the library's documents, in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from esa_cli.apps.cli.terminal import one_line
from esa_cli.system.machine import size_text

if TYPE_CHECKING:
    from esa_cli.storage.library import Entry


def facts(entry: Entry) -> dict[str, str]:
    """What a person wants to know of it, by what it is called; `--json` has the settings too."""
    if entry.damage:
        return {"id": entry.key, "document": called(entry)}
    layout = entry.layout
    shown = ("name", "rows")  # above
    known = {
        key: "; ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in entry.provenance.items()
        if key not in shown and value != []
    }
    return {
        "id": entry.key,
        "document": called(entry),
        "size": size_text(entry.nbytes),
        "tokens": f"{entry.tokens:,}",
        "characters": f"{entry.characters:,}",
        "rows": f"{layout.kind}, {layout.layers} layers of {layout.heads} x {layout.dim}, "
        f"{layout.dtype}",
        "read": day(entry.created),
        "used": day(entry.used),
        **known,
    }


def called(entry: Entry) -> str:
    """Its name, or what is wrong with it."""
    if entry.damage:
        return entry.damage if entry.unreadable else f"damaged: {entry.damage}"
    return one_line(entry.name) or "without a name"


def reader(entry: Entry) -> str:
    """The preset that it was read with; documents of older versions do not say."""
    return str(entry.provenance.get("preset", ""))


def day(seconds: float) -> str:
    """Day and minute; nothing for 0."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""
