"""The check that a document's contents are those that its manifest and their names say."""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load

from esa_cli.storage.library.formats import checksummed_file, content_names
from esa_cli.storage.library.formats.checksummed_file import damage_error
from esa_cli.storage.library.formats.document_files import fit_name
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.system.text import text_digest

_UNPACKING = (SafetensorError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
"""What tensors of other names and shapes bring about."""


def check_contents(paths: LibraryPaths, entry: Entry, text: bytes, tokens: bytes) -> None:
    """Checks a document's text and tokens files, whose bytes these are, and that its name and those
    of its segments are of these contents. Raises LibraryError: they are damaged or others."""
    key, path = entry.key, paths.document(entry.key, "text")
    written = checksummed_file.decode(text, "text", path, key, entry.digests["text"])
    try:
        words = written.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise damage_error(path, "it is no text", key) from error
    named = content_names.document_key(entry.identity, words)
    if (named, text_digest(words), len(words)) != (key, entry.text_sha256, entry.characters):
        raise damage_error(path, "it is the text of another document", key)
    path = paths.document(key, "tokens")
    packed = checksummed_file.decode(tokens, "tokens", path, key, entry.digests["tokens"])
    try:
        found = load(packed)
        ids, offsets = found["ids"].tolist(), found["offsets"]
        names = content_names.segment_names(entry.identity, ids, entry.layout)
        good = len(ids) == entry.tokens and tuple(offsets.shape) == (len(ids), 2)
        good = (
            good and min(ids) >= 0 and 0 <= int(offsets.min()) <= int(offsets.max()) <= len(words)
        )
    except _UNPACKING as error:
        raise damage_error(path, "it has no tokens as esa writes them", key) from error
    if not good or names != [name.partition("-")[0] for name in entry.segments]:
        raise damage_error(path, "it has the tokens of another document", key)


def check_projections(paths: LibraryPaths, entry: Entry, data: bytes) -> None:
    """Checks the file of its projections, whose bytes these are. Raises LibraryError: they are
    damaged, or do not fit its layout."""
    key, layout, path = entry.key, entry.layout, paths.fit(entry.fit)
    packed = checksummed_file.decode(data, "fit", path, key)
    try:
        found = load(packed)
        good = fit_name(packed) == entry.fit and int(found.pop("layers")) == layout.layers
        for i, width in enumerate(layout.reduced):
            pair = [found.pop(f"layers.{i}.{name}") for name in ("query_map", "key_map") if width]
            good = good and all(one.dim() == 2 and one.shape[1] == width for one in pair)
    except _UNPACKING as error:
        raise damage_error(path, "it has no projections as esa writes them", key) from error
    if not good or found:
        raise damage_error(path, "it has other projections than its name says", key)
