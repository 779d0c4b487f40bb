"""Packs, unpacks and checks a document's files of token ids, recurrent states and projections.

A stranger can write any contents with a valid checksum, so the contents of every file are checked
before the file is copied into the library."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from esa_cli.attention.compression import Linear, make_named_projection_tensors
from esa_cli.storage.library import disk, document_files
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import KVSegmentFile, LibraryEntry
from esa_cli.system.text import digest_text

State = dict[str, Tensor]
"""The state of one recurrent layer: its tensors by name."""
Projections = Sequence[Linear | None]
"""A projection for each layer, or None for a layer without reduced keys."""
_STATE_NAME = re.compile(r"([0-9]+)\.((?:conv|recurrent)\.[0-9]+)")
_PROVENANCE = {"name": str, "source": str, "bytes": int, "missing": list}
UNPACKING = (
    AttributeError, LookupError, OverflowError, RecursionError, RuntimeError, SafetensorError,
    TypeError, ValueError,
)  # fmt: skip
"""Exceptions raised when a file has unexpected names, types or shapes."""


def pack_tokens(token_ids: Sequence[int], offsets: Sequence[tuple[int, int]] | Tensor) -> bytes:
    """Packs a document's token ids (n,) and the tokens' character offsets (n, 2) as bytes."""
    spans = torch.as_tensor(offsets, dtype=torch.int64).reshape(-1, 2)
    numbers = torch.from_numpy(numpy.array(token_ids, dtype=numpy.int64))
    return save({"ids": numbers, "offsets": spans.contiguous()})


def unpack_tokens(packed_tokens: bytes) -> tuple[Tensor, Tensor]:
    """Unpacks the token ids (n,) and the tokens' character offsets (n, 2) of a document."""
    tensors = load(packed_tokens)
    return tensors["ids"], tensors["offsets"]


def pack_recurrent_states(segment_hash: str, states: Sequence[Mapping[str, Tensor]]) -> bytes:
    tensors = {
        f"{layer}.{name}": tensor.cpu().contiguous()
        for layer, state in enumerate(states)
        for name, tensor in state.items()
    }
    return f"{segment_hash}\n".encode() + save({"layers": torch.tensor(len(states)), **tensors})


def unpack_recurrent_states(packed_states: bytes, layers: int) -> tuple[str, list[State]]:
    """Unpacks the hash of a segment, and the states of `layers` recurrent layers after the
    segment's last token. Raises an exception of `UNPACKING`: they are damaged."""
    name, _, packed = packed_states.partition(b"\n")
    tensors = load(packed)
    # Before a list of so many is made: a stranger's file may say any number.
    if not int(tensors.pop("layers")) == layers <= len(tensors):
        raise ValueError("the number of recurrent layers is wrong")
    states: list[State] = [{} for _ in range(layers)]
    for tensor, value in sorted(tensors.items()):
        match = _STATE_NAME.fullmatch(tensor)
        if match is None:
            raise ValueError(tensor)
        states[int(match[1])][match[2]] = value
    return name.decode("ascii"), states


def pack_projections(projections: Projections) -> bytes:
    layers = {"layers": torch.tensor(len(projections))}
    return save({**layers, **make_named_projection_tensors(projections)})


def unpack_projections(packed_projections: bytes) -> list[Linear | None]:
    tensors, projections = load(packed_projections), list[Linear | None]()
    for i in range(int(tensors["layers"])):
        pair = [tensors.get(f"layers.{i}.{name}") for name in ("query_map", "key_map")]
        is_reduced = pair[0] is not None and pair[1] is not None
        projections.append(Linear(*pair) if is_reduced else None)  # type: ignore[arg-type]
    return projections


def hash_projections(packed_projections: bytes) -> str:
    return hashlib.blake2b(packed_projections, digest_size=12).hexdigest()


def verify_document_file(path: Path, entry: LibraryEntry) -> None:
    """Checks every byte of a document's file, which may have its temporary name. Raises
    LibraryError: the file is missing, damaged, or belongs to another document."""
    key, (stem, kind) = entry.key, disk.split_file_name(path)
    if kind == "segment":
        tokens = entry.count_segment_tokens(entry.segments.index(stem))
        KVSegmentFile(path, entry.layout, tokens, key).verify_all_bytes()
        return
    data = disk.read_file_bytes(path, key)
    payload = disk.unpack_checksummed_file(data, path, key, entry.digests.get(kind))
    try:
        belongs = len(data) == entry.sizes[kind] and _matches_manifest(entry, payload, path)
    except UNPACKING as error:
        raise disk.make_damage_error(path, "its contents are not what esa writes", key) from error
    if not belongs:
        raise disk.make_damage_error(path, "it belongs to another document", key)


def _matches_manifest(entry: LibraryEntry, payload: bytes, path: Path) -> bool:
    layout, identity, (stem, file_kind) = entry.layout, entry.identity, disk.split_file_name(path)
    if file_kind == "text":
        text = payload.decode("utf-8", "surrogatepass")
        facts = disk.compute_document_key(identity, text), digest_text(text), len(text)
        return facts == (entry.key, entry.text_sha256, entry.characters)
    prefixes = [*map(document_files.extract_segment_hash, entry.segments)]
    if file_kind == "states":
        return unpack_recurrent_states(payload, layout.states)[0] == prefixes[-1]
    if file_kind == "tokens":
        numbers, offsets = unpack_tokens(payload)
        ids = numbers.tolist()
        return (
            len(ids) == entry.tokens
            and tuple(offsets.shape) == (len(ids), 2)
            and min(ids) >= 0
            and 0 <= int(offsets.min()) <= int(offsets.max()) <= entry.characters
            and document_files.compute_segment_hashes(identity, ids, layout) == prefixes
        )
    tensors = load(payload)
    good = hash_projections(payload) == stem and int(tensors.pop("layers")) == layout.layers
    for i, width in enumerate(layout.reduced):
        pair = [tensors.pop(f"layers.{i}.{name}") for name in ("query_map", "key_map") if width]
        good = good and all(matrix.dim() == 2 and matrix.shape[1] == width for matrix in pair)
    return good and not tensors


def decode_untrusted_manifest(paths: LibraryPaths, key: str, manifest_bytes: bytes) -> LibraryEntry:
    """Checks and decodes a manifest that a stranger may have written. Raises LibraryError: the
    manifest is damaged, has another format, or has contents that esa does not write."""
    path = paths.get_document_path(key)
    payload = disk.unpack_checksummed_file(manifest_bytes, path, key)
    try:
        TypeAdapter(LibraryEntry).validate_json(payload)
        entry = document_files.decode_manifest(paths, key, manifest_bytes)
        has_all = set(json.loads(payload)) == set(entry.make_manifest_fields())
        if not has_all or not _is_manifest_consistent(paths, entry):
            raise ValueError("the manifest's fields or numbers are wrong")
    except UNPACKING as error:
        raise disk.make_damage_error(path, "its contents are not what esa writes", key) from error
    return entry


def _is_manifest_consistent(paths: LibraryPaths, entry: LibraryEntry) -> bool:
    layout, sizes, known = entry.layout, entry.sizes, entry.provenance
    counts = [entry.head, entry.characters, *sizes.values(), *(mark[0] for mark in entry.marks)]
    return (
        all(type(known[name]) is kind for name, kind in _PROVENANCE.items())
        and min(counts) >= 0
        and 0 < entry.tokens >= entry.head
        and 0 <= entry.created < 1 << 40
        and len(entry.segments) == -(-entry.tokens // layout.segment)
        and layout.compute_segment_bytes(entry.tokens) == sizes["segments"]
        and set(sizes) == {"segments", "fit", *entry.unshared_file_suffixes}
        and set(entry.digests) == {"text", "tokens"}
        and all(name.partition("-")[2] == entry.fit for name in entry.segments)
        and all(map(paths.is_complete_file_name, document_files.list_document_files(paths, entry)))
    )
