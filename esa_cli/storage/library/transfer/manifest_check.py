"""The check of manifests that came from elsewhere: every field.

A library's own manifests are only checked for damage. Those of a stranger may have any contents and
a valid checksum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.checksummed_file import damage_error
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.system.text import load_json

_TYPES: dict[str, type | tuple[type, ...]] = {
    "key": str,
    "identity": str,
    "layout": dict,
    "tokens": int,
    "head": int,
    "segments": list,
    "fit": str,
    "sizes": dict,
    "digests": dict,
    "text_sha256": str,
    "characters": int,
    "marks": list,
    "provenance": dict,
    "created": (int, float),
}
_LAYOUT: dict[str, type] = {
    "layers": int,
    "heads": int,
    "dim": int,
    "dtype": str,
    "kind": str,
    "reduced": list,
    "reduced_dtype": str,
    "fit": int,
    "segment": int,
}
_UNUSUAL: dict[str, type] = {"shared": bool, "block": int, "states": int, "shapes": list}
"""Settings that a layout names only where they are not as usual."""
_WORDS = ("name", "source", "path", "model", "preset", "esa", "rows")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def checked_entry(paths: LibraryPaths, key: str, data: bytes) -> Entry:
    """The entry that the bytes of a manifest contain. Raises ForeignVersionError: it is of another
    format. LibraryError: it is damaged, or has what esa does not write."""
    path = paths.document(key)
    try:
        _check_facts(load_json(checksummed_file.decode(data, "document", path, key).decode()))
        entry = manifest.decode_entry(paths, key, data)
        _check_names(paths, entry)
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise damage_error(path, "its contents are not what esa writes", key) from error
    return entry


def _check_facts(facts: Mapping[str, Any]) -> None:
    """Raises ValueError, or what wrong types bring about."""
    _check_types(facts, _TYPES)
    layout = facts["layout"]
    unusual = {name: kind for name, kind in _UNUSUAL.items() if name in layout}
    _check_types(layout, _LAYOUT | unusual)
    # Counted before a layout is made: it would fill a list of so many layers.
    _must(len(layout["reduced"]) == layout["layers"] and all(map(_is_count, layout["reduced"])))
    for heads, dim in layout.get("shapes", ()):
        _must(_is_count(heads) and _is_count(dim))
    _must(facts["tokens"] > 0 and 0 <= facts["head"] <= facts["tokens"])
    _must(facts["characters"] >= 0 and 0 <= facts["created"] < 1 << 40)
    _must(all(map(_is_count, facts["sizes"].values())))
    _must(set(facts["digests"]) == {"text", "tokens"})
    for digest in (*facts["digests"].values(), facts["text_sha256"]):
        _must(_DIGEST.fullmatch(digest) is not None)
    _check_provenance(facts["provenance"])
    for start, page, chapter in facts["marks"]:
        _must(_is_count(start) and (page is None or type(page) is int))
        _must(chapter is None or isinstance(chapter, str))


def _check_provenance(known: Mapping[str, Any]) -> None:
    _must({"name", "source", "bytes", "missing"} <= set(known) and _is_count(known["bytes"]))
    _must(all(isinstance(known.get(name, ""), str) for name in _WORDS))
    missing = known["missing"]
    _must(isinstance(missing, list) and all(isinstance(one, str) for one in missing))


def _check_types(facts: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    _must(set(facts) == set(types))
    for name, kind in types.items():
        _must(isinstance(facts[name], kind) and (kind is bool or type(facts[name]) is not bool))


def _check_names(paths: LibraryPaths, entry: Entry) -> None:
    """Every file that it names is one that esa makes, of its own."""
    layout = entry.layout
    _must(len(entry.segments) == -(-entry.tokens // layout.segment))
    _must(set(entry.sizes) == {"segments", "fit", *entry.kinds})
    _must(layout.nbytes(entry.tokens) == entry.sizes["segments"])
    _must(all(name.partition("-")[2] == entry.fit for name in entry.segments))
    files: list[Path] = [*map(paths.segment, entry.segments)]
    _must(
        all(map(paths.is_whole, files if entry.fit == "none" else [*files, paths.fit(entry.fit)]))
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _must(good: bool) -> None:
    if not good:
        raise ValueError("a field of a manifest")
