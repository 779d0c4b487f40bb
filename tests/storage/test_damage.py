"""Segments and small files on disk; bits flipped and files cut at random places of a library: all
found, none used."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from properties import seeds
from test_library import (
    LAYOUT,
    WITH,
    assert_holds,
    files,
    finish,
    ingest,
    offsets_of,
    read,
    rows_of,
    text_of,
)

from esa_cli.attention.algebra import concat_key_heads
from esa_cli.attention.compression import Linear
from esa_cli.errors import LibraryError
from esa_cli.storage.library import Layout, Library
from esa_cli.storage.library.library_copy import pull_documents, push_documents
from esa_cli.storage.library.stored_cache import KVCacheWriter, StoredKVCache

PLACES = 200
IDS = [*range(40)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library of one document; each test puts back what it damages."""
    library = Library(tmp_path_factory.mktemp("kept"))
    ingest(library, IDS)
    return library


def use(library: Library) -> None:
    """Finds, opens and reads all of the document, in which everything must be right."""
    entry = library.find_entry(library.compute_key(WITH, text_of(IDS)))
    assert entry is not None
    stored = library.open_document(entry)
    assert (stored.text, stored.token_ids.tolist()) == (text_of(IDS), IDS)
    assert stored.offsets.tolist() == [list(pair) for pair in offsets_of(IDS)]
    layers = StoredKVCache(stored).layers
    assert_holds(layers, IDS)
    for i, layer in enumerate(layers):
        assert torch.equal(layer.gather(torch.arange(40))[1], rows_of(IDS, 0, len(IDS), i)[1])


def hurt(data: bytes, draw: random.Random) -> bytes:
    """The data with a bit flipped, cut, or gone on with."""
    what = draw.random()
    if what < 0.7:
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return bytes(changed)
    return data[: draw.randrange(len(data))] if what < 0.95 else data + b"\0"


@pytest.mark.parametrize("seed", seeds(1, first=7))
def test_damage_at_random_places_is_found_and_never_used(kept: Library, seed: int) -> None:
    draw = random.Random(seed)
    names = sorted(files(kept))
    assert len(names) == 7
    entry = kept.entries()[0]
    use(kept)
    for i in range(PLACES):
        path = kept.root / names[i % len(names)]
        data = path.read_bytes()
        path.write_bytes(hurt(data, draw))
        try:
            with pytest.raises(LibraryError):
                use(kept)
            found = kept.verify(entry)
            assert [path.name in error.message for error in found] == [True]
            assert f"esa library rm {entry.id}" in found[0].hint
            if path.suffix == ".doc":
                assert kept.entries()[0].damage_reason
        finally:
            path.write_bytes(data)
    use(kept)
    assert kept.verify(entry) == []


@pytest.mark.parametrize("kind", ["native", "int8"])
def test_every_byte_of_a_segment_is_covered(tmp_path: Path, kind: str) -> None:
    layout = Layout(1, 1, 2, "bfloat16", kind, reduced=(1,), segment=4)  # type: ignore[arg-type]
    library, ids = Library(tmp_path), [5, 6, 7]
    key = library.compute_key(WITH, text_of(ids))
    with library.open_writer(KVCacheWriter, key, WITH, ids, layout) as writer:
        read(writer, ids)
        entry = finish(writer, ids)
    (path,) = tmp_path.rglob("*.seg")
    data = path.read_bytes()
    assert len(data) == 8192
    for at in [*range(0, 4096, 43), *range(4096, 4300), *range(4300, 8192, 67)]:
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert library.verify(entry), at
    path.write_bytes(data)
    assert library.verify(entry) == []


def row_at(library: Library, layer: int, row: int) -> tuple[Path, int]:
    """Where a row of the first segment stands."""
    entry = library.entries()[0]
    path = library.root / "segments" / f"{entry.segments[0]}.seg"
    return path, LAYOUT.locate_layers(16)[layer].start + row * LAYOUT.row_bytes


def test_only_what_is_used_is_checked(kept: Library) -> None:
    path, at = row_at(kept, 1, 5)
    data = path.read_bytes()
    changed = bytearray(data)
    changed[at + 3] ^= 4
    path.write_bytes(changed)
    try:
        one, two = StoredKVCache(kept.open_document(kept.entries()[0])).layers
        one.span(0, 40)
        two.gather(torch.tensor([4, 6, 39]))
        two.span(6, 40)
        list(two.get_reduced_blocks(0, 40))
        for _ in range(2):
            with pytest.raises(LibraryError, match="row 5 of layer 1 changed"):
                two.gather(torch.tensor([4, 5]))
        with pytest.raises(LibraryError, match="row 5 of layer 1"):
            two.span(0, 6)
        with pytest.raises(LibraryError, match="row 5 of layer 1"):
            list(two.key_blocks(0, 40))
    finally:
        path.write_bytes(data)


def test_good_rows_in_wrong_places_are_found(kept: Library) -> None:
    """A disk that writes a block where another belongs: two rows and their checksums change
    places, and so do two layers."""
    path, at = row_at(kept, 0, 2)
    data, size = path.read_bytes(), LAYOUT.row_bytes
    section = LAYOUT.locate_layers(16)[0]
    changed = bytearray(data)
    changed[at : at + size], changed[at + size : at + 2 * size] = (
        data[at + size : at + 2 * size],
        data[at : at + size],
    )
    sums = section.sums + 2 * 8
    changed[sums : sums + 16] = data[sums + 8 : sums + 16] + data[sums : sums + 8]
    path.write_bytes(changed)
    try:
        assert kept.verify(kept.entries()[0])
    finally:
        path.write_bytes(data)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    library = Library(tmp_path)
    ingest(library, IDS)
    for name in sorted(files(library)):
        entry = ingest(library, IDS)
        path = library.root / name
        path.unlink()
        if path.suffix == ".doc":
            assert library.find_entry(entry.key) is None
        else:
            with pytest.raises(LibraryError, match=f"{path.name} is missing"):
                StoredKVCache(library.open_document(entry))
        assert any(path.name in error.message for error in library.verify(entry))
        library.remove(entry)
        library.prune()
        assert files(library) == set()
    ingest(library, IDS)
    use(library)


def test_a_damaged_document_can_be_removed_and_read_again(tmp_path: Path) -> None:
    library = Library(tmp_path)
    entry, longer = ingest(library, IDS), ingest(library, [*range(60)])
    path = library.root / "documents" / f"{entry.key}.doc"
    path.write_bytes(path.read_bytes()[:-1])
    with (
        pytest.raises(LibraryError, match="length or checksum is wrong"),
        library.open_writer(KVCacheWriter, entry.key, WITH, IDS, LAYOUT),
    ):
        raise AssertionError("a damaged document must not be written over")
    (broken,) = library.match_entries(entry.id)
    library.remove(broken)
    assert {path.partition("/")[2] for path in files(library) if "segments" in path} == {
        f"{name}.seg" for name in longer.segments
    }
    path = library.root / "segments" / f"{longer.segments[0]}.seg"
    data = bytearray(path.read_bytes())
    data[LAYOUT.locate_layers(16)[0].start + 3 * LAYOUT.row_bytes] ^= 1
    path.write_bytes(data)
    assert library.verify(longer)
    ingest(library, IDS)
    use(library)
    assert library.verify(longer) == [], "it shares the segment, and has it back"


@pytest.mark.parametrize("kind", ["native", "int8"])
def test_rows_of_several_sizes(tmp_path: Path, kind: Any) -> None:
    """Also of a copy; a manifest of another format keeps older versions from reading them."""
    shapes, count = ((2, 4), (1, 6), (3, 2)), 50
    layout = Layout(3, 1, 6, "float32", kind, (0, 2, 0), segment=16, shapes=shapes)
    library = Library(tmp_path / "one")
    key = library.compute_key(WITH, "x")
    with library.open_writer(KVCacheWriter, key, WITH, [*range(count)], layout) as writer:
        given = [torch.randn(2, heads, count, dim) for heads, dim in shapes]
        maps = [None, Linear(torch.randn(6, 2), torch.randn(6, 2)), None]
        for layer, rows, one in zip(writer.layers, given, maps, strict=True):
            layer.append(*rows)
            if one is not None:
                layer.append_reduced_keys(one.keys(concat_key_heads(rows[0])))
        known = {"name": "x", "source": "x", "bytes": 1, "missing": []}
        entry = writer.finish_document(
            text="x", offsets=[(0, 1)] * count, projections=maps, provenance=known
        )
    manifest = (library.root / "documents" / f"{entry.key}.doc").read_bytes()
    assert manifest.startswith(b"esa-library document 3 ")
    assert entry.nbytes > layout.compute_segment_bytes(count) == entry.sizes["segments"]
    push_documents(library, str(tmp_path / "one.tar"), [entry])
    other = Library(tmp_path / "other")
    assert pull_documents(other, str(tmp_path / "one.tar")).copied == [entry.key]
    layers = StoredKVCache(other.open_document(other.entries()[0])).layers
    assert [(one.heads, one.dim) for one in layers] == [*shapes]
    at = torch.tensor([3, 17, 40])
    for stored, (keys, values) in zip(layers, given, strict=True):
        apart = 0 if kind == "native" else float(torch.stack((keys, values)).abs().max()) / 127
        for mine, want in zip(stored.span(0, count), (keys, values), strict=True):
            torch.testing.assert_close(mine, want, atol=apart, rtol=0)
        for mine, want in zip(stored.gather(at), stored.span(0, count), strict=True):
            assert torch.equal(mine, want[:, at])
    assert [one.nbytes for one in layers] == [layout.count_token_bytes(i) * count for i in range(3)]


def test_layouts_that_make_no_sense() -> None:
    for wrong in (
        {"dtype": "int4"}, {"kind": "fp8"}, {"reduced": (1,)}, {"reduced": (1, -1)}, {"layers": 0},
        {"reduced_dtype": "float64"}, {"fit": -1}, {"block": 3}, {"layers": 10**12}, {"states": -1},
        {"shapes": ((2, 4),)}, {"shapes": ((2, 4), (0, 4))}, {"shapes": ((2, 4), (2, -1))},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"layout|layers must be"):
            Layout(**{"layers": 2, "heads": 2, "dim": 4, "dtype": "float32", **wrong})
    assert Layout(**LAYOUT.to_json()) == LAYOUT
    plain, shared = (Layout(2, 1, 6, "float32"), Layout(2, 1, 6, "float32", shared=True))
    assert not {"shared", "block", "states"} & plain.to_json().keys(), "names are hashes of these"
    assert Layout(**shared.to_json()) == shared
