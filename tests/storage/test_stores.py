"""Every store against plain tensors: in memory, in host memory, on disk, and joined."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_library import WITH

from esa_cli.attention.algebra import concat_key_heads, fold
from esa_cli.attention.compression import Linear
from esa_cli.attention.step import KVStore
from esa_cli.evaluation.conformance import make_step
from esa_cli.storage import memory_store
from esa_cli.storage.library import Layout, Library
from esa_cli.storage.library.document_files import decode_records, encode_rows
from esa_cli.storage.library.stored_cache import KVCacheWriter, StoredKVCache
from esa_cli.storage.memory_store import (
    RESERVE,
    AppendableKVStoreChain,
    GrowingRowMatrix,
    KVStoreSlice,
    MemoryKVStore,
    PrefilledDocument,
    concatenate_documents,
    locate_document_texts,
)

HEADS, DIM, RANK = 3, 4, 5
CPU = torch.device("cpu")
KINDS = ["memory", "host", "disk", "int8", "joined"]


class Model:
    """A store, and what must be in it: keys and values (G, N, D), reduced keys (n, R)."""

    def __init__(self, kind: str, draw: random.Random, folder: Path) -> None:
        self.draw, self.kind, self.folder = draw, kind, folder
        self.dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
        self.shared = draw.random() < 0.3
        self.keys = self.values = torch.empty(HEADS, 0, DIM, dtype=self.dtype)
        self.features = torch.empty(0, RANK, dtype=self.dtype)
        self.fixed = 0
        if kind in ("memory", "host"):
            self.store: KVStore = self.in_memory(kind == "host")
        elif kind == "joined":
            parts = []
            for low, count in ((0, 20), (draw.randrange(3), 1 + draw.randrange(30))):
                part = self.in_memory()
                start = self.keys.shape[1]
                self.append(part, low + count, reduce=True)
                self.keys, self.values = (
                    torch.cat((rows[:, :start], rows[:, start + low :]), 1)
                    for rows in (self.keys, self.values)
                )
                self.features = torch.cat((self.features[:start], self.features[start + low :]))
                parts.append(KVStoreSlice(part, low, low + count))
            self.store = AppendableKVStoreChain(parts, self.in_memory())
        else:
            self.on_disk(draw.choice([16, 40, 5, 70]))
        self.fixed = len(self.store)

    def in_memory(self, on_host: bool = False) -> MemoryKVStore:
        expected = self.draw.choice([0, 30])
        return MemoryKVStore(HEADS, DIM, self.dtype, CPU, self.shared, on_host, expected)

    def on_disk(self, count: int) -> None:
        name = str(self.dtype).removeprefix("torch.")
        kind = "int8" if self.kind == "int8" else "native"
        layout = Layout(1, HEADS, DIM, name, kind, (RANK,), segment=16, shared=self.shared)  # type: ignore[arg-type]
        library, ids = Library(self.folder), [*range(count)]
        maps = [Linear(torch.randn(HEADS * DIM, RANK), torch.randn(HEADS * DIM, RANK))]
        key = library.compute_key(WITH, "x")
        with library.open_writer(KVCacheWriter, key, WITH, ids, layout) as writer:
            self.append(writer.layers[0], count, reduce=True)
            writer.write_complete_segments(maps)
            entry = writer.finish_document(text="x", offsets=[(0, 1)] * count, projections=maps)
        [stored] = StoredKVCache(library.open_document(entry)).layers
        with pytest.raises(TypeError):
            stored.append(self.keys, self.values)
        if kind == "int8":
            for rows, decoded in zip((self.keys, self.values), stored.span(0, count), strict=True):
                steps = rows.float().abs().amax(2, keepdim=True) / 127
                assert ((decoded.float() - rows).abs() <= 0.51 * steps + rows.abs() / 128).all()
            self.keys, self.values = (rows.clone() for rows in stored.span(0, count))
        assert stored.nbytes == count * layout.count_token_bytes(0)
        assert not stored.is_on_device
        self.store = AppendableKVStoreChain([KVStoreSlice(stored, 0, count)], self.in_memory())

    def append(self, store: KVStore, count: int, reduce: bool = False) -> None:
        # Transposed, as the model that runs has them.
        keys, values = torch.randn(2, count, HEADS, DIM).to(self.dtype).transpose(1, 2)
        values = keys if self.shared else values
        store.append(keys, values)
        self.keys, self.values = (
            torch.cat(pair, 1) for pair in ((self.keys, keys), (self.values, values))
        )
        if reduce:
            self.reduce(store, count)

    def reduce(self, store: KVStore, count: int) -> None:
        features = torch.randn(count, RANK).to(self.dtype)
        store.append_reduced_keys(features)
        self.features = torch.cat((self.features, features))

    def step(self) -> None:
        """Changes both."""
        action, length = self.draw.choice(["append", "append", "reduce", "crop"]), len(self.store)
        if action == "append":
            self.append(self.store, self.draw.choice([0, 1, 1, 3, 8, 40]))
        elif action == "reduce":
            self.reduce(self.store, self.draw.randint(0, length - self.features.shape[0]))
        else:
            back = self.draw.randint(0, length - self.fixed)
            self.store.crop(-back)
            self.keys, self.values = (rows[:, : length - back] for rows in (self.keys, self.values))
            self.features = self.features[: length - back]

    def check(self) -> None:
        """Every way of reading gives the same, on random ranges."""
        store, length, draw = self.store, self.keys.shape[1], self.draw
        assert (len(store), store.reduced_key_count) == (length, self.features.shape[0])
        if self.kind in ("memory", "host"):
            row = (1 if self.shared else 2) * HEADS * DIM * self.dtype.itemsize
            reduced = self.features.shape[0] * RANK * self.dtype.itemsize
            assert store.nbytes == length * row + reduced
        low, high = sorted(draw.randint(0, length) for _ in range(2))
        most = draw.choice([1, 5, 1000])
        at = torch.tensor(sorted(draw.sample(range(length), draw.randint(0, length)))).long()
        for mine, whole in zip(store.span(low, high), (self.keys, self.values), strict=True):
            assert mine.dtype == self.dtype
            assert torch.equal(mine, whole[:, low:high])
        for mine, whole in zip(store.gather(at), (self.keys, self.values), strict=True):
            assert torch.equal(mine, whole[:, at])
        for groups in (None, [1], [2, 0], [0, 1]):
            place, rows = low, self.keys if groups is None else self.keys[groups]
            for start, keys in store.key_blocks(low, high, most, groups):
                assert start == place
                assert 0 < keys.shape[1] <= most
                place += keys.shape[1]
                assert torch.equal(keys, rows[:, start:place])
            assert place == high
        place, stop = min(low, known := store.reduced_key_count), min(high, known)
        for start, features in store.get_reduced_blocks(place, stop, most) if known else ():
            assert start == place
            assert 0 < features.shape[0] <= most
            place += features.shape[0]
            assert torch.equal(features, self.features[start:place])
        assert place == stop


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", KINDS)
def test_random_operations_match_plain_tensors(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(f"{kind} {seed}")
    if kind == "joined" and seed % 2:  # as on a GPU
        monkeypatch.setattr(memory_store, "has_separate_memory", lambda device: True)
    model = Model(kind, draw, tmp_path)
    for _ in range(25):
        model.check()
        model.step()
    model.check()


def numbered(first: int, count: int) -> torch.Tensor:
    """Rows that can be told apart: row i is (i, i + 0.25, i + 0.5)."""
    return torch.arange(first, first + count)[:, None] + torch.tensor([0.0, 0.25, 0.5])


def filled(count: int) -> GrowingRowMatrix:
    rows = GrowingRowMatrix(3, torch.float32, CPU)
    rows.append_rows(numbered(0, count))
    return rows


def test_one_segment_is_as_long_as_expected_and_grows_by_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_store, "has_separate_memory", lambda device: True)
    rows = GrowingRowMatrix(3, torch.float32, CPU, 5000)
    assert rows.row_capacity == 0
    rows.append_rows(numbered(0, 10))
    first = rows.get_row_range(0, 1).data_ptr()
    rows.append_rows(numbered(10, 4990))
    assert (rows.row_capacity, rows.get_row_range(0, 1).data_ptr()) == (5000, first)
    rows.append_rows(numbered(5000, 1))
    assert rows.row_capacity == 5000 + RESERVE
    assert rows.nbytes == (5000 + RESERVE) * 12
    assert torch.equal(rows.get_row_range(4990, 5001), numbered(4990, 11))
    unexpected = filled(5000)
    unexpected.append_rows(numbered(5000, 1))
    assert unexpected.row_capacity == 6250


def test_a_token_is_one_contiguous_row_and_the_first_can_be_taken_out() -> None:
    store, rows = MemoryKVStore(HEADS, DIM, torch.float32, CPU), torch.randn(2, HEADS, 20, DIM)
    store.append(*rows)
    keys, values = store.span(0, 5)
    assert keys.stride() == (DIM, 2 * HEADS * DIM, 1)
    assert values.data_ptr() - keys.data_ptr() == HEADS * DIM * 4
    (_, whole), (_, last) = (next(store.key_blocks(0, 5, 5, groups)) for groups in (None, [2]))
    assert last.data_ptr() == whole[2].data_ptr(), "a view, not a copy"
    features = torch.randn(20, RANK)
    store.append_reduced_keys(features)
    first, reduced = store.read_first_tokens(9)
    assert torch.equal(first, torch.cat((*rows[:, :, :9],)).transpose(0, 1).reshape(9, -1))
    assert reduced is not None
    assert torch.equal(reduced, features[:9])
    store.drop_first_tokens(9)
    assert len(store) == store.reduced_key_count == 11
    assert torch.equal(store.span(0, 11)[1], rows[1, :, 9:])
    assert torch.equal(torch.cat([b for _, b in store.get_reduced_blocks(0, 11)]), features[9:])


def test_only_the_tail_of_a_joined_store_is_taken_back(tmp_path: Path) -> None:
    model = Model("disk", random.Random(1), tmp_path)
    model.append(model.store, 6)
    with pytest.raises(ValueError, match="at most 6 appended tokens can be removed, got 7"):
        model.store.crop(-7)
    model.check()
    plain = MemoryKVStore(HEADS, DIM, model.dtype, CPU, model.shared)
    plain.append(model.keys, model.values)
    plain.append_reduced_keys(torch.randn(4, RANK))
    for low, reduced in ((3, 1), (5, 0), (0, 4)):
        joined = AppendableKVStoreChain([KVStoreSlice(plain, low, 7)], model.in_memory())
        assert joined.reduced_key_count == reduced
    with pytest.raises(AssertionError, match="parts must have reduced keys"):
        joined.append_reduced_keys(torch.randn(1, RANK))


def test_a_later_document_leaves_out_the_head() -> None:
    def document(ids: list[int], head: int, maps: Linear | None) -> PrefilledDocument:
        store = MemoryKVStore(HEADS, DIM, torch.float32, CPU)
        store.append(*torch.randn(2, HEADS, len(ids), DIM))
        return PrefilledDocument(ids, [store], [maps], head)

    maps = [Linear(*torch.randn(2, HEADS * DIM, RANK)) for _ in range(2)]
    first, second = document([1, 2, 3, 4], 2, maps[0]), document([1, 5], 1, maps[1])
    ids, [joined], [both] = concatenate_documents([first, second])
    assert ids == [1, 2, 3, 4, 5]
    assert torch.equal(joined.span(3, 5)[0][:, 1:], second.stores[0].span(1, 2)[0])
    for row, one in enumerate([0, 0, 0, 0, 1]):
        assert both.select_for_token(row) is maps[one]
    assert locate_document_texts([first, second]) == [range(2, 4), range(4, 5)]
    assert concatenate_documents([first, document([1, 5], 1, None)])[2] == [None]
    assert concatenate_documents([first])[2] == [maps[0]]


def test_each_document_is_scored_with_its_own_projection() -> None:
    documents = []
    for n, count in enumerate((5, 7)):
        store = MemoryKVStore(HEADS, DIM, torch.float32, CPU)
        store.append(*torch.randn(2, HEADS, count, DIM))
        projection = Linear(*torch.randn(2, HEADS * DIM, RANK))
        keys, _ = store.span(0, count)
        store.append_reduced_keys(projection.keys(concat_key_heads(keys)))
        documents.append(PrefilledDocument(range(10 * n, 10 * n + count), [store], [projection], n))
    _, [store], [projection] = concatenate_documents(documents)
    step = make_step(heads=2 * HEADS, groups=HEADS, dim=DIM)
    step = replace(step, store=store, projection=projection, low=0, high=len(store))
    query = fold(step.rotated(True), HEADS)
    at = 0
    for document in documents:
        [kept], [own] = document.stores, document.projections
        for row in range(document.head, len(document.ids)):
            key = concat_key_heads(kept.span(row, row + 1)[0])
            scores = own.queries(query) @ own.keys(key).T
            [[_, block]] = replace(step, low=at, high=at + 1).sums(True)
            assert torch.allclose(block, scores, rtol=1e-5, atol=1e-5)
            at += 1
    assert at == len(store)
    whole = torch.cat([block for _, block in step.sums(True)], 1)
    rows = [next(replace(step, low=n, high=n + 1).sums(True))[1] for n in range(at)]
    assert torch.allclose(whole, torch.cat(rows, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [0, 2])
def test_bytes_keep_what_a_byte_can(block: int) -> None:
    layout = Layout(1, 3, 8, "float32", kind="int8", block=block)
    rows = torch.randn(50, 48) * torch.logspace(-6, 4, 50)[:, None]
    rows[7] = 0
    rows[9, :8] = 0
    rows[:, 2:4] *= 1000
    records = encode_rows(rows, layout)
    assert records.shape == (50, layout.row_bytes) == (50, 48 + 4 * 48 // (block or 8))
    back = decode_records(records, layout)
    size = block or 8
    steps = rows.view(50, -1, size).abs().amax(2).repeat_interleave(size, 1) / 127
    assert ((back - rows).abs() <= steps * 0.5001).all()
    assert torch.equal(back[7], rows[7])
    for some in ([0, 1, 2], [1], [2, 0], [3, 5]):
        wanted = back.view(50, 6, 8)[:, some].flatten(1)
        assert torch.equal(decode_records(records, layout, some), wanted)
    assert Layout(**layout.to_json()) == layout
