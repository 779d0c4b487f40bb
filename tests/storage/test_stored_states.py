"""The file of a document's states: stored behind each segment, resumed from, checked, exported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from test_library import (
    WITH,
    WITH_STATES,
    assert_holds,
    contents,
    files,
    finish,
    ingest,
    part_of,
    read,
    states_of,
    text_of,
)

from esa_cli.errors import LibraryError
from esa_cli.storage.library import Library
from esa_cli.storage.library.disk import write_checksummed_file
from esa_cli.storage.library.library_copy import pull_documents, push_documents
from esa_cli.storage.library.packed_files import pack_recurrent_states
from esa_cli.storage.library.stored_cache import KVCacheWriter, StoredKVCache

IDS = [*range(70)]


def state_file(library: Library) -> Path:
    (path,) = (library.root / "documents").glob("*.states")
    return path


def writing(library: Library, ids: list[int] = IDS) -> Any:
    key = library.compute_key(WITH, text_of(ids))
    return library.open_writer(KVCacheWriter, key, WITH, ids, WITH_STATES)


def equal(one: list[dict[str, torch.Tensor]], two: list[dict[str, torch.Tensor]]) -> bool:
    assert [state.keys() for state in one] == [state.keys() for state in two]
    pairs = [(a[name], b[name]) for a, b in zip(one, two, strict=True) for name in a]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def test_states_come_back_bit_for_bit(library: Library) -> None:
    with writing(library) as writer:
        read(writer, IDS)
        with pytest.raises(ValueError, match="tokens must have"):
            writer.finish_document(text="", offsets=[(0, 0)] * 70, states=states_of(IDS, 70)[:1])
        entry = finish(writer, IDS)
    stored = StoredKVCache(library.open_document(entry))
    assert equal(stored.states, states_of(IDS, 70))
    assert_holds(stored.layers, IDS)
    assert entry.sizes["states"] == state_file(library).stat().st_size
    data = [name for name in files(library) if not name.endswith(".doc")]
    assert entry.nbytes == sum((library.root / name).stat().st_size for name in data)
    assert library.verify(entry) == []
    library.remove(entry)
    assert files(library) == set()


def test_one_that_was_stopped_at_its_manifest_reads_nothing_again(
    library: Library, other: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last states are behind a segment that is not whole."""
    ingest(other, IDS, WITH_STATES)
    with monkeypatch.context() as patch:

        def stop(*given: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr("esa_cli.storage.library.packed_files.pack_tokens", stop)
        with pytest.raises(KeyboardInterrupt):
            ingest(library, IDS, WITH_STATES)
    with writing(library) as writer:
        assert writer.stored_token_count == 70
        assert equal(writer.states, states_of(IDS, 70))
        finish(writer, IDS)
    assert contents(library) == contents(other)


def test_a_changed_document_is_read_from_its_beginning(library: Library) -> None:
    """Its first segments are stored once; the states behind them are not there any more."""
    first, changed = ingest(library, IDS, WITH_STATES), [*IDS[:48], *range(900, 930)]
    before = {path: os.stat(path).st_ino for path in library.root.glob("segments/*")}
    with writing(library, changed) as writer:
        assert writer.stored_token_count == 0
        read(writer, changed)
        second = finish(writer, changed)
    assert second.segments[:3] == first.segments[:3]
    assert before == {path: os.stat(path).st_ino for path in before}
    for entry, ids in ((first, IDS), (second, changed)):
        assert library.verify(entry) == []
        assert equal(StoredKVCache(library.open_document(entry)).states, states_of(ids, len(ids)))
    library.remove(first)
    assert library.verify(second) == []


@pytest.mark.parametrize("damage", ["bit", "missing", "of another place", "without a segment"])
def test_without_good_states_nothing_is_resumed(library: Library, damage: str) -> None:
    part_of(library, IDS, 40, WITH_STATES)
    path = state_file(library)
    if damage == "missing":
        path.unlink()
    elif damage == "without a segment":
        max(library.root.glob("segments/*"), key=lambda path: path.stat().st_mtime_ns).unlink()
    elif damage == "bit":
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    else:
        states = pack_recurrent_states("a" * 40, states_of(IDS, 32))
        write_checksummed_file(path, states, "a" * 40)
    with writing(library) as writer:
        assert writer.stored_token_count == 0
        read(writer, IDS)
        finish(writer, IDS)
    assert library.verify(library.entries()[0]) == []


def test_every_byte_is_covered(library: Library) -> None:
    entry = ingest(library, IDS, WITH_STATES)
    path = state_file(library)
    data = path.read_bytes()
    head = data.index(b"\n") + 60
    for at in [*range(head), *range(head, len(data), 37)]:
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        (found,) = library.verify(entry)
        assert path.name in found.message
    path.unlink()
    with pytest.raises(LibraryError, match="is missing"):
        StoredKVCache(library.open_document(entry))


WRONG = {
    "another segment's": pack_recurrent_states("a" * 40, states_of(IDS, 70)),
    "too few": pack_recurrent_states("SEGMENT", states_of(IDS, 70)[:2]),
    "another name": b"SEGMENT\n" + save({"layers": torch.tensor(3), "0.keys.0": torch.ones(1)}),
    "no tensors": b"SEGMENT\nabc",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_contents_that_are_not_its_own_are_refused(
    library: Library, other: Library, tmp_path: Path, wrong: str
) -> None:
    """With a valid checksum, as a stranger can make one."""
    entry = ingest(library, IDS, WITH_STATES)
    name = entry.segments[-1].partition("-")[0].encode()
    payload = WRONG[wrong].replace(b"SEGMENT", name)
    write_checksummed_file(state_file(library), payload, entry.key)
    assert len(library.verify(entry)) == 1
    with pytest.raises(LibraryError, match="states is damaged"):
        StoredKVCache(library.open_document(entry))
    assert len(push_documents(library, str(tmp_path / "far"), [entry]).failed) == 1
    far = tmp_path / "library"
    assert len(pull_documents(other, str(far)).failed) == 1
    assert not other.entries()
