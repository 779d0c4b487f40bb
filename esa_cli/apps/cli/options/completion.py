"""What a shell offers when Tab is pressed: stored documents, presets and models.

Called for each press of Tab, so nothing heavy is imported, and whatever fails offers nothing.
Documents have names that strangers chose, and zsh evaluates what it is offered: a name with
spaces, or characters that a shell interprets, is not offered, its id is.
"""

from __future__ import annotations

import re
from collections import Counter

_PLAIN = re.compile(r"[\w./@%+=,][\w./@%+=,-]*")


def documents(incomplete: str) -> list[str]:
    """Offers names of stored documents, and ids where a name is not plain or unique."""
    from esa_cli.errors import EsaError
    from esa_cli.storage.library import manifest
    from esa_cli.storage.library.disk import LibraryPaths, default_root

    try:
        paths = LibraryPaths(default_root())
        paths.check()
        known = {entry.key: entry.name for entry in manifest.read_entries(paths)}
    except (EsaError, OSError):
        return []
    times = Counter(known.values())
    plain = {name for name in times if times[name] == 1 and _PLAIN.fullmatch(name)}
    ids = [key[:12] for key, name in sorted(known.items()) if incomplete or name not in plain]
    return [name for name in (*sorted(plain), *ids) if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Offers names of known models."""
    from esa_cli.qa.presets.preset_files import known_models

    return [name for name in known_models() if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    """Offers names of presets."""
    from esa_cli.qa.presets.preset_files import available

    try:
        names = sorted(filter(_PLAIN.fullmatch, available()))
    except OSError:
        return []
    return [name for name in names if name.startswith(incomplete)]
