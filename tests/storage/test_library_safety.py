"""What the library leaves alone: files that are not its own, folders that are not its own, and what
a manifest may need that cannot be read now."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_library import LAYOUT, WITH, files, ingest, part_of, text_of

from esa_cli.errors import LibraryError, UnreadableError
from esa_cli.storage.library import Library, LibraryEntry
from esa_cli.storage.library import library as library_file
from esa_cli.storage.library.stored_cache import KVCacheWriter

IDS = [*range(40)]
OTHERS = [*range(100, 140)]
FOREIGN = (
    "documents/report.pdf", "documents/letter.doc", "documents/notes.text", "documents/a.used",
    "segments/cut.seg", "fits/jacket.fit", "claims/insurance.claim", "segments/film.mkv.part",
    f"documents/{'a' * 39}.doc", f"documents/{'A' * 40}.doc", f"segments/{'a' * 40}.seg",
    f"claims/{'a' * 40}.claim.bak", f"documents/.{'a' * 40}.doc.mine.part", "readme.txt",
)  # fmt: skip
"""Files of somebody's own, some with names that are near ours."""


def put(root: Path) -> None:
    for name in FOREIGN:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine", "utf-8")


def foreign(root: Path) -> list[str]:
    return [name for name in FOREIGN if (root / name).read_text("utf-8") == "mine"]


def test_what_is_not_ours_is_neither_listed_nor_counted_nor_swept(library: Library) -> None:
    entry = ingest(library, IDS)
    nbytes = library.nbytes
    put(library.root)
    assert [one.key for one in library.entries()] == [entry.key]
    assert library.nbytes == nbytes
    assert library.prune().leftovers == 0
    done = library.prune(0)
    assert [one.key for one in done.removed] == [entry.key]
    assert done.left == library.nbytes == 0
    assert foreign(library.root) == list(FOREIGN)


def test_the_parts_that_dead_ingests_left_are_ours(library: Library) -> None:
    ingest(library, IDS)
    names = files(library)
    for name in (f"documents/.{'a' * 40}.doc", f"segments/.{'a' * 40}-{'b' * 24}.seg",
                 f"fits/.{'b' * 24}.fit", f"claims/.{'a' * 40}.claim"):  # fmt: skip
        (library.root / f"{name}.{'c' * 40}.part").write_bytes(b"left")
    assert library.prune().leftovers == 4
    assert files(library) == names


CALLS: dict[str, Callable[[Library], object]] = {
    "list": lambda library: library.entries(),
    "find": lambda library: library.find_entry("a" * 40),
    "write": lambda library: ingest(library, IDS),
    "prune": lambda library: library.prune(0),
    "remove": lambda library: library.remove(LibraryEntry("a" * 40)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_folder_of_somebodys_own_is_refused(library: Library, call: str) -> None:
    put(library.root)
    before = sorted(library.root.rglob("*"))
    with pytest.raises(LibraryError, match="is not a library of esa, and not empty") as raised:
        CALLS[call](library)
    assert "point ESA_LIBRARY to a folder of its own" in raised.value.hint
    assert sorted(library.root.rglob("*")) == before


def manifest(library: Library, entry: LibraryEntry) -> Path:
    return library.root / "documents" / f"{entry.key}.doc"


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Lets a file be there and not be read, as a disk or a share that fails for a moment."""

    def refuse(hidden: Path) -> None:
        real = Path.read_bytes

        def read(path: Path) -> bytes:
            if path == hidden:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path)

        monkeypatch.setattr(Path, "read_bytes", read)

    return refuse


DAMAGES: dict[str, Callable[[Path], None]] = {
    "damaged": lambda path: void(path.write_bytes(b"rotten")),
    "another format": lambda path: void(
        path.write_bytes(path.read_bytes().replace(b"document 1 ", b"document 99 ", 1))
    ),
}


def void(result: object) -> None:
    """Nothing."""


@pytest.mark.parametrize("state", [*DAMAGES, "unreadable"])
def test_documents_that_cannot_be_used_are_left_alone(
    library: Library, hide: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """With every segment that they may need, until they are removed or can be read again."""
    longer, other, entry = (ingest(library, ids) for ids in ([*range(60)], OTHERS, IDS))
    path, whole = manifest(library, entry), manifest(library, entry).read_bytes()
    part_of(library, [*range(300, 370)], 50)
    (DAMAGES.get(state) or hide)(path)
    bad = next(one for one in library.entries() if one.damage_reason)
    assert (bad.key, bad.health) == (entry.key, state)
    assert len(library.verify(bad)) == 1
    before = files(library)
    for dry_run in (True, False):
        with pytest.raises(LibraryError, match="nothing was removed") as raised:
            library.prune(0, dry_run=dry_run)
        assert f"esa library rm {entry.id}`" in raised.value.hint
    assert files(library) == before
    result = library.prune(library.nbytes)
    assert [one.key for one in result.left_alone] == [entry.key]
    assert result.removed == ()
    library.remove(longer)
    library.remove(other)
    monkeypatch.undo()
    path.write_bytes(whole)
    assert library.verify(entry) == [], "nothing of it is lost"
    library.prune()
    (DAMAGES.get(state) or hide)(path)
    library.remove(next(one for one in library.entries() if one.damage_reason))
    library.prune(0)
    assert files(library) == set()


@pytest.mark.parametrize("state", [*DAMAGES, "unreadable"])
def test_removing_one_that_cannot_be_used_spares_others(
    library: Library, hide: Callable[[Path], None], state: str
) -> None:
    entry, longer, other = (ingest(library, ids) for ids in (IDS, [*range(60)], OTHERS))
    (DAMAGES.get(state) or hide)(manifest(library, entry))
    for error in library.verify(next(one for one in library.entries() if one.damage_reason)):
        assert isinstance(error, UnreadableError) == (state == "unreadable")
    library.remove(next(one for one in library.entries() if one.damage_reason))
    assert {one.key for one in library.entries()} == {longer.key, other.key}
    assert library.verify(other) == library.verify(longer) == []
    assert library.prune().leftovers == 0
    segments = {Path(name).stem for name in files(library) if name.startswith("segments")}
    assert segments == {*longer.segments, *other.segments}


def test_projections_that_come_while_others_prune_stay(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingest writes them whenever it is ready: here after it was seen what is needed."""
    real, fit = library_file.make_needed_file_filter, library.root / "fits" / f"{'b' * 24}.fit"

    def needed(*given: Any, **options: Any) -> Callable[[Path], bool]:
        found = real(*given, **options)
        fit.write_bytes(b"just written")
        return found

    key = library.compute_key(WITH, text_of(IDS))
    with library.open_writer(KVCacheWriter, key, WITH, IDS, LAYOUT):
        with monkeypatch.context() as patch:
            patch.setattr(library_file, "make_needed_file_filter", needed)
            library.prune(0)
        assert fit.exists()
    library.prune()
    assert not fit.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows always has locks")
def test_a_disk_without_locks_is_named(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ingest(library, IDS)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    for change in (lambda: ingest(library, OTHERS), lambda: library.prune(0)):
        with pytest.raises(LibraryError, match="cannot be changed") as raised:
            change()
        assert "another folder" in raised.value.hint
    assert library.verify(entry) == []
    assert library.open_document(entry).token_ids.tolist() == IDS, "what is there can be asked"
