"""A stored document for people: its row in a table, its facts, its name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from esa_cli.apps.cli.output.terminal import one_line
from esa_cli.system.machine import size_text

if TYPE_CHECKING:
    from esa_cli.storage.library import Entry


def table_row(entry: Entry) -> tuple[str, ...]:
    """Id, tokens, size, last use, preset, kind of rows and name."""
    return (
        entry.id,
        f"{entry.tokens:,}",
        size_text(entry.nbytes),
        minute(entry.used),
        str(entry.provenance.get("preset", "")),
        "" if entry.damage else entry.rows,
        entry_label(entry),
    )


def facts(entry: Entry) -> dict[str, str]:
    """Labels and values of a stored document for people; `--json` has the settings too."""
    if entry.damage:
        return {"id": entry.key, "document": entry_label(entry)}
    layout = entry.layout
    sizes = dict.fromkeys(layout.shapes) or {(layout.heads, layout.dim): None}
    each = " or ".join(f"{heads} x {dim}" for heads, dim in sizes)
    shape = f"{layout.layers} layers of {each}, {layout.dtype}"
    states = size_text(entry.sizes["states"]) if layout.states else ""
    path = entry.provenance.get("path")
    shown = {"name", "rows"}  # above
    if not path or path == entry.provenance.get("source"):
        shown.add("path")
    known = {
        key: "; ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in entry.provenance.items()
        if key not in shown and value != []
    }
    return {
        "id": entry.key,
        "document": entry_label(entry),
        "size": size_text(entry.nbytes),
        "tokens": f"{entry.tokens:,}",
        "characters": f"{entry.characters:,}",
        "rows": f"index, {layout.width} numbers a token"
        if entry.rows == "index"
        else f"{layout.kind}, {shape}",
        **({"states": f"of {layout.states} layers, {states}"} if states else {}),
        "read": minute(entry.created),
        "used": minute(entry.used),
        **known,
    }


def entry_label(entry: Entry) -> str:
    """Its name, or what is wrong with it."""
    if entry.damage:
        damage = one_line(entry.damage)
        return damage if entry.state == "unreadable" else f"{entry.state}: {damage}"
    return one_line(entry.name) or "without a name"


def minute(seconds: float) -> str:
    """Day and minute; nothing for 0."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""
