"""Rows whose keys are the values, too: stored once, everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from esa_cli.attention.step import KVStore
from esa_cli.storage.joined_store import JoinedStore, PrefilledDocument, StoreSlice, concatenate
from esa_cli.storage.library import Layout, Library
from esa_cli.storage.library.disk_store import DiskStore
from esa_cli.storage.library.entry_writer import Writer
from esa_cli.storage.library.formats.segment import decode, encode
from esa_cli.storage.memory_store import MemoryStore

HEADS, DIM, COUNT = 1, 6, 50
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("small_segments")


def rows(count: int = COUNT) -> torch.Tensor:
    return torch.randn(HEADS, count, DIM, generator=torch.Generator().manual_seed(5))


def in_memory(keys: torch.Tensor, shared: bool = True) -> MemoryStore:
    store = MemoryStore(HEADS, DIM, torch.float32, CPU, shared)
    store.append(keys, keys)
    return store


def on_host(keys: torch.Tensor, shared: bool = True) -> MemoryStore:
    store = MemoryStore(HEADS, DIM, torch.float32, CPU, shared, on_host=True)
    for piece in keys.split(7, dim=1):
        store.append(piece, piece)
    return store


def on_disk(keys: torch.Tensor, path: Path, kind: str = "native") -> DiskStore:
    layout = Layout(1, HEADS, DIM, "float32", kind, segment=16, shared=True)  # type: ignore[arg-type]
    library, ids = Library(path), [*range(keys.shape[1])]
    with library.write(library.key("model", kind), "model", ids, layout) as writer:
        assert isinstance(writer, Writer)
        writer.layers[0].append(keys, keys)
        writer.flush(None)
        entry = writer.finish(text=kind, offsets=[(0, 1)] * len(ids), projections=[None])
    [store] = library.open(entry).layers()
    return store


def check(store: KVStore, keys: torch.Tensor) -> None:
    """Keys and values are these, by every way."""
    assert store.shared
    length = keys.shape[1]
    assert len(store) == length
    for start, stop in ((0, length), (3, 20), (length - 9, length), (18, 18)):
        assert all(torch.equal(one, keys[:, start:stop]) for one in store.span(start, stop))
    for at in ([], [0, 4, 17, 27, length - 2], [*range(length)]):
        places = torch.tensor(at, dtype=torch.long)
        assert all(torch.equal(one, keys[:, places]) for one in store.gather(places))
    blocks = list(store.key_blocks(2, length - 1, 10))
    assert torch.equal(torch.cat([block for _, block in blocks], 1), keys[:, 2:-1])


def test_in_memory_they_take_half_the_room() -> None:
    keys = rows()
    check(in_memory(keys), keys)
    assert in_memory(keys).nbytes == keys.nbytes
    assert in_memory(keys, shared=False).nbytes == 2 * keys.nbytes
    assert on_host(keys, shared=False).nbytes == 2 * on_host(keys).nbytes > 0


def test_in_host_memory() -> None:
    keys = rows()
    store = on_host(keys)
    check(store, keys)
    store.crop(-20)
    check(store, keys[:, :30])
    store.append(keys[:, 30:], keys[:, 30:])
    store.release()
    check(store, keys)


def test_on_disk_with_a_tail(tmp_path: Path) -> None:
    keys = rows()
    stored = on_disk(keys[:, :40], tmp_path)
    check(stored, keys[:, :40])
    assert stored.nbytes == 40 * DIM * 4
    joined = JoinedStore([StoreSlice(stored, 0, 40)], in_memory(keys[:, 40:]))
    check(joined, keys)


def test_in_bytes(tmp_path: Path) -> None:
    keys = rows()
    stored = on_disk(keys, tmp_path, "int8")
    found, values = stored.span(0, COUNT)
    steps = keys.abs().amax(dim=2, keepdim=True) / 127
    assert ((found - keys).abs() <= 0.5001 * steps).all()
    assert torch.equal(found, values)
    places = torch.tensor([1, 20, 44])
    assert torch.equal(stored.gather(places)[1], found[:, places])
    assert stored.nbytes == COUNT * (DIM + 4)


def test_blocks_of_a_row_have_scales_of_their_own() -> None:
    """So that a large part does not take the others' digits."""
    layout = Layout(1, 2, DIM, "float32", "int8", shared=True, block=3)
    rows = torch.randn(COUNT, 2 * DIM)
    rows[:, 3:6] *= 1000
    records = encode(rows, layout)
    assert records.shape == (COUNT, layout.row_bytes) == (COUNT, 12 + 16)
    found = decode(records, layout)
    blocks = rows.view(COUNT, -1, 3).abs().amax(2).repeat_interleave(3, 1)
    assert ((found - rows).abs() <= 0.5001 * blocks / 127).all()
    assert torch.equal(decode(records, layout, [1]), found[:, DIM:])
    assert Layout.of_json(layout.as_json()) == layout
    with pytest.raises(ValueError, match="block must divide dim 6, got 4"):
        Layout(1, 2, DIM, "float32", block=4)


def test_documents_that_are_joined_keep_them() -> None:
    keys = rows()
    one = PrefilledDocument(range(COUNT), [in_memory(keys)], [None], head=3)
    _, [joined], _ = concatenate([one, one])
    joined.append(keys[:, :4], keys[:, :4])
    check(joined, torch.cat((keys, keys[:, 3:], keys[:, :4]), 1))


def test_layouts_of_other_rows_are_as_they_were() -> None:
    """Names of segments are hashes of them."""
    plain, shared = Layout(2, 1, 6, "float32"), Layout(2, 1, 6, "float32", shared=True)
    assert not {"shared", "block", "states"} & plain.as_json().keys()
    assert (plain.row_bytes, shared.row_bytes) == (48, 24)
    for layout in (plain, shared):
        assert Layout.of_json(layout.as_json()) == layout


def test_segments_of_other_rows_are_refused(tmp_path: Path) -> None:
    parts = on_disk(rows(), tmp_path).parts
    with pytest.raises(ValueError, match="segments must be of"):
        DiskStore(0, parts, HEADS, DIM, torch.float32)
