"""Documents copied to a folder at a URL and back: whole, once, whatever stops it."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from test_library import files, ingest

from esa_cli.errors import DiskError, LibraryError, RemoteError, UsageError
from esa_cli.storage.library import Library, disk_room, maintenance
from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.library_paths import MARKER, LibraryPaths
from esa_cli.storage.library.transfer.document_transfer import pull, push
from esa_cli.storage.library.transfer.remote_folder import RemoteFolder, without_password

IDS = [*range(40)]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Two documents, the first segments of which are the same."""
    made = Library(tmp_path / "library")
    ingest(made, IDS)
    ingest(made, [*IDS, *range(90, 120)])
    return made


@pytest.fixture
def other(tmp_path: Path) -> Library:
    return Library(tmp_path / "other")


@pytest.fixture(params=["memory", "file", "path"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    place = tmp_path / "far away" / "library"
    yield {"memory": "memory://bucket/library", "file": place.as_uri(), "path": str(place)}[
        request.param
    ].replace("%20", " ")
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def stop_after(monkeypatch: pytest.MonkeyPatch, name: str, calls: int) -> None:
    """Ctrl-C in place of a further call of a method of RemoteFolder."""
    real, left = getattr(RemoteFolder, name), calls

    def limited(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(RemoteFolder, name, limited)


def same(one: Library, two: Library) -> bool:
    """Whether their documents have the same bytes, and are whole."""
    first, second = (
        {name: (lib.root / name).read_bytes() for name in files(lib)} for lib in (one, two)
    )
    return first == second and all(two.verify(entry) == [] for entry in two.entries())


def until_done(stopping: Callable[[pytest.MonkeyPatch], None], work: Callable[[], object]) -> int:
    """Does work until it is not stopped; how often it was."""
    for times in range(30):
        with pytest.MonkeyPatch.context() as patch:
            stopping(patch)
            try:
                work()
            except KeyboardInterrupt:
                continue
        return times
    raise AssertionError("it never ends")


def test_documents_come_back_as_they_were(library: Library, other: Library, url: str) -> None:
    shown = list[tuple[int, int]]()
    there = push(library, url, library.entries(), lambda *done: shown.append(done))
    assert shown == [(1, 2), (2, 2)]
    assert (len(there.copied), there.there, there.failed) == (2, 0, [])
    assert (
        there.bytes
        == sum(RemoteFolder(url).sizes().values()) - (library.root / MARKER).stat().st_size
    )
    back = pull(other, url)
    assert (sorted(back.copied), back.bytes) == (sorted(there.copied), there.bytes)
    assert same(library, other)
    assert not list((other.root / "claims").iterdir())
    for done in (push(library, url, library.entries()), pull(other, url)):
        assert (done.copied, done.there, done.bytes) == ([], 2, 0)
    stored = other.open(other.entries()[0])
    assert stored.text == library.text(library.entries()[0])


def test_chosen_documents(library: Library, other: Library, url: str) -> None:
    first, second = library.entries()
    push(library, url, [first])
    assert pull(other, url).copied == [first.key]
    push(library, url, [first, second])
    assert pull(other, url, [second.key[:6].upper()]).copied == [second.key]
    for wrong in ("zzzz", second.key[:3]):
        with pytest.raises(UsageError, match="ID must be at least 4 digits of a document"):
            pull(other, url, [wrong])


def test_a_push_that_is_stopped_goes_on(library: Library, other: Library, url: str) -> None:
    def work() -> None:
        try:
            push(library, url, library.entries())
        finally:
            pull(other, url)
            assert all(other.verify(entry) == [] for entry in other.entries())

    assert until_done(lambda patch: stop_after(patch, "put", 2), work) > 2
    assert same(library, other)
    assert not [name for name in RemoteFolder(url).sizes() if name.endswith(".part")]


def test_a_pull_that_is_stopped_goes_on(library: Library, other: Library, url: str) -> None:
    push(library, url, library.entries())

    def work() -> None:
        try:
            pull(other, url)
        finally:
            assert all(other.verify(entry) == [] for entry in other.entries())

    assert until_done(lambda patch: stop_after(patch, "chunks", 3), work) > 1
    assert same(library, other)


def test_a_pull_beside_a_prune(library: Library, other: Library, url: str) -> None:
    push(library, url, library.entries())
    real = RemoteFolder.chunks

    def chunks(*given: Any) -> Iterator[bytes]:
        for chunk in real(*given):
            assert other.prune().leftovers == 0
            yield chunk

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteFolder, "chunks", chunks)
        pull(other, url)
    assert same(library, other)


def test_damage_is_found_before_a_document_exists(
    library: Library, other: Library, tmp_path: Path
) -> None:
    url = tmp_path / "far"
    entry = library.entries()[-1]
    push(library, str(url), [entry])
    for path in [one for one in url.rglob("*") if one.is_file() and one.name != MARKER]:
        whole = path.read_bytes()
        for data in (whole[:-1], bytes([*whole[:-9], whole[-9] ^ 4, *whole[-8:]])):
            path.write_bytes(data)
            new = Library(tmp_path / f"new-{path.name}-{len(data)}")
            (error,) = pull(new, str(url)).failed
            assert f"document {entry.id} in {url} cannot be used" in error.message
            assert new.entries() == []
        path.write_bytes(whole)
    assert pull(other, str(url)).copied == [entry.key]
    assert other.verify(other.entries()[0]) == []


def test_documents_that_are_damaged_here_are_left_out(library: Library, tmp_path: Path) -> None:
    whole, broken = library.entries()
    (library.root / "documents" / f"{broken.key}.doc").write_bytes(b"")
    (library.root / "documents" / f"{whole.key}.text").unlink()
    done = push(library, str(tmp_path / "far"), library.entries())
    assert (len(done.failed), done.copied) == (2, [])
    assert not list((tmp_path / "far").rglob("*.doc"))


def test_the_folder_of_a_disk_is_a_library(library: Library, tmp_path: Path) -> None:
    push(library, str(tmp_path / "far"), library.entries())
    far = Library(tmp_path / "far")
    assert {entry.key for entry in far.entries()} == {entry.key for entry in library.entries()}
    assert all(far.verify(entry) == [] for entry in far.entries())
    assert far.prune().leftovers == 0
    assert ingest(far, IDS).key in {entry.key for entry in library.entries()}


@pytest.mark.skipif(os.name == "nt", reason="no such rights")
def test_a_folder_that_push_makes_is_its_owners_alone(library: Library, tmp_path: Path) -> None:
    made, before = tmp_path / "far" / "made", tmp_path / "before"
    before.mkdir()
    before.chmod(0o750)
    for place in (made, before):
        push(library, str(place), library.entries())
    assert made.stat().st_mode & 0o777 == 0o700
    assert before.stat().st_mode & 0o777 == 0o750, "another's folder keeps its rights"


def test_folders_that_are_refused(library: Library, other: Library, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("mine", "utf-8")
    with pytest.raises(RemoteError, match="is not a library of esa, and not empty"):
        push(library, str(tmp_path / "own"), library.entries())
    assert len(list((tmp_path / "own").iterdir())) == 1
    for url in (str(tmp_path / "own"), str(tmp_path / "none"), "memory://none"):
        with pytest.raises(RemoteError, match="is not a library of esa"):
            pull(other, url)
    with pytest.raises(RemoteError, match="Protocol not known: nowhere"):
        pull(other, "nowhere://bucket/library")
    assert not other.root.exists()
    assert files(Library(tmp_path / "none")) == set()
    assert without_password("sftp://me:secret@host/a") == "sftp://host/a"
    assert push(Library(tmp_path / "none"), str(tmp_path / "new"), []).copied == []
    assert not (tmp_path / "new").exists()


def test_a_disk_that_fails_is_the_urls(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any, **more: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalFileSystem, "put_file", fails)
    with pytest.raises(RemoteError, match=r"far cannot be used: .*Permission denied") as raised:
        push(library, str(tmp_path / "far"), library.entries())
    assert raised.value.exit_code == LibraryError.exit_code == 3


def test_a_full_disk_is_a_lack_of_room(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "there")

    monkeypatch.setattr(LocalFileSystem, "put_file", fails)
    with pytest.raises(DiskError, match=r"far"):
        push(library, str(tmp_path / "far"), library.entries())


def test_a_prune_that_has_decided_removes_nothing_of_a_pull(
    library: Library, other: Library, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(library, url, library.entries())
    pull(other, url)
    for path in other.root.glob("documents/*"):
        path.unlink()  # segments that no document needs
    decided, delete = threading.Event(), maintenance._delete

    def later(*given: Any) -> int:
        decided.set()
        time.sleep(0.5)
        return delete(*given)

    monkeypatch.setattr(maintenance, "_delete", later)
    pruning = threading.Thread(target=other.prune)
    pruning.start()
    assert decided.wait(10)
    pull(other, url)
    pruning.join()
    assert same(library, other)


def test_pushes_of_the_same_documents_at_the_same_time(
    library: Library, other: Library, tmp_path: Path
) -> None:
    far, move = str(tmp_path / "far"), LocalFileSystem.mv

    def meanwhile(*given: Any) -> None:
        with pytest.MonkeyPatch.context() as second:
            second.setattr(LocalFileSystem, "mv", move)
            push(library, far, library.entries())
        move(*given)

    with pytest.MonkeyPatch.context() as first:
        first.setattr(LocalFileSystem, "mv", meanwhile)
        push(library, far, library.entries())
    pull(other, far)
    assert same(library, other)


def test_a_push_that_is_killed_at_its_marker_goes_on(library: Library, tmp_path: Path) -> None:
    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mv", "rm_file"):
            patch.setattr(LocalFileSystem, name, killed)
        with pytest.raises(KeyboardInterrupt):
            push(library, str(tmp_path / "far"), library.entries())
    assert len(list((tmp_path / "far").iterdir())) == 1
    assert len(push(library, str(tmp_path / "far"), library.entries()).copied) == 2


def test_a_push_that_fails_leaves_no_part(library: Library, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFileSystem, "mv", lambda *given: 1 / 0)
        with pytest.raises(RemoteError, match="division by zero"):
            push(library, str(tmp_path / "far"), library.entries())
    assert not list((tmp_path / "far").iterdir())


def mentioned(hint: str | None) -> list[str]:
    """The files that a hint names."""
    return re.findall(r"(?:documents|segments|fits)/\S+", hint or "")


def test_the_hint_mends_a_copy_whose_manifest_agrees_with_wrong_contents(
    library: Library, other: Library, tmp_path: Path
) -> None:
    far, entry = tmp_path / "far", library.entries()[-1]
    push(library, str(far), [entry])
    name = f"documents/{entry.key}.text"
    payload = library.text(entry)[::-1].encode()
    data, digest = checksummed_file.encode("text", payload)
    document = (far / name).with_suffix(".doc")
    facts = json.loads(document.read_bytes().partition(b"\n")[2])
    facts["digests"]["text"] = digest
    document.write_bytes(checksummed_file.encode("document", json.dumps(facts).encode())[0])
    (far / name).write_bytes(data)
    (error,) = pull(other, str(far)).failed
    for one in mentioned(error.hint):
        (far / one).unlink()
    push(library, str(far), [entry])
    assert pull(other, str(far)).copied == [entry.key]


@pytest.mark.parametrize("kind", ["documents/*.doc", "documents/*.tokens", "segments/*", "fits/*"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_the_hint_mends_a_copy(
    library: Library, other: Library, tmp_path: Path, kind: str, is_missing: bool
) -> None:
    far, entry = tmp_path / "far", library.entries()[-1]
    push(library, str(far), [entry])
    path = min(far.glob(kind))
    whole = path.read_bytes()
    path.write_bytes(bytes([*whole[:-9], whole[-9] ^ 4, *whole[-8:]]))
    if is_missing and path.suffix != ".doc":
        path.unlink()
    (error,) = pull(other, str(far)).failed
    name = path.relative_to(far).as_posix()
    assert f"cannot be used: {name} is " in error.message
    assert str(other.root) not in error.message
    if path.exists():
        for one in mentioned(error.hint):
            (far / one).unlink()
    push(library, str(far), [entry])
    assert pull(other, str(far)).copied == [entry.key]
    assert other.verify(other.entries()[0]) == []


def test_a_document_that_lacks_a_file_there_stops_no_other(
    library: Library, other: Library, url: str
) -> None:
    push(library, url, library.entries())
    first, second = sorted(entry.key for entry in library.entries())
    remote = RemoteFolder(url)
    remote._fs.rm_file(remote._path(f"documents/{first}.tokens"))
    done = pull(other, url)
    assert (len(done.failed), done.copied) == (1, [second])


def test_a_document_of_another_format_is_not_to_be_deleted(
    library: Library, other: Library, tmp_path: Path
) -> None:
    far = tmp_path / "far"
    push(library, str(far), library.entries())
    path = min(far.glob("documents/*.doc"))
    path.write_bytes(path.read_bytes().replace(b"document 1 ", b"document 4 ", 1))
    (error,) = pull(other, str(far)).failed
    assert "is of format 4; this esa reads formats 1 to 3" in error.message
    assert error.hint == "use the esa that wrote it"


def test_nothing_is_written_outside_the_library(
    library: Library, other: Library, tmp_path: Path
) -> None:
    far, entry = tmp_path / "far", library.entries()[-1]
    push(library, str(far), [entry])
    paths = LibraryPaths(far)
    whole = paths.segment(entry.segments[0]).read_bytes()
    for wrong in ("../../away", "../fits/away", "away"):
        paths.segment(wrong).write_bytes(whole)
        manifest.write(paths, replace(entry, segments=(wrong, *entry.segments[1:])))
        (error,) = pull(other, str(far)).failed
        assert "its contents are not what esa writes" in error.message
    assert files(other) == set()


def test_damage_of_a_shared_segment_is_repaired(library: Library, other: Library, url: str) -> None:
    first, second = library.entries()
    push(library, url, [first, second])
    pull(other, url, [first.key])
    path = other.root / "segments" / f"{first.segments[0]}.seg"
    assert first.segments[0] == second.segments[0]
    path.write_bytes(path.read_bytes()[:-1])
    pull(other, url)
    assert same(library, other)


def test_a_pull_says_that_it_waits_for_an_ingest(
    library: Library, other: Library, tmp_path: Path
) -> None:
    far = str(tmp_path / "far")
    push(library, far, library.entries())

    def waiting() -> None:
        raise InterruptedError("as Ctrl-C")

    paths = LibraryPaths(other.root)
    paths.make()
    with paths.locked(library.entries()[0].key), pytest.raises(InterruptedError):
        pull(other, far, waiting=waiting)
    assert len(pull(other, far, waiting=waiting).copied) >= 1


def test_a_pull_needs_room_for_what_is_not_there(
    library: Library, other: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = str(tmp_path / "far")
    push(library, far, library.entries())
    pull(other, far)
    for path in other.root.glob("documents/*.doc"):
        path.unlink()
    monkeypatch.setattr(disk_room.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    assert len(pull(other, far).copied) == 2
    with pytest.raises(DiskError, match="the document would take"):
        pull(Library(tmp_path / "new"), far)
