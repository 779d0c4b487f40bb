"""Completes names of stored documents, presets and models in a shell when Tab is pressed.

As this module runs at each press of Tab, it imports nothing slow, and after an error it offers no
completions. For a document whose name has spaces or special characters the document's id is
offered, because the shell zsh evaluates completions as code."""

from __future__ import annotations

import re
from collections import Counter

_PLAIN = re.compile(r"[\w./@%+=,][\w./@%+=,-]*")


def complete_document_names(typed_text: str) -> list[str]:
    """Returns completions for stored documents: names, or ids for unsafe or ambiguous names."""
    from esa_cli.errors import EsaError
    from esa_cli.storage.library import document_files
    from esa_cli.storage.library.disk import LibraryPaths, get_library_folder

    try:
        paths = LibraryPaths(get_library_folder())
        paths.refuse_folder_without_marker()
        known = {entry.key: entry.name for entry in document_files.read_manifests(paths)}
    except (EsaError, OSError):
        return []
    times = Counter(known.values())
    plain = {name for name in times if times[name] == 1 and _PLAIN.fullmatch(name)}
    ids = [key[:12] for key, name in sorted(known.items()) if typed_text or name not in plain]
    return [name for name in (*sorted(plain), *ids) if name.startswith(typed_text)]


def complete_model_names(typed_text: str) -> list[str]:
    from esa_cli.qa.presets.preset_files import load_known_models

    return [name for name in load_known_models() if name.startswith(typed_text)]


def complete_preset_names(typed_text: str) -> list[str]:
    from esa_cli.qa.presets.preset_files import list_preset_files

    try:
        names = sorted(filter(_PLAIN.fullmatch, list_preset_files()))
    except OSError:
        return []
    return [name for name in names if name.startswith(typed_text)]
