"""The library on disk: documents written, found, shared, opened, removed; and nothing lost between.

What is read here are made-up rows: each number depends on layer, token and place, so that a row
that lands in a wrong place is seen.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from esa_cli.attention.algebra import concat_key_heads
from esa_cli.attention.compression import Linear
from esa_cli.attention.step import KVStore
from esa_cli.errors import LibraryError
from esa_cli.storage.library import Layout, Library, LibraryEntry
from esa_cli.storage.library.stored_cache import KVCacheWriter, StoredKVCache
from esa_cli.system.files import LIBRARY_MARKER

LAYOUT = Layout(2, 2, 4, "float32", reduced=(3, 5), fit=10, segment=16)
WITH_STATES = replace(LAYOUT, states=3)
WITH = "model x, float32"


def text_of(ids: Sequence[int]) -> str:
    return " ".join(f"w{number}" for number in ids) + "\ud800 é"


def offsets_of(ids: Sequence[int]) -> list[tuple[int, int]]:
    found, at = [], 0
    for number in ids:
        length = len(f"w{number}")
        found.append((at, at + length))
        at += length + 1
    return found


def rows_of(
    ids: Sequence[int], start: int, stop: int, layer: int, layout: Layout = LAYOUT
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (G, stop - start, D) of the tokens [start, stop)."""
    tokens = torch.tensor(ids[start:stop], dtype=torch.float64)[:, None]
    places = torch.arange(start, stop, dtype=torch.float64)[:, None]
    columns = torch.arange(layout.width, dtype=torch.float64)
    rows = torch.sin(tokens * 1.7 + places * 0.37 + columns * 1.1 + layer * 5.3) * (1 + columns)
    both = rows.view(stop - start, 2, layout.heads, layout.dim).to(getattr(torch, layout.dtype))
    return both[:, 0].transpose(0, 1), both[:, 1].transpose(0, 1)


def fit_of(ids: Sequence[int], layout: Layout = LAYOUT) -> list[Linear | None]:
    """Maps that depend on the first `fit` tokens, as a compressor's do."""
    draw = torch.Generator().manual_seed(sum(ids[: layout.fit]))
    folded = layout.heads * layout.dim
    made = []
    for width in layout.reduced:
        pair = torch.randn(2, folded, max(width, 1), generator=draw)
        made.append(Linear(pair[0], pair[1]) if width else None)
    return made


def states_of(
    ids: Sequence[int], stop: int, layout: Layout = WITH_STATES
) -> list[dict[str, torch.Tensor]]:
    """Of each layer that keeps one, behind token `stop`: a convolution's, and a recurrent one."""
    draw = torch.Generator().manual_seed(sum(ids[:stop]) + stop)
    return [
        {
            "conv.0": torch.randn(1, 4, 3, generator=draw).bfloat16(),
            "recurrent.0": torch.randn(1, 2, 4, 4, generator=draw),
        }
        for _ in range(layout.states)
    ]


def read(
    writer: KVCacheWriter, ids: Sequence[int], *, piece: int = 8, stop: int | None = None
) -> None:
    """Reads on from where the writer is, and settles after every piece."""
    layout, projections = writer.layout, writer.projections
    stop = len(ids) if stop is None else stop
    for start in range(writer.stored_token_count, stop, piece):
        end = min(start + piece, stop)
        for i, layer in enumerate(writer.layers):
            layer.append(*rows_of(ids, start, end, i, layout))
        if any(layout.reduced) and projections is None and end >= min(layout.fit, len(ids)):
            projections = fit_of(ids, layout)
        for layer, maps in zip(writer.layers, projections or [], strict=bool(projections)):
            if maps is not None:
                keys = layer.span(layer.reduced_key_count, len(layer))[0]
                layer.append_reduced_keys(maps.keys(concat_key_heads(keys)))
        writer.write_complete_segments(projections, states_of(ids, end, layout))


def finish(writer: KVCacheWriter, ids: Sequence[int], **more: Any) -> LibraryEntry:
    known = {"name": "book.txt", "source": "/books/book.txt", "bytes": 9, "missing": list[str]()}
    return writer.finish_document(
        text=text_of(ids),
        offsets=offsets_of(ids),
        head=3,
        marks=[[0, 1, None]],
        provenance=known,
        projections=fit_of(ids, writer.layout),
        states=states_of(ids, len(ids), writer.layout),
        **more,
    )


def writing(library: Library, ids: Sequence[int], layout: Layout) -> Any:
    key = library.compute_key(WITH, text_of(ids))
    return library.open_writer(KVCacheWriter, key, WITH, ids, layout)


def ingest(library: Library, ids: Sequence[int], layout: Layout = LAYOUT) -> LibraryEntry:
    with writing(library, ids, layout) as writer:
        if isinstance(writer, LibraryEntry):
            return writer
        read(writer, ids)
        return finish(writer, ids)


def part_of(library: Library, ids: Sequence[int], stop: int, layout: Layout = LAYOUT) -> None:
    """An ingest that ends before its time."""
    with suppress(KeyboardInterrupt), writing(library, ids, layout) as writer:
        read(writer, ids, stop=stop)
        raise KeyboardInterrupt


def assert_holds(layers: Sequence[KVStore], ids: Sequence[int], layout: Layout = LAYOUT) -> None:
    """The layers hold the rows and reduced keys of the tokens, bit for bit."""
    for i, layer in enumerate(layers):
        k, v = rows_of(ids, 0, len(ids), i, layout)
        keys, values = layer.span(0, len(ids))
        assert len(layer) == len(ids)
        assert torch.equal(keys, k)
        assert torch.equal(values, v)
        maps = fit_of(ids, layout)[i]
        if maps is not None:
            assert layer.reduced_key_count == len(ids)
            found = torch.cat([block for _, block in layer.get_reduced_blocks(0, len(ids))])
            torch.testing.assert_close(found, maps.keys(concat_key_heads(k)), rtol=1e-5, atol=1e-5)


def files(library: Library) -> set[str]:
    """Every file but the mark, catalogue, locks and stamps, by its path below the root."""
    found = (path for path in library.root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(library.root))
        for path in found
        if path.suffix not in (".lock", ".used")
        and path.name != LIBRARY_MARKER
        and not path.name.startswith("catalogue")
    }


def contents(library: Library) -> dict[str, bytes]:
    """Every file's bytes; of a manifest, which holds times, only that it is there."""
    return {
        name: b"" if name.endswith(".doc") else (library.root / name).read_bytes()
        for name in files(library)
    }


@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_what_was_written_comes_back(library: Library, count: int) -> None:
    ids = [*range(100, 100 + count)]
    entry = ingest(library, ids)
    found = Library(str(library.root)).find_entry(entry.key)
    assert found == entry
    stored = library.open_document(found)
    assert stored.token_ids.tolist() == ids
    assert stored.text == text_of(ids)
    assert stored.offsets.tolist() == [list(pair) for pair in offsets_of(ids)]
    assert (found.head, found.marks) == (3, ([0, 1, None],))
    cache = StoredKVCache(stored)
    assert cache.projections is not None
    for maps, wanted in zip(cache.projections, fit_of(ids), strict=True):
        assert torch.equal(maps.query_map, wanted.query_map)
        assert torch.equal(maps.key_map, wanted.key_map)
    assert_holds(cache.layers, ids)
    assert library.verify(entry) == []
    assert entry.nbytes == sum(
        (library.root / name).stat().st_size for name in files(library) if ".doc" not in name
    )
    assert library.estimate_document_size(count, LAYOUT) + 8192 > entry.sizes["segments"]


def test_the_key_is_the_text_and_what_it_was_read_with(library: Library) -> None:
    keys = {library.compute_key(a, b) for a in ("x", "xy") for b in ("yz", "z", "")}
    assert len(keys) == 6
    assert library.compute_key("x", "\ud800") != library.compute_key("x", "?")
    assert library.find_entry(library.compute_key("x", "z")) is None


def test_a_document_that_is_there_is_not_written_again(library: Library) -> None:
    first = ingest(library, [*range(20)])
    before = {name: (library.root / name).stat().st_mtime_ns for name in files(library)}
    with library.open_writer(KVCacheWriter, first.key, WITH, [*range(20)], LAYOUT) as there:
        assert there == first
    assert before == {name: (library.root / name).stat().st_mtime_ns for name in files(library)}


def test_a_longer_document_shares_its_whole_segments(library: Library) -> None:
    short, long = [*range(40)], [*range(60)]
    first = ingest(library, short)
    with writing(library, long, LAYOUT) as writer:
        assert writer.stored_token_count == 32
        assert writer.projections is not None
        read(writer, long)
        second = finish(writer, long)
    assert first.segments[:2] == second.segments[:2]
    assert len({*first.segments, *second.segments}) == 5
    assert first.fit == second.fit
    assert_holds(StoredKVCache(library.open_document(second)).layers, long)
    assert_holds(StoredKVCache(library.open_document(first)).layers, short)


def test_another_beginning_or_identity_or_layout_shares_nothing(library: Library) -> None:
    ingest(library, [*range(40)])
    names = files(library)
    ids = [99, *range(1, 40)]
    with library.open_writer(KVCacheWriter, "b" * 40, WITH, ids, LAYOUT) as writer:
        assert writer.stored_token_count == 0
    with library.open_writer(KVCacheWriter, "b" * 40, "a model", [*range(40)], LAYOUT) as writer:
        assert writer.stored_token_count == 0
    other = Layout(2, 2, 4, "float32", kind="int8", reduced=(3, 5), fit=10, segment=16)
    with library.open_writer(KVCacheWriter, "b" * 40, WITH, [*range(40)], other) as writer:
        assert writer.stored_token_count == 0
    assert files(library) == names


def test_segments_are_shared_only_where_the_compressor_saw_the_same(library: Library) -> None:
    layout = Layout(2, 2, 4, "float32", reduced=(3, 5), fit=24, segment=16)
    first, second = [*range(40)], [*range(20), *range(90, 110)]
    ingest(library, first, layout)
    entry = ingest(library, second, layout)
    assert_holds(StoredKVCache(library.open_document(entry)).layers, second, layout)


def test_an_ingest_that_wrote_nothing_leaves_nothing(library: Library) -> None:
    part_of(library, [*range(70)], 8)
    assert files(library) == set()


def test_a_damaged_part_is_not_gone_on_from(library: Library) -> None:
    ids = [*range(70)]
    part_of(library, ids, 50)
    path = sorted(library.root.rglob("*.seg"), key=lambda path: path.stat().st_mtime_ns)[1]
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    with writing(library, ids, LAYOUT) as writer:
        assert writer.stored_token_count == 16
        read(writer, ids)
        entry = finish(writer, ids)
    assert library.verify(entry) == []
    assert_holds(StoredKVCache(library.open_document(entry)).layers, ids)


@pytest.mark.parametrize("wrong", ["tokens", "offsets", "one layer"])
def test_what_is_not_whole_is_refused(library: Library, wrong: str) -> None:
    ids = [*range(20)]
    with library.open_writer(KVCacheWriter, "d" * 40, WITH, ids, LAYOUT) as writer:
        read(writer, ids, stop=12 if wrong == "tokens" else None)
        if wrong == "one layer":
            writer.layers[0].append(*rows_of(ids, 0, 1, 0))
        offsets = [(0, 0)] * (5 if wrong == "offsets" else 20)
        with pytest.raises(ValueError, match="tokens must have"):
            writer.finish_document(text="", offsets=offsets, projections=fit_of(ids))
    assert library.entries() == []


def test_removing_leaves_an_unfinished_ingest_its_part(library: Library) -> None:
    entry = ingest(library, [*range(40)])
    part_of(library, [*range(70)], 50)
    library.remove(entry)
    key, ids = library.compute_key(WITH, text_of(range(70))), [*range(70)]
    with library.open_writer(KVCacheWriter, key, WITH, ids, LAYOUT) as writer:
        assert writer.stored_token_count == 48


def test_a_removed_document_that_is_mapped_can_still_be_read(library: Library) -> None:
    ids = [*range(40)]
    entry = ingest(library, ids)
    layers = StoredKVCache(library.open_document(entry)).layers
    library.remove(entry)
    assert_holds(layers, ids)


def used_at(library: Library, entry: LibraryEntry, seconds: float) -> None:
    os.utime(library.root / "documents" / f"{entry.key}.used", (seconds, seconds))


def test_prune_leaves_a_running_ingest_alone(library: Library) -> None:
    ids = [*range(70)]
    shared = ingest(library, ids[:40])
    with writing(library, ids, LAYOUT) as writer:
        read(writer, ids, stop=50)
        part = library.root / "segments" / f".{'d' * 40}-none.seg.{writer.key}.part"
        part.write_bytes(b"being written")
        done = library.prune(0)
        assert [entry.key for entry in done.removed] == [shared.key]
        assert part.exists()
        part.unlink()
        for layer in writer.layers:
            layer.crop(writer.stored_token_count - len(layer))
        read(writer, ids)
        entry = finish(writer, ids)
    assert library.verify(entry) == []
    assert_holds(StoredKVCache(library.open_document(entry)).layers, ids)


def test_an_empty_library(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.entries() == []
    assert library.nbytes == 0
    assert library.prune(0).removed == ()
    assert not library.root.exists()
    monkeypatch.setenv("ESA_LIBRARY", str(library.root / "elsewhere"))
    assert Library().root == library.root / "elsewhere"
    monkeypatch.setenv("ESA_LIBRARY", "~nobody-here/x")
    with pytest.raises(LibraryError, match="home folder"):
        Library()
    monkeypatch.delenv("ESA_LIBRARY")
    assert Library().root.name == "library"


def test_the_manifest_says_when_it_was_used(library: Library) -> None:
    entry = ingest(library, [1, 2, 3])
    used_at(library, entry, 5000.0)
    assert library.entries()[0].used == 5000.0
    library.open_document(entry)
    assert library.entries()[0].used > 1e9
    (library.root / "documents" / f"{entry.key}.used").unlink()
    assert library.entries()[0].used == entry.created


def test_a_manifest_under_another_name_is_refused(library: Library) -> None:
    entry = ingest(library, [1, 2, 3])
    path = library.root / "documents" / f"{entry.key}.doc"
    path.rename(path.with_name("9" * 40 + ".doc"))
    with pytest.raises(LibraryError, match="another document"):
        library.find_entry("9" * 40)
