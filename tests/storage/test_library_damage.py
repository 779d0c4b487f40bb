"""Bits flipped and files cut at random places of a library: all found, none used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from test_library import LAYOUT, WITH, files, finish, ingest, offsets_of, read, rows_of, text_of

from esa_cli.attention.algebra import flatten_keys
from esa_cli.errors import LibraryError
from esa_cli.storage.library import Entry, Layout, Library
from esa_cli.storage.library.entry_writer import Writer
from esa_cli.storage.library.formats import checksummed_file

PLACES = 200
IDS = [*range(40)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library of one document; each test puts back what it damages."""
    library = Library(tmp_path_factory.mktemp("kept"))
    ingest(library, IDS)
    return library


def use(library: Library) -> bool:
    """Finds, opens and reads all of the document; whether everything in it was right."""
    entry = library.find(library.key(WITH, text_of(IDS)))
    if entry is None:
        return False
    stored = library.open(entry)
    good = (stored.text, stored.ids) == (text_of(IDS), IDS)
    good = good and stored.offsets.tolist() == [list(pair) for pair in offsets_of(IDS)]
    assert stored.projections is not None
    for i, (layer, maps) in enumerate(zip(stored.layers(), stored.projections, strict=True)):
        k, v = rows_of(IDS, 0, len(IDS), i)
        good = good and torch.equal(layer.span(0, 40)[0], k)
        good = good and torch.equal(layer.gather(torch.arange(40))[1], v)
        features = torch.cat([block for _, block in layer.feature_blocks(0, 40)])
        assert maps is not None
        good = good and torch.allclose(features, maps.keys(flatten_keys(k)), 1e-4, 1e-4)
    return good


def hurt(data: bytes, draw: random.Random) -> bytes:
    """The data with a bit flipped, cut, or gone on with."""
    what = draw.random()
    if what < 0.7:
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return bytes(changed)
    return data[: draw.randrange(len(data))] if what < 0.95 else data + b"\0"


def test_damage_at_random_places_is_found_and_never_used(kept: Library) -> None:
    draw = random.Random(7)
    names = sorted(files(kept))
    assert len(names) == 7
    entry = kept.entries()[0]
    assert use(kept)
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
                assert kept.entries()[0].damage
        finally:
            path.write_bytes(data)
    assert use(kept)
    assert kept.verify(entry) == []


@pytest.mark.parametrize("kind", ["native", "int8"])
def test_every_byte_of_a_segment_is_covered(tmp_path: Path, kind: str) -> None:
    layout = Layout(1, 1, 2, "bfloat16", kind, reduced=(1,), segment=4)  # type: ignore[arg-type]
    library, ids = Library(tmp_path), [5, 6, 7]
    with library.write(library.key(WITH, text_of(ids)), WITH, ids, layout) as writer:
        assert isinstance(writer, Writer)
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
    return path, LAYOUT.sections(16)[layer].start + row * LAYOUT.row_bytes


def test_only_what_is_used_is_checked(kept: Library) -> None:
    path, at = row_at(kept, 1, 5)
    data = path.read_bytes()
    changed = bytearray(data)
    changed[at + 3] ^= 4
    path.write_bytes(changed)
    try:
        one, two = kept.open(kept.entries()[0]).layers()
        one.span(0, 40)
        two.gather(torch.tensor([4, 6, 39]))
        two.span(6, 40)
        list(two.feature_blocks(0, 40))
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
    section = LAYOUT.sections(16)[0]
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


def test_another_segment_in_its_place_is_found(kept: Library) -> None:
    entry = kept.entries()[0]
    first, second = (kept.root / "segments" / f"{name}.seg" for name in entry.segments[:2])
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    try:
        with pytest.raises(LibraryError, match="another segment"):
            kept.open(entry)
    finally:
        first.write_bytes(data)


@pytest.mark.parametrize("index", range(7))
def test_a_missing_file_is_named(tmp_path: Path, index: int) -> None:
    library = Library(tmp_path)
    entry = ingest(library, IDS)
    path = library.root / sorted(files(library))[index]
    path.unlink()
    with pytest.raises(LibraryError, match=f"{path.name} is missing"):
        library.open(library.find(entry.key) or entry) if path.suffix != ".doc" else use_entry(
            library, entry
        )
    assert any(path.name in error.message for error in library.verify(entry))
    library.remove(entry)
    library.prune()
    assert files(library) == set()
    ingest(library, IDS)
    assert use(library)


def use_entry(library: Library, entry: Entry) -> None:
    """A document whose manifest is gone is not there: `find` says so, `verify` names it."""
    assert library.find(entry.key) is None
    raise library.verify(entry)[0]


def test_a_damaged_document_can_be_removed_and_read_again(tmp_path: Path) -> None:
    library = Library(tmp_path)
    entry, other = ingest(library, IDS), ingest(library, [*range(100, 120)])
    path = library.root / "documents" / f"{entry.key}.doc"
    path.write_bytes(path.read_bytes()[:-1])
    with (
        pytest.raises(LibraryError, match="its length is wrong"),
        library.write(entry.key, WITH, IDS, LAYOUT),
    ):
        raise AssertionError("a damaged document must not be written over")
    (broken,) = library.matches(entry.id)
    library.remove(broken)
    assert {path.partition("/")[2] for path in files(library) if "segments" in path} == {
        f"{name}.seg" for name in other.segments
    }
    ingest(library, IDS)
    assert use(library)
    assert library.verify(other) == []


def test_a_damaged_segment_is_written_again_by_the_next_ingest(tmp_path: Path) -> None:
    library = Library(tmp_path)
    entry = ingest(library, IDS)
    longer = ingest(library, [*range(60)])
    path, at = row_at(library, 0, 3)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert library.verify(entry)
    assert library.verify(longer)
    library.remove(entry)
    ingest(library, IDS)
    assert use(library)
    assert library.verify(longer) == [], "it shares the segment, and has it back"


def test_sealed_lines_have_one_spelling(tmp_path: Path) -> None:
    data, digest = checksummed_file.encode("text", b"hello")
    path = tmp_path / "x"
    assert checksummed_file.decode(data, "text", path, "k" * 40) == b"hello"
    line, _, payload = data.partition(b"\n")
    spelled = [
        line.replace(b" 5 ", b" 05 "), line.upper(), line.replace(b" 1 ", b" 01 "), line + b" ",
        line.replace(digest.encode(), digest.upper().encode()), line.replace(b"text", b"tokens"),
    ]  # fmt: skip
    for wrong in spelled:
        with pytest.raises(LibraryError):
            checksummed_file.decode(wrong + b"\n" + payload, "text", path, "k" * 40)
    with pytest.raises(LibraryError, match="checksum"):
        checksummed_file.decode(data, "text", path, "k" * 40, digest="0" * 64)
