"""The distributions that requirements need, by what is installed here."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(requirements: list[str]) -> set[str]:
    """The installed distributions that these need, themselves included."""
    found: set[str] = set()
    todo = [(Requirement(text), "") for text in requirements]
    while todo:
        one, extra = todo.pop()
        name = canonicalize_name(one.name)
        wanted = one.marker is None or one.marker.evaluate({"extra": extra})
        if not wanted or name in found:
            continue
        found.add(name)
        try:
            below = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        todo += [(Requirement(text), more) for text in below for more in (one.extras or {""})]
    return found
