"""What a shell offers when Tab is pressed: stored documents, presets, models and methods.

Called for each press of Tab, so nothing heavy is imported, and whatever fails offers nothing.
Documents have names that strangers chose, and zsh evaluates what it is offered: a name with
characters that a shell interprets is not offered, its id is.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

_PLAIN = re.compile(r"[\w./@%+=,][\w ./@%+=,-]*")
_RECIPE = re.compile(r'^@recipe\(\s*"([^"]+)"', re.MULTILINE)


class BashWord(str):
    """A word as bash must be given it: bash puts it into the line as it is."""

    def __format__(self, spec: str) -> str:
        return re.sub(r"([^\w./@%+=,:-])", r"\\\1", self)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def documents(incomplete: str) -> list[str]:
    """Names of stored documents, and ids that begin so."""
    from esa_cli.errors import EsaError
    from esa_cli.storage.library import manifest
    from esa_cli.storage.library.library_paths import LibraryPaths, default_root

    try:
        paths = LibraryPaths(default_root())
        paths.check()
        known = {entry.key: entry.name for entry in manifest.read_all(paths)}
    except (EsaError, OSError):
        return []
    times = Counter(known.values())
    plain = {name for name in times if times[name] == 1 and _PLAIN.fullmatch(name)}
    ids = [key[:12] for key, name in sorted(known.items()) if incomplete or name not in plain]
    word = BashWord if os.environ.get("_ESA_COMPLETE") == "complete_bash" else str
    return [word(name) for name in _beginning((*sorted(plain), *ids), incomplete)]


def models(incomplete: str) -> list[str]:
    """Names of known models."""
    from esa_cli.qa.presets.preset_files import known_models

    return _beginning(known_models(), incomplete)


def presets(incomplete: str) -> list[str]:
    """Names of presets."""
    from esa_cli.qa.presets.preset_files import available

    try:
        return _beginning(filter(_PLAIN.fullmatch, sorted(available())), incomplete)
    except OSError:
        return []


def shipped_methods() -> list[str]:
    """Names of the methods that come with esa, from their source: to import them imports torch."""
    folder = Path(__file__).parents[3] / "methods"
    return sorted(
        name for path in folder.glob("*.py") for name in _RECIPE.findall(path.read_text("utf-8"))
    )


def methods(incomplete: str) -> list[str]:
    """Names of methods."""
    return _beginning(shipped_methods(), incomplete)


def method_list(incomplete: str) -> list[str]:
    """The same behind the last comma; `preset` and `text`, too."""
    before, comma, last = incomplete.rpartition(",")
    unused = set(before.split(","))
    names = (name for name in ("preset", "text", *shipped_methods()) if name not in unused)
    return [before + comma + name for name in _beginning(names, last)]


def called_command(environment: Mapping[str, str]) -> str | None:
    """The command whose words a shell wants completed; None where it may be the command itself."""
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()
    is_behind = len(words) > 2 or line[-1:].isspace()
    if "COMP_WORDS" in environment:
        is_behind = (
            environment.get("COMP_CWORD", "").isdigit() and int(environment["COMP_CWORD"]) > 1
        )
    return words[1] if len(words) > 1 and is_behind else None
