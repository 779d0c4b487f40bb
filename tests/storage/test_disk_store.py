"""DiskStore, alone and with a tail, against MemoryStore: the same numbers for the same rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from test_library import LAYOUT, WITH, finish, fit_of, ingest, read, rows_of

from esa_cli.attention.compression import Linear
from esa_cli.attention.folding import flatten_keys
from esa_cli.attention.interfaces import KVStore
from esa_cli.storage.joined_store import JoinedStore, StoreSlice
from esa_cli.storage.library import Layout, Library
from esa_cli.storage.library.disk_store import DiskStore
from esa_cli.storage.library.entry_writer import Writer
from esa_cli.storage.library.formats.int8_rows import decode, encode
from esa_cli.storage.library.formats.segment import Segment
from esa_cli.storage.library.transfer.library_export import export_documents, import_documents
from esa_cli.storage.memory_store import MemoryStore

pytestmark = pytest.mark.usefixtures("small_segments")
CPU = torch.device("cpu")


def with_tail(stored: DiskStore) -> JoinedStore:
    tail = MemoryStore(stored.heads, stored.dim, stored.dtype, stored.device)
    return JoinedStore([StoreSlice(stored, 0, len(stored))], tail)


def pair(
    path: Path, count: int, tail: int, layout: Layout = LAYOUT
) -> tuple[JoinedStore, MemoryStore, int]:
    """A layer with `count` stored tokens and a tail, and a MemoryStore of the same tokens."""
    library, ids = Library(path), [*range(count + tail)]
    with library.write(library.key(WITH, "x"), WITH, ids[:count], layout) as writer:
        assert isinstance(writer, Writer)
        read(writer, ids[:count])
        entry = writer.finish(
            text="x", offsets=[(0, 1)] * count, projections=fit_of(ids[:count], layout)
        )
    at = 1
    stored = with_tail(library.open(entry).layers()[at])
    plain = MemoryStore(layout.heads, layout.dim, stored.tail.dtype, CPU)
    k, v = rows_of(ids, 0, count + tail, at, layout)
    plain.append(k, v)
    stored.append(k[:, count:], v[:, count:])
    maps = fit_of(ids[:count], layout)[at]
    if maps is not None:
        features = maps.keys(flatten_keys(k))
        plain.append_features(torch.cat([b for _, b in stored.feature_blocks(0, count)]))
        for store in (plain, stored):
            store.append_features(features[count : count + tail // 2])
    return stored, plain, count + tail


def assert_same(stored: KVStore, plain: KVStore, draw: random.Random) -> None:
    """Every way of reading gives the same, on random ranges."""
    length = len(plain)
    assert len(stored) == length
    assert stored.reduced == plain.reduced
    for _ in range(6):
        low, high = sorted(draw.randint(0, length) for _ in range(2))
        most = draw.choice([1, 5, 1000])
        for ours, theirs in zip(stored.span(low, high), plain.span(low, high), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.dtype == theirs.dtype
        at = torch.tensor(sorted(draw.sample(range(length), draw.randint(0, length))))
        at = at.to(torch.long)
        for ours, theirs in zip(stored.gather(at), plain.gather(at), strict=True):
            assert torch.equal(ours, theirs)
        place, found = low, [torch.empty(plain.heads, 0, plain.dim, dtype=ours.dtype)]
        for start, keys in stored.key_blocks(low, high, most):
            assert start == place
            assert 0 < keys.shape[1] <= most
            place += keys.shape[1]
            found.append(keys)
        assert place == high
        whole = plain.span(low, high)[0]
        assert torch.equal(torch.cat(found, 1), whole)
        for groups in ([1], [1, 0]):
            parts = [keys for _, keys in stored.key_blocks(low, high, most, groups)]
            assert torch.equal(torch.cat([found[0][groups], *parts], 1), whole[groups])
        low, high = min(low, plain.reduced), min(high, plain.reduced)
        mine, others = (_rows(store, low, high, most) for store in (stored, plain))
        assert [at for at, _ in mine] == [at for at, _ in others]
        assert all(torch.equal(a[1], b[1]) for a, b in zip(mine, others, strict=True))


def _rows(store: KVStore, low: int, high: int, most: int) -> list[tuple[int, torch.Tensor]]:
    if not store.reduced:
        return []
    return [
        (at + i, row)
        for at, block in store.feature_blocks(low, high, most)
        for i, row in enumerate(block)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("count", "tail"), [(16, 0), (40, 25), (5, 9), (70, 1)])
def test_the_same_numbers_as_in_memory(tmp_path: Path, dtype: str, count: int, tail: int) -> None:
    layout = Layout(2, 2, 4, dtype, reduced=(3, 5), reduced_dtype=dtype, fit=10, segment=16)
    stored, plain, _ = pair(tmp_path, count, tail, layout)
    assert_same(stored, plain, random.Random(count))
    assert stored.nbytes == plain.nbytes


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_match_a_layer_in_memory(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    stored, plain, _ = pair(tmp_path, 40, 3)
    for _ in range(12):
        what = draw.choice(["append", "append", "features", "crop"])
        if what == "append":
            k, v = torch.randn(2, 2, draw.randint(1, 20), 4)
            for store in (stored, plain):
                store.append(k, v)
        elif what == "features":
            features = torch.randn(draw.randint(0, len(plain) - plain.reduced), 5)
            for store in (stored, plain):
                store.append_features(features)
        else:
            back = -draw.randint(0, len(plain) - 40)
            for store in (stored, plain):
                store.crop(back)
        assert_same(stored, plain, draw)


def test_reduced_keys_stand_behind_reduced_keys_only(tmp_path: Path) -> None:
    stored, _, _ = pair(tmp_path, 40, 6, Layout(2, 2, 4, "float32", segment=16))
    assert stored.reduced == 0
    with pytest.raises(AssertionError, match="parts must have reduced keys"):
        stored.append_features(torch.randn(6, 7))


def test_what_is_on_disk_is_read_only(tmp_path: Path) -> None:
    library, ids = Library(tmp_path), [*range(20)]
    stored = library.open(ingest(library, ids)).layers()[0]
    for change in (lambda: stored.append(*rows_of(ids, 0, 3, 0)), lambda: stored.crop(-1)):
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert_same(stored, _in_memory(stored), random.Random(0))


def _in_memory(stored: DiskStore) -> MemoryStore:
    plain = MemoryStore(stored.heads, stored.dim, stored.dtype, CPU)
    plain.append(*stored.span(0, len(stored)))
    plain.append_features(torch.cat([b for _, b in stored.feature_blocks(0, len(stored))]))
    return plain


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of mappings")
def test_a_span_inside_a_segment_is_the_mapped_file_itself(tmp_path: Path) -> None:
    stored, _, _ = pair(tmp_path, 40, 0)
    keys, values = stored.span(17, 20)
    first, _ = stored.span(16, 17)
    assert keys.data_ptr() - first.data_ptr() == 2 * 2 * 4 * 4
    assert values.data_ptr() - keys.data_ptr() == 2 * 4 * 4
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line.split() for line in maps if ".seg" in line]
    bounds = [[int(part, 16) for part in line[0].split("-")] for line in lines]
    assert any(low <= keys.data_ptr() < high for low, high in bounds)
    assert {line[1] for line in lines} == {"rw-p"}, "writing to it would not reach the file"
    block = next(iter(stored.feature_blocks(16, 32)))[1]
    assert any(low <= block.data_ptr() < high for low, high in bounds)
    keys_block = next(iter(stored.key_blocks(16, 32)))[1]
    assert any(low <= keys_block.data_ptr() < high for low, high in bounds)


def test_what_is_on_disk_cannot_be_taken_back(tmp_path: Path) -> None:
    stored, plain, _ = pair(tmp_path, 40, 6)
    with pytest.raises(ValueError, match="at least -6, got -7"):
        stored.crop(-7)
    assert len(stored) == 46
    stored.crop(-2)
    assert len(stored) == 44
    stored.crop(-4)
    plain.crop(-6)
    assert_same(stored, plain, random.Random(1))


def test_two_memories_over_the_same_document_do_not_touch(tmp_path: Path) -> None:
    library, ids = Library(tmp_path), [*range(20)]
    book = library.open(ingest(library, ids))
    one, two = with_tail(book.layers()[0]), with_tail(book.layers()[0])
    one.append(*rows_of(ids, 0, 3, 0))
    assert (len(one), len(two)) == (23, 20)


def test_what_is_opened_while_a_model_runs_can_be_used_afterwards(tmp_path: Path) -> None:
    library = Library(tmp_path)
    with torch.inference_mode():
        layer = with_tail(library.open(ingest(library, [*range(20)])).layers()[0])
        layer.append(*rows_of([*range(20)], 0, 3, 0))
    with torch.enable_grad():
        weight = torch.ones(4, requires_grad=True)
        (layer.span(0, 20)[0] @ weight).sum().backward()
        layer.append(*rows_of([*range(20)], 0, 3, 0))
    assert weight.grad is not None
    assert len(layer) == 26


def test_bytes_keep_what_a_byte_can() -> None:
    layout = Layout(1, 3, 8, "float32", kind="int8")
    rows = torch.randn(50, 48) * torch.logspace(-6, 4, 50)[:, None]
    rows[7] = 0
    rows[9, :8] = 0
    back = decode(encode(rows, layout), layout)
    heads, wanted = back.view(50, 6, 8), rows.view(50, 6, 8)
    step = wanted.abs().amax(2, keepdim=True) / 127
    assert ((heads - wanted).abs() <= step * 0.5001).all()
    assert torch.equal(back[7], rows[7])
    assert encode(rows, layout).shape == (50, layout.row_bytes)
    for some in ([0, 1, 2], [1], [2, 0], [3, 5]):
        theirs = heads[:, some].flatten(1)
        assert torch.equal(decode(encode(rows, layout), layout, heads=some), theirs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_document_in_bytes(tmp_path: Path, dtype: str) -> None:
    layout = Layout(2, 2, 4, dtype, kind="int8", reduced=(3, 0), fit=10, segment=16)
    library, ids = Library(tmp_path), [*range(50)]
    with library.write("a" * 40, WITH, ids, layout) as writer:
        assert isinstance(writer, Writer)
        read(writer, ids)
        entry = finish(writer, ids)
    for i, layer in enumerate(library.open(entry).layers()):
        plain = MemoryStore(2, 4, getattr(torch, dtype), CPU)
        k, v = rows_of(ids, 0, 50, i, layout)
        rows = torch.stack((k.transpose(0, 1), v.transpose(0, 1)), dim=1).reshape(50, 16)
        both = decode(encode(rows, layout), layout).view(50, 2, 2, 4)
        plain.append(both[:, 0].transpose(0, 1), both[:, 1].transpose(0, 1))
        if i == 0:
            plain.append_features(torch.cat([b for _, b in layer.feature_blocks(0, 50)]))
        assert_same(layer, plain, random.Random(2))
        assert not torch.equal(layer.span(0, 50)[0], k)


@pytest.mark.parametrize("kind", ["native", "int8"])
def test_rows_of_several_sizes(tmp_path: Path, kind: Any) -> None:
    """Also of an export; a manifest of another format keeps older versions from reading them."""
    shapes, count = ((2, 4), (1, 6), (3, 2)), 50
    layout = Layout(3, 1, 6, "float32", kind, (0, 2, 0), segment=16, shapes=shapes)
    library = Library(tmp_path / "one")
    with library.write(library.key(WITH, "x"), WITH, [*range(count)], layout) as writer:
        assert isinstance(writer, Writer)
        given = [torch.randn(2, heads, count, dim) for heads, dim in shapes]
        maps = [None, Linear(torch.randn(6, 2), torch.randn(6, 2)), None]
        for layer, rows, one in zip(writer.layers, given, maps, strict=True):
            layer.append(*rows)
            if one is not None:
                layer.append_features(one.keys(flatten_keys(rows[0])))
        known = {"name": "x", "source": "x", "bytes": 1, "missing": []}
        entry = writer.finish(
            text="x", offsets=[(0, 1)] * count, projections=maps, provenance=known
        )
    manifest = (library.root / "documents" / f"{entry.key}.doc").read_bytes()
    assert manifest.startswith(b"esa-library document 3 ")
    assert entry.nbytes > layout.nbytes(count) == entry.sizes["segments"]
    export_documents(library, tmp_path / "one.tar", [entry])
    other = Library(tmp_path / "other")
    assert import_documents(other, tmp_path / "one.tar").copied == [entry.key]
    layers = other.open(other.entries()[0]).layers()
    assert [(one.heads, one.dim) for one in layers] == [*shapes]
    at = torch.tensor([3, 17, 40])
    for stored, (keys, values) in zip(layers, given, strict=True):
        apart = 0 if kind == "native" else float(torch.stack((keys, values)).abs().max()) / 127
        for mine, want in zip(stored.span(0, count), (keys, values), strict=True):
            torch.testing.assert_close(mine, want, atol=apart, rtol=0)
        for mine, want in zip(stored.gather(at), stored.span(0, count), strict=True):
            assert torch.equal(mine, want[:, at])
    assert [one.nbytes for one in layers] == [layout.token_bytes(i) * count for i in range(3)]


@pytest.mark.parametrize("wrong", [((2, 4),), ((2, 4), (0, 4)), ((2, 4), (2, -1))])
def test_wrong_sizes_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        Layout(2, 2, 4, "float32", shapes=wrong)


def test_parts_must_fit_each_other(tmp_path: Path) -> None:
    library = Library(tmp_path)
    parts = library.open(ingest(library, [*range(20)])).layers()[0].parts
    with pytest.raises(ValueError, match="segments must be of"):
        DiskStore(0, parts, 2, 8, torch.float32)
    plain = Layout(2, 2, 4, "float32", segment=16)
    with library.write(library.key("plain", ""), "plain", [1], plain) as writer:
        assert isinstance(writer, Writer)
        read(writer, [1])
        others = library.open(writer.finish(text="", offsets=[(0, 0)])).layers()[0].parts
    with pytest.raises(ValueError, match="all segments or none"):
        DiskStore(0, [*parts, *others], 2, 4, torch.float32)


def test_rows_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from esa_cli.storage.library.formats import segment

    stored, _, _ = pair(tmp_path, 16, 0)
    checked: list[int] = []
    real = segment._sums

    def counted(view: memoryview, start: int, size: int, rows: list[int]) -> object:
        checked.extend(rows)
        return real(view, start, size, rows)

    monkeypatch.setattr(segment, "_sums", counted)
    stored.gather(torch.tensor([1, 4, 9]))
    stored.gather(torch.tensor([2, 4, 9]))
    stored.span(8, 11)
    stored.gather(torch.tensor([8, 10]))
    assert checked == [1, 4, 9, 2, 8, 10]


@pytest.mark.parametrize("wrong", ["width", "type"])
def test_what_the_layout_does_not_say_is_not_stored(tmp_path: Path, wrong: str) -> None:
    layout = Layout(1, 1, 2, "float32", reduced=(3,), segment=4)
    library = Library(tmp_path)
    with library.write("a" * 40, WITH, [1, 2, 3, 4], layout) as writer:
        assert isinstance(writer, Writer)
        writer.layers[0].append(*torch.zeros(2, 1, 4, 2))
        features = torch.zeros(4, 5 if wrong == "width" else 3)
        writer.layers[0].append_features(features.half() if wrong == "type" else features)
        with pytest.raises(ValueError, match=r"must be \(4, 3\) of float32"):
            writer.flush([None])
        assert writer.done == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files")
def test_an_open_document_keeps_no_file_open(tmp_path: Path) -> None:
    library = Library(tmp_path)
    entry = ingest(library, [*range(200)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    stored = library.open(entry)
    assert len(stored.layers()[0].parts) == 13
    assert len(list(Path("/proc/self/fd").iterdir())) == before


META = torch.device("meta")
"""Stands for the device of a later layer: what is there has a place and no numbers."""


def test_each_layer_is_on_its_own_device(tmp_path: Path) -> None:
    library, ids = Library(tmp_path), [*range(20)]
    stored = library.open(ingest(library, ids))
    for one, device in zip(stored.layers([CPU, META]), (CPU, META), strict=True):
        layer = with_tail(one)
        layer.append(*torch.zeros(2, 2, 3, 4, device=device))
        layer.append_features(torch.zeros(3, LAYOUT.reduced[one.layer], device=device))
        found = [*layer.span(0, 23), *layer.span(3, 9), *layer.gather(torch.arange(1, 20, 2))]
        found += [block for _, block in layer.key_blocks(0, 23)]
        found += [block for _, block in layer.feature_blocks(0, 23)]
        assert {one.device for one in found} == {device}
    with pytest.raises(ValueError, match="shorter"):
        stored.layers([CPU])


def test_each_layer_is_written_from_its_own_device(tmp_path: Path) -> None:
    library = Library(tmp_path)
    with library.write("a" * 40, WITH, [*range(20)], LAYOUT, devices=[CPU, META]) as writer:
        assert isinstance(writer, Writer)
        for layer, device in zip(writer.layers, (CPU, META), strict=True):
            layer.append(*torch.zeros(2, 2, 3, 4, device=device))
            assert layer.span(0, 3)[0].device == device
    with library.write("a" * 40, WITH, [*range(20)], LAYOUT) as writer:
        assert isinstance(writer, Writer)
        assert {layer.tail.device for layer in writer.layers} == {CPU}


def test_the_last_tokens_are_read_once_for_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path)
    stored = library.open(ingest(library, [*range(20)]))
    reads: list[tuple[int, int]] = []
    rows = Segment.rows

    def noted(self: Segment, layer: int, start: int, stop: int, *more: Any) -> torch.Tensor:
        reads.append((start, stop))
        return rows(self, layer, start, stop, *more)

    monkeypatch.setattr(Segment, "rows", noted)
    here, there = stored.layers([CPU, META])
    for start in (12, 13, 14, 20):
        assert there.span(start, 20)[0].shape[1] == 20 - start
    once = len(reads)
    assert there.span(11, 20)[0].shape[1] == 9
    assert there.span(3, 8)[0].shape[1] == 5, "not the last ones"
    assert len(reads) > once
    count = len(reads)
    there.span(15, 20)
    assert len(reads) == count
    there.release()
    there.span(15, 20)
    assert len(reads) > count
    want = here.span(4, 20)
    for _ in range(2):
        assert torch.equal(here.span(4, 20)[0], want[0])
    assert here._last is None, "the processor reads the mapped file"
