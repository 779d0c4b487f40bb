"""The one check of a document: its manifest's fields, and that every file is complete and has the
contents that the manifest and its name say. `verify` and every copy use it.

The manifests of a stranger may have any contents and a valid checksum; a library's own are only
checked for damage where they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.checksummed_file import damage_error
from esa_cli.storage.library.formats.document_files import check_states, fit_name
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.formats.segment import Segment
from esa_cli.system.text import load_json, text_digest

_UNPACKING = (
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SafetensorError,
    TypeError,
    ValueError,
)
"""What contents of other names, types and shapes raise."""
_STRING = dict.fromkeys(("key", "identity", "fit", "text_sha256"), str)
_INT = dict.fromkeys(("tokens", "head", "characters"), int)
_LIST = dict.fromkeys(("segments", "marks"), list)
_DICT = dict.fromkeys(("layout", "sizes", "digests", "provenance"), dict)
_TYPES: dict[str, Any] = {**_STRING, **_INT, **_LIST, **_DICT, "created": (int, float)}
_LAYOUT: dict[str, Any] = {
    **dict.fromkeys(("layers", "heads", "dim", "fit", "segment"), int),
    **dict.fromkeys(("dtype", "kind", "reduced_dtype"), str),
    "reduced": list,
}
_UNUSUAL: dict[str, Any] = {"shared": bool, "block": int, "states": int, "shapes": list}
"""Settings that a layout names only where they are not as usual."""
_WORDS = ("name", "source", "path", "model", "preset", "esa", "rows")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def document_files(paths: LibraryPaths, entry: Entry) -> list[Path]:
    """The files that a document needs, but its manifest."""
    fit = [] if entry.fit == "none" else [paths.fit(entry.fit)]
    own = [paths.document(entry.key, kind) for kind in entry.kinds]
    return [*map(paths.segment, entry.segments), *fit, *own]


def check_file(file: Path, path: Path, entry: Entry) -> None:
    """Reads every byte of what is, or will be, at `path`. Raises LibraryError: it is missing,
    damaged, or another document's."""
    if path.suffix == ".seg":
        tokens = entry.segment_tokens(entry.segments.index(path.stem))
        Segment(file, entry.layout, tokens, entry.key, path.stem).check()
    else:
        _check_data(path, entry, checksummed_file.read_bytes(file, entry.key))


def _check_data(path: Path, entry: Entry, data: bytes) -> None:
    key, kind = entry.key, path.suffix[1:]
    payload = checksummed_file.decode(data, kind, path, key, entry.digests.get(kind))
    if len(data) != entry.sizes[kind]:
        raise damage_error(path, "it has another size than its document says", key)
    if kind == "text":
        _check_text(path, entry, payload)
    elif kind == "states":
        check_states(payload, path, entry)
    else:
        try:
            good = (_are_tokens if kind == "tokens" else _are_projections)(path, entry, payload)
        except _UNPACKING as error:
            raise damage_error(path, "its contents are not what esa writes", key) from error
        if not good:
            raise damage_error(path, "it belongs to another document", key)


def _check_text(path: Path, entry: Entry, payload: bytes) -> None:
    try:
        text = payload.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise damage_error(path, "it is no text", entry.key) from error
    named = manifest.document_key(entry.identity, text)
    if (named, text_digest(text), len(text)) != (entry.key, entry.text_sha256, entry.characters):
        raise damage_error(path, "it is the text of another document", entry.key)


def _are_tokens(path: Path, entry: Entry, payload: bytes) -> bool:
    """Whether these are the tokens after which the document's segments are named."""
    tensors = load(payload)
    ids, offsets = tensors["ids"].tolist(), tensors["offsets"]
    names = manifest.segment_names(entry.identity, ids, entry.layout)
    return (
        len(ids) == entry.tokens
        and tuple(offsets.shape) == (len(ids), 2)
        and min(ids) >= 0
        and 0 <= int(offsets.min()) <= int(offsets.max()) <= entry.characters
        and names == [name.partition("-")[0] for name in entry.segments]
    )


def _are_projections(path: Path, entry: Entry, payload: bytes) -> bool:
    """Whether these are the projections of that name, of the document's layout."""
    tensors, layout = load(payload), entry.layout
    good = fit_name(payload) == path.stem and int(tensors.pop("layers")) == layout.layers
    for i, width in enumerate(layout.reduced):
        pair = [tensors.pop(f"layers.{i}.{name}") for name in ("query_map", "key_map") if width]
        good = good and all(one.dim() == 2 and one.shape[1] == width for one in pair)
    return good and not tensors


def checked_entry(paths: LibraryPaths, key: str, data: bytes) -> Entry:
    """The entry that the bytes of a manifest contain. Raises ForeignVersionError: it is of another
    format. LibraryError: it is damaged, or has what esa does not write."""
    path = paths.document(key)
    payload = checksummed_file.decode(data, "document", path, key)
    try:
        _check_facts(load_json(payload.decode()))
        entry = manifest.decode_entry(paths, key, data)
        _check_names(paths, entry)
    except _UNPACKING as error:
        raise damage_error(path, "its contents are not what esa writes", key) from error
    return entry


def _check_facts(facts: Mapping[str, Any]) -> None:
    """Raises one of `_UNPACKING`."""
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
    known = facts["provenance"]
    _must({"name", "source", "bytes", "missing"} <= set(known) and _is_count(known["bytes"]))
    _must(all(isinstance(known.get(name, ""), str) for name in _WORDS))
    _must(type(known["missing"]) is list and all(isinstance(one, str) for one in known["missing"]))
    for start, page, chapter in facts["marks"]:
        _must(_is_count(start) and (page is None or type(page) is int))
        _must(chapter is None or isinstance(chapter, str))


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
    files = [*map(paths.segment, entry.segments)]
    files += [] if entry.fit == "none" else [paths.fit(entry.fit)]
    _must(all(map(paths.is_whole, files)))


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _must(good: bool) -> None:
    if not good:
        raise ValueError("a field of a manifest")
