"""The library against plain loops over random cases, and the bytes of an earlier version."""

from __future__ import annotations

import hashlib
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_library import LAYOUT, ingest, used_at

from esa_cli.attention.compression import Linear
from esa_cli.storage.library import Catalogue, FileRecord, Layout, Library, LibraryEntry
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.stored_cache import KVCacheWriter
from esa_cli.system import files
from esa_cli.system.text import digest_text


@pytest.mark.parametrize(
    ("layout", "digest"),
    [
        (
            Layout(2, 2, 2, "float32", reduced=(2, 0), fit=3, segment=4),
            "51ce35994c01a152072535aa22fc3f8efbce3a4a91816e1f2fe9c3dbdabd53ff",
        ),
        (
            Layout(2, 2, 2, "float32", "int8", reduced=(2, 0), fit=3, segment=4, states=2),
            "38f1fab855da19c23cfe7046de0c6b5d86a85d90d95849f61e7a418455a0f4c6",
        ),
    ],
)
def test_names_and_bytes_are_those_of_before(tmp_path: Path, layout: Layout, digest: str) -> None:
    """Of commit 7100f9e, whose libraries are read; a manifest, which has a time, is left out."""
    library, ids, text = Library(tmp_path), [*range(7, 17)], "é w\ud800"
    key = library.compute_key("model x", text)
    with library.open_writer(KVCacheWriter, key, "model x", ids, layout) as writer:
        for at, layer in enumerate(writer.layers):
            layer.append(*torch.arange(80.0).view(2, 2, 10, 2) - 30 + at)
        writer.layers[0].append_reduced_keys(torch.arange(20.0).view(10, 2))
        maps = Linear(torch.arange(8.0).view(4, 2), -torch.arange(8.0).view(4, 2))
        entry = writer.finish_document(
            text=text,
            offsets=[(0, 1)] * 10,
            projections=[maps, None],
            states=[{"conv.0": torch.arange(6.0).view(1, 2, 3)} for _ in range(layout.states)],
        )
    kept = (".text", ".tokens", ".states", ".seg", ".fit")
    found = [
        (path.relative_to(tmp_path).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()[:16])
        for path in sorted(tmp_path.rglob("*"))
        if path.suffix in kept
    ]
    assert hashlib.sha256(repr(sorted(found)).encode()).hexdigest() == digest
    assert entry.key == "18852c67af08282741e12e104822aef56c563a1b"
    manifest = (tmp_path / "documents" / f"{entry.key}.doc").read_bytes()
    assert manifest.startswith(b"esa-library document %d " % (1 + bool(layout.states)))
    stored = library.open_document(entry)
    assert (stored.token_ids.tolist(), stored.text, stored.entry.layout) == (ids, text, layout)


def draw_layout(draw: random.Random) -> Layout:
    layers, heads = draw.randint(1, 4), draw.randint(1, 3)
    block = draw.choice([1, 2, 4])
    shapes = tuple((draw.randint(1, 3), draw.randint(1, 5)) for _ in range(layers))
    has_shapes = draw.random() < 0.4
    return Layout(
        layers, heads, 8, draw.choice(["float32", "bfloat16"]), draw.choice(["native", "int8"]),
        tuple(draw.choice([0, 3, 17]) for _ in range(layers)), draw.choice(["float32", "float16"]),
        segment=draw.choice([5, 64]), shared=draw.random() < 0.3,
        block=0 if has_shapes else block, shapes=shapes if has_shapes else (),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_places_in_a_segment_are_those_of_a_plain_loop(seed: int) -> None:
    draw = random.Random(seed)
    layout, sizes = draw_layout(draw), {"float32": 4, "bfloat16": 2, "float16": 2}

    def expected(tokens: int) -> list[list[int]]:
        at = 0
        while at < 2048 + 112 * layout.layers:
            at += 4096
        assert layout.header_byte_count == at
        places = []
        for layer in range(layout.layers):
            heads, dim = layout.shapes[layer] if layout.shapes else (layout.heads, layout.dim)
            numbers = heads * dim * (1 if layout.shared else 2)
            block = layout.block if not layout.shapes else dim
            row = numbers * sizes[layout.dtype]
            if layout.kind == "int8":
                row = numbers + 4 * (numbers // block)
            feature = layout.reduced[layer] * sizes[layout.reduced_dtype]
            assert layout.make_layer_layout(layer).row_bytes == row
            assert layout.count_token_bytes(layer) == row + feature
            start, rows_stop = at, at + tokens * row
            reduced = rows_stop
            while reduced % 64:
                reduced += 1
            sums = reduced + tokens * feature
            while sums % 64:
                sums += 1
            at = sums + 8 * tokens
            while at % 4096:
                at += 1
            places.append([start, rows_stop, reduced, sums, at])
        return places

    for tokens in (1, 3, 64):
        assert [list(section) for section in layout.locate_layers(tokens)] == expected(tokens)
    total, count = 0, draw.randint(1, 200)
    left = count
    while left:
        total += expected(min(left, layout.segment))[-1][-1]
        left -= min(left, layout.segment)
    assert layout.compute_segment_bytes(count) == total
    assert Library(Path("none")).estimate_document_size(count, layout, 7) == total + 48 * count + 7
    assert Layout(**layout.to_json()) == layout


@pytest.mark.parametrize("seed", range(6))
def test_prune_and_remove_take_what_a_plain_loop_takes(tmp_path: Path, seed: int) -> None:
    draw, library = random.Random(seed), Library(tmp_path / "library")
    beginnings = [[*range(start, start + 32)] for start in (0, 1000)]
    entries = [
        ingest(library, [*draw.choice(beginnings), *range(5000 + at * 50, 5000 + at * 50 + length)])
        for at, length in enumerate(draw.choices(range(1, 40), k=6))
    ]
    times = draw.sample(range(1, 100), len(entries))
    for entry, seconds in zip(entries, times, strict=True):
        used_at(library, entry, float(seconds))
    paths = LibraryPaths(library.root)

    def files_of(alive: list[LibraryEntry]) -> dict[Path, int]:
        found = set()
        for entry in alive:
            found |= {path for path in paths.documents.iterdir() if path.stem == entry.key}
            found |= {paths.get_segment_path(name) for name in entry.segments} | {
                paths.get_projections_path(entry.fit)
            }
        return {path: path.stat().st_size for path in found}

    used = {entry.key: seconds for entry, seconds in zip(entries, times, strict=True)}
    by_use = sorted(entries, key=lambda entry: used[entry.key])
    everything = files_of(entries)
    assert library.nbytes == sum(everything.values())
    for most in (draw.randint(0, library.nbytes + 1000) for _ in range(5)):
        alive = list(by_use)
        while alive and sum(files_of(alive).values()) > most:
            alive.pop(0)
        result, left = library.prune(most, dry_run=True), sum(files_of(alive).values())
        assert [one.key for one in result.removed] == [
            one.key for one in by_use[: len(by_use) - len(alive)]
        ]
        assert (result.left, result.freed) == (left, library.nbytes - left)
        assert (result.leftovers, result.left_alone) == (0, ())
    victim = draw.choice(entries)
    kept = files_of([one for one in entries if one.key != victim.key])
    assert library.remove(victim) == sum(everything.values()) - sum(kept.values())
    assert set(paths.list_all_files()) == set(kept)
    most = sum(kept.values()) // 2
    alive = [one for one in by_use if one.key != victim.key]
    while alive and sum(files_of(alive).values()) > most:
        alive.pop(0)
    wanted = set(files_of(alive))
    library.prune(most)
    assert set(paths.list_all_files()) == wanted
    assert all(library.verify(one) == [] for one in alive)


@pytest.mark.parametrize("seed", range(40))
def test_present_and_former_documents_are_those_of_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A document is present if its file has no record, or one with its text that was not removed;
    else under the name of another file that has its text."""
    monkeypatch.setattr(files, "SETTLED_NS", -(10**18))
    draw, library = random.Random(seed), Library(tmp_path / "library")
    folder = tmp_path / "town"
    folder.mkdir()
    digests = {text: digest_text(text) for text in "abc"}
    records = list[FileRecord]()
    with library.open_catalogue() as catalogue:
        for at in range(draw.randint(0, 4)):
            path, text = folder / f"{at}.txt", draw.choice("abc")
            if draw.random() < 0.7:
                path.write_text(text)
            stamp = (
                files.compute_file_stamp(path) if path.exists() and draw.random() < 0.6 else "1 2 3"
            )
            digest = draw.choice([digests[text], digests[text], ""])
            synced = draw.choice(["", str(folder)])
            records.append(FileRecord(str(path), stamp, digest, 1, folder=synced))
            with catalogue.run_transaction():
                catalogue.store_record(records[-1])
        (folder / "other").write_text("so that the folder is not empty")
        documents = [
            LibraryEntry(
                f"{at:040x}", text_sha256=digests[draw.choice("abc")],
                provenance={"name": "x", "source": draw.choice([str(folder / f"{at}.txt"), "-"])},
            )
            for at in range(5)
        ]  # fmt: skip
        divided = catalogue.load_file_record_lookup().divide_by_presence(documents)
        assert_divided(catalogue, documents, *divided)


def assert_divided(catalogue: Catalogue, *parts: list[LibraryEntry]) -> None:
    documents, present, former = parts
    records = {record.path: record for record in catalogue.list_records()}

    def is_removed(record: FileRecord) -> bool:
        return not os.path.exists(record.path)  # and its folder is there

    wanted_present, wanted_former = list[LibraryEntry](), list[LibraryEntry]()
    for entry in documents:
        own = records.get(entry.file_path)
        same = own and own.digest == entry.text_sha256 and not is_removed(own)
        if own is None or same:
            wanted_present.append(entry)
            continue
        others = [
            record.path
            for record in records.values()
            if record.digest == entry.text_sha256
            and not is_removed(record)
            and (record.folder or os.path.exists(record.path))
        ]
        if others:
            names = {"name": Path(min(others)).name, "source": min(others), "path": min(others)}
            wanted_present.append(replace(entry, provenance={**entry.provenance, **names}))
        else:
            wanted_former.append(entry)
    assert (present, former) == (wanted_present, wanted_former)


def test_a_claim_keeps_segments_until_its_ingest_is_given_up(tmp_path: Path) -> None:
    """`remove` spares what a killed ingest needs, `prune` does not, but for a running one."""
    library, paths = Library(tmp_path), LibraryPaths(tmp_path)
    entry, ids = ingest(library, [*range(40)]), [*range(70)]
    shared = {paths.get_segment_path(name) for name in entry.segments[:2]}
    with library.open_writer(KVCacheWriter, "e" * 40, "model x, float32", ids, LAYOUT) as writer:
        assert writer.stored_token_count == 32
        assert paths.get_segment_claim_path("e" * 40).exists()
        library.remove(entry)
        library.prune(0)
        assert set(paths.list_complete_files("segments")) == shared
        writer.wrote = True  # as after a kill, the claim stays
    assert paths.get_segment_claim_path("e" * 40).exists()
    library.prune()
    assert paths.list_all_files() == []
