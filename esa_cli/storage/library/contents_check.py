"""The check of a document's files: whole, and with the contents that its manifest and their names
say. Every copy of a document is held to it, wherever it comes from."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load

from esa_cli.storage.library.formats import checksummed_file, content_names
from esa_cli.storage.library.formats.checksummed_file import damage_error
from esa_cli.storage.library.formats.document_files import fit_name
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.formats.segment import Segment
from esa_cli.storage.library.formats.state_file import check_states
from esa_cli.system.text import text_digest

_UNPACKING = (SafetensorError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
"""What tensors of other names and shapes bring about."""


def document_files(paths: LibraryPaths, entry: Entry) -> list[Path]:
    """The files that a document needs, but its manifest."""
    fit = [] if entry.fit == "none" else [paths.fit(entry.fit)]
    own = [paths.document(entry.key, kind) for kind in entry.kinds]
    return [*map(paths.segment, entry.segments), *fit, *own]


def check_file(file: Path, path: Path, entry: Entry) -> None:
    """Reads every byte of what is, or will be, at `path`. Raises LibraryError: it is missing,
    damaged, or another document's."""
    if path.suffix == ".seg":
        check_segment(file, path, entry)
    else:
        check_data(path, entry, checksummed_file.read_bytes(file, entry.key))


def check_segment(
    file: Path, path: Path, entry: Entry, place: tuple[int, int] | None = None
) -> None:
    """As `check_file`, of a segment. Args: place: see `Segment`."""
    tokens = entry.segment_tokens(entry.segments.index(path.stem))
    Segment(file, entry.layout, tokens, entry.key, path.stem, place).check()


def check_data(path: Path, entry: Entry, data: bytes) -> None:
    """As `check_file`, of the bytes of a file that is no segment."""
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
    named = content_names.document_key(entry.identity, text)
    if (named, text_digest(text), len(text)) != (entry.key, entry.text_sha256, entry.characters):
        raise damage_error(path, "it is the text of another document", entry.key)


def _are_tokens(path: Path, entry: Entry, payload: bytes) -> bool:
    """Whether these are the tokens after which the document's segments are named."""
    tensors = load(payload)
    ids, offsets = tensors["ids"].tolist(), tensors["offsets"]
    names = content_names.segment_names(entry.identity, ids, entry.layout)
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
