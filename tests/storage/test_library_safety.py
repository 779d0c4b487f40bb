"""What the library leaves alone: files that are not its own, folders that are not its own, and what
a manifest may need that cannot be read now."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_library import LAYOUT, WITH, files, ingest, part_of, text_of, used_at

from esa_cli.errors import LibraryError, ResourceError, UnreadableError
from esa_cli.storage.library import Entry, Library, maintenance
from esa_cli.storage.library.entry_writer import Writer
from esa_cli.storage.library.formats import checksummed_file, library_paths
from esa_cli.storage.library.formats.library_paths import MARKER
from esa_cli.storage.library.maintenance import NeededFiles

IDS = [*range(40)]
OTHERS = [*range(100, 140)]
FOREIGN = (
    "documents/report.pdf", "documents/letter.doc", "documents/notes.text", "documents/a.used",
    "segments/cut.seg", "fits/jacket.fit", "claims/insurance.claim", "segments/film.mkv.part",
    f"documents/{'a' * 39}.doc", f"documents/{'A' * 40}.doc", f"segments/{'a' * 40}.seg",
    f"claims/{'a' * 40}.claim.bak", f"documents/.{'a' * 40}.doc.mine.part", "readme.txt",
)  # fmt: skip
"""Files of somebody's own, some with names that are near ours."""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


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


@pytest.mark.parametrize("damaged", [False, True])
def test_removing_leaves_what_is_not_ours(library: Library, damaged: bool) -> None:
    entry = ingest(library, IDS)
    put(library.root)
    if damaged:
        manifest(library, entry).write_bytes(b"rotten")
    library.remove(library.entries()[0])
    assert foreign(library.root) == list(FOREIGN)
    assert files(library) <= set(FOREIGN)


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
    "find": lambda library: library.find("a" * 40),
    "write": lambda library: ingest(library, IDS),
    "prune": lambda library: library.prune(0),
    "remove": lambda library: library.remove(Entry("a" * 40)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_folder_of_somebodys_own_is_refused(library: Library, call: str) -> None:
    put(library.root)
    before = sorted(library.root.rglob("*"))
    with pytest.raises(LibraryError, match="is not a library of esa, and not empty") as raised:
        CALLS[call](library)
    assert "point ESA_LIBRARY to a folder of its own" in raised.value.hint
    assert sorted(library.root.rglob("*")) == before


@pytest.mark.parametrize("below", ["", "b/c"])
def test_the_part_of_the_path_that_is_a_file_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(LibraryError, match=r"notes\.txt is a file") as raised:
        ingest(Library(tmp_path / "notes.txt" / below), IDS)
    assert f"point ESA_LIBRARY to a folder, as {tmp_path / 'library'}" in raised.value.hint
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_is_empty_or_missing_becomes_a_library(library: Library, there: bool) -> None:
    if there:
        library.root.mkdir()
    assert library.entries() == []
    assert library.find("a" * 40) is None
    assert not there or os.listdir(library.root) == []
    entry = ingest(library, IDS)
    assert (library.root / MARKER).is_file()
    assert library.verify(entry) == []


def manifest(library: Library, entry: Entry) -> Path:
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


@pytest.mark.parametrize("most", [None, 0])
def test_while_a_manifest_cannot_be_read_nothing_is_swept(
    library: Library,
    hide: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    most: int | None,
) -> None:
    entry, other = ingest(library, IDS), ingest(library, OTHERS)
    part_of(library, [*range(300, 370)], 50)
    before = files(library)
    hide(manifest(library, entry))
    found = {one.key: one for one in library.entries()}
    assert found[entry.key].unreadable
    assert not found[entry.key].foreign
    assert "Input/output error" in found[entry.key].damage
    for dry_run in (True, False):
        with pytest.raises(
            UnreadableError, match=r"nothing was removed, for .*Input/output"
        ) as said:
            library.prune(most, dry_run=dry_run)
        assert f"esa library rm {entry.id}" in said.value.hint
    assert files(library) == before
    monkeypatch.undo()
    assert library.verify(entry) == library.verify(other) == []
    assert library.prune().leftovers > 0, "now that it can be read, what nobody needs is swept"
    assert library.verify(entry) == library.verify(other) == []


@pytest.mark.parametrize("rotten", [False, True])
def test_removing_another_spares_what_an_unreadable_one_may_need(
    library: Library, hide: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, rotten: bool
) -> None:
    entry, longer = ingest(library, IDS), ingest(library, [*range(60)])
    if rotten:
        manifest(library, longer).write_bytes(b"rotten")
    hide(manifest(library, entry))
    (other,) = (one for one in library.entries() if one.key == longer.key)
    library.remove(other)
    assert not manifest(library, longer).exists()
    monkeypatch.undo()
    assert library.verify(entry) == []
    library.prune()
    assert library.verify(entry) == []
    library.remove(entry)
    assert files(library) == set()


def test_an_unreadable_document_can_be_given_up(
    library: Library, hide: Callable[[Path], None]
) -> None:
    entry, other = ingest(library, IDS), ingest(library, OTHERS)
    hide(manifest(library, entry))
    (found,) = (one for one in library.entries() if one.unreadable)
    for error in library.verify(found):
        assert isinstance(error, UnreadableError)
        assert "then try again" in error.hint
    library.remove(found)
    assert [one.key for one in library.entries()] == [other.key]
    assert library.verify(other) == []
    assert library.prune().leftovers == 0


def test_what_a_rotten_manifest_may_have_needed_goes_with_it(library: Library) -> None:
    entry, other = ingest(library, IDS), ingest(library, OTHERS)
    manifest(library, entry).write_bytes(b"rotten")
    before = files(library)
    assert library.prune().leftovers == 0
    assert files(library) == before
    (rotten,) = (one for one in library.entries() if one.damage)
    assert not rotten.unreadable
    library.remove(rotten)
    assert library.verify(other) == []
    assert {name.partition("/")[2] for name in files(library) if "segments" in name} == {
        f"{name}.seg" for name in other.segments
    }


def test_what_is_damaged_is_pruned_before_what_is_good(library: Library) -> None:
    old, rotten, new = (ingest(library, [*range(at, at + 40)]) for at in (0, 100, 200))
    for at, entry in enumerate((old, rotten, new)):
        used_at(library, entry, 1000.0 + at)
    manifest(library, rotten).write_bytes(b"rotten")
    assert library.prune(library.nbytes).removed == ()
    tried = library.prune(library.nbytes - 1, dry_run=True)
    done = library.prune(library.nbytes - 1)
    assert [one.key for one in done.removed] == [rotten.key]
    assert (tried.freed, tried.left) == (done.freed, done.left)
    assert done.left == library.nbytes
    assert library.verify(old) == library.verify(new) == []
    done = library.prune(library.nbytes - 1)
    assert [one.key for one in done.removed] == [old.key]


def make_foreign(library: Library, entry: Entry) -> None:
    """Gives a document's manifest another format, as a later esa would write."""
    path = manifest(library, entry)
    path.write_bytes(path.read_bytes().replace(b"document 1 ", b"document 99 ", 1))


@pytest.mark.parametrize("rotten", [False, True])
def test_pruning_leaves_another_formats_documents_alone(library: Library, rotten: bool) -> None:
    kept, old, new = (ingest(library, [*range(at, at + 40)]) for at in (0, 100, 200))
    for at, entry in enumerate((kept, old, new)):
        used_at(library, entry, 1000.0 + at)
    whole = manifest(library, kept).read_bytes()
    make_foreign(library, kept)
    if rotten:
        manifest(library, new).write_bytes(b"rotten")
    tried = library.prune(library.nbytes - 1, dry_run=True)
    done = library.prune(library.nbytes - 1)
    assert [one.key for one in done.removed] == [new.key if rotten else old.key]
    assert (tried.freed, tried.left) == (done.freed, done.left)
    assert done.left == library.nbytes
    assert [one.key for one in done.left_alone] == [kept.key]
    manifest(library, kept).write_bytes(whole)
    assert library.verify(kept) == library.verify(old if rotten else new) == []


def test_a_size_that_another_formats_documents_exceed_costs_no_other(library: Library) -> None:
    kept, other = ingest(library, [*range(400)]), ingest(library, OTHERS)
    part_of(library, [*range(900, 970)], 50)
    make_foreign(library, kept)
    before = files(library)
    for dry_run in (True, False):
        with pytest.raises(LibraryError, match="nothing was removed, for the size") as raised:
            library.prune(other.nbytes, dry_run=dry_run)
        assert f"esa library rm {kept.id}`" in raised.value.hint
    assert files(library) == before
    assert library.verify(other) == []
    (found,) = (one for one in library.entries() if one.foreign)
    library.remove(found)
    assert library.prune(library.nbytes).removed == ()


def test_a_full_disk_is_left_clean_beside_a_damaged_document(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest(library, ingest(library, OTHERS)).write_bytes(b"rotten")
    before, real, left = files(library), checksummed_file.WholeFile.write, [15]

    def write(self: Any, data: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, data)

    monkeypatch.setattr(checksummed_file.WholeFile, "write", write)
    with pytest.raises(ResourceError):
        ingest(library, IDS)
    assert files(library) == before


def test_projections_that_come_while_others_prune_stay(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingest writes them whenever it is ready: here after it was seen what is needed."""
    real, fit = maintenance.needed_files, library.root / "fits" / f"{'b' * 24}.fit"

    def needed(*given: Any, **options: Any) -> NeededFiles:
        found = real(*given, **options)
        fit.write_bytes(b"just written")
        return found

    with library.write(library.key(WITH, text_of(IDS)), WITH, IDS, LAYOUT):
        with monkeypatch.context() as patch:
            patch.setattr(maintenance, "needed_files", needed)
            library.prune(0)
        assert fit.exists()
    library.prune()
    assert not fit.exists()


def test_a_claim_that_cannot_be_read_is_heeded(
    library: Library, hide: Callable[[Path], None]
) -> None:
    entry = ingest(library, IDS)
    part_of(library, [*range(70)], 50)
    (claim,) = (library.root / "claims").iterdir()
    hide(claim)
    library.remove(entry)
    with library.write(library.key(WITH, text_of(range(70))), WITH, [*range(70)], LAYOUT) as writer:
        assert isinstance(writer, Writer)
        assert writer.done == 48


def test_a_document_that_goes_while_it_is_looked_for_is_not_found(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, real = ingest(library, IDS), Path.read_bytes

    def read(path: Path) -> bytes:
        if path.suffix == ".doc":
            path.unlink()
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    assert library.find(entry.key) is None


def test_a_file_that_goes_while_all_are_counted_counts_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(library, IDS)
    part = library.root / "segments" / f".{'d' * 40}-none.seg.{'e' * 40}.part"
    part.write_bytes(b"being written")
    wanted = library.nbytes - len(b"being written")
    size_of = library_paths.size_of

    def gone_then(path: Path) -> int:
        part.unlink(missing_ok=True)
        return size_of(path)

    monkeypatch.setattr(library_paths, "size_of", gone_then)
    assert library.nbytes == wanted


@pytest.mark.skipif(os.name == "nt", reason="Windows always has locks")
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_disk_without_locks_is_named(
    library: Library, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    entry = ingest(library, IDS)

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    for change in (lambda: ingest(library, OTHERS), lambda: library.prune(0)):
        with pytest.raises(LibraryError, match="has no locks") as raised:
            change()
        assert "another disk" in raised.value.hint
    assert library.verify(entry) == []
    assert library.open(entry).ids == IDS, "what is there can be asked"


def test_the_text_comes_back_to_the_letter(library: Library) -> None:
    entry = ingest(library, IDS)
    assert library.text(entry) == text_of(IDS)
    path = library.root / "documents" / f"{entry.key}.text"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LibraryError, match="its length is wrong"):
        library.text(entry)
