"""Documents copied to a folder, a URL or an archive and back: complete, once, whatever stops it."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save
from test_library import assert_holds, files, ingest

from esa_cli.errors import ArchiveFileError, LibraryError, UsageError
from esa_cli.storage.library import Library
from esa_cli.storage.library import library as library_file
from esa_cli.storage.library.disk import pack_checksummed_file
from esa_cli.storage.library.library_copy import SourceLibrary, pull_documents, push_documents
from esa_cli.storage.library.packed_files import pack_tokens
from esa_cli.storage.library.stored_cache import StoredKVCache
from esa_cli.system.files import LIBRARY_MARKER

IDS = [*range(40)]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Two documents, the first segments of which are the same."""
    made = Library(tmp_path / "library")
    ingest(made, IDS)
    ingest(made, [*IDS, *range(90, 120)])
    return made


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "far away" / "library")


def stop_after(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, calls: int) -> None:
    """Ctrl-C in place of a further call of a method."""
    real, left = getattr(owner, name), calls

    def limited(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(owner, name, limited)


def bytes_of(library: Library) -> dict[str, bytes]:
    """Of all files of its documents, by name."""
    return {name: (library.root / name).read_bytes() for name in sorted(files(library))}


def same(one: Library, two: Library) -> bool:
    """Whether their documents have the same bytes, and are whole."""
    return bytes_of(one) == bytes_of(two) and all(
        two.verify(entry) == [] for entry in two.entries()
    )


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


def test_documents_come_back_as_they_were(library: Library, other: Library, folder: str) -> None:
    shown = list[tuple[int, int]]()
    there = push_documents(library, folder, library.entries(), lambda *done: shown.append(done))
    assert shown == [(1, 2), (2, 2)]
    assert (len(there.copied), there.already_there, there.failed) == (2, 0, [])
    assert there.bytes == sum(map(len, bytes_of(Library(Path(folder))).values()))
    back = pull_documents(other, folder)
    assert (sorted(back.copied), back.bytes) == (sorted(there.copied), there.bytes)
    assert same(library, other)
    assert not list((other.root / "claims").iterdir())
    for done in (push_documents(library, folder, library.entries()), pull_documents(other, folder)):
        assert (done.copied, done.already_there, done.bytes) == ([], 2, 0)
    stored = other.open_document(other.entries()[0])
    assert stored.text == library.text(stored.entry)


def test_chosen_documents(library: Library, other: Library, folder: str) -> None:
    first, second = library.entries()
    push_documents(library, folder, [first])
    assert pull_documents(other, folder).copied == [first.key]
    push_documents(library, folder, [first, second])
    assert pull_documents(other, folder, [second.key[:6].upper()]).copied == [second.key]
    for wrong in ("zzzz", second.key[:3]):
        with pytest.raises(UsageError, match="ID must be at least 4 digits of a document"):
            pull_documents(other, folder, [wrong])


@pytest.mark.parametrize("place", ["folder", "archive"])
def test_a_copy_that_is_stopped_goes_on(
    library: Library, other: Library, folder: str, tmp_path: Path, place: str
) -> None:
    if place == "archive":
        folder = str(tmp_path / "books.tar")
        push_documents(library, folder, library.entries())

    def work() -> None:
        try:
            push_documents(library, folder, library.entries())
        finally:
            assert pull_documents(other, folder).failed == [], "what is there is complete"
            assert all(other.verify(entry) == [] for entry in other.entries())
            assert not list(tmp_path.rglob("*.part"))

    assert until_done(lambda p: stop_after(p, SourceLibrary, "read_file_chunks", 3), work) > 0
    assert same(library, other)


def test_an_archive_that_is_stopped_leaves_the_one_before(library: Library, tmp_path: Path) -> None:
    out = tmp_path / "books.tar"
    for before in (b"", b"first"):
        if before:
            push_documents(library, str(out), library.entries()[:1])
            before = out.read_bytes()
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, tarfile.TarFile, "addfile", 3)
            with pytest.raises(KeyboardInterrupt):
                push_documents(library, str(out), library.entries())
        assert (out.read_bytes() if out.exists() else b"") == before
        assert not list(tmp_path.rglob("*.part"))


def test_a_pull_beside_a_prune(library: Library, other: Library, folder: str) -> None:
    push_documents(library, folder, library.entries())
    real = SourceLibrary.read_file_chunks

    def read_file_chunks(*given: Any) -> Iterator[bytes]:
        for chunk in real(*given):
            assert other.prune().leftovers == 0
            yield chunk

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceLibrary, "read_file_chunks", read_file_chunks)
        pull_documents(other, folder)
    assert same(library, other)


@pytest.mark.skipif(os.name == "nt", reason="no such rights")
def test_a_folder_that_push_makes_is_its_owners_alone(library: Library, tmp_path: Path) -> None:
    made, before = tmp_path / "far" / "made", tmp_path / "before"
    before.mkdir()
    before.chmod(0o750)
    for place in (made, before):
        push_documents(library, str(place), library.entries())
    assert made.stat().st_mode & 0o777 == 0o700
    assert before.stat().st_mode & 0o777 == 0o750, "another's folder keeps its rights"


def test_a_prune_that_has_decided_removes_nothing_of_a_pull(
    library: Library, other: Library, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_documents(library, folder, library.entries())
    pull_documents(other, folder)
    for path in other.root.glob("documents/*"):
        path.unlink()  # segments that no document needs
    decided, delete = threading.Event(), library_file.delete_files

    def later(*given: Any) -> int:
        decided.set()
        time.sleep(0.5)
        return delete(*given)

    monkeypatch.setattr(library_file, "delete_files", later)
    pruning = threading.Thread(target=other.prune)
    pruning.start()
    assert decided.wait(10)
    pull_documents(other, folder)
    pruning.join()
    assert same(library, other)


def test_folders_that_are_refused(library: Library, other: Library, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("mine", "utf-8")
    with pytest.raises(LibraryError, match="is not a library of esa, and not empty"):
        push_documents(library, str(tmp_path / "own"), library.entries())
    assert len(list((tmp_path / "own").iterdir())) == 1
    for place in ("own", "none"):
        with pytest.raises(LibraryError, match="is not a library of esa"):
            pull_documents(other, str(tmp_path / place))
    with pytest.raises(UsageError, match=r"to or from a folder or FILE\.tar"):
        pull_documents(other, "s3://bucket/library")
    with pytest.raises(UsageError, match=r"to or from a folder or FILE\.tar"):
        push_documents(library, "s3://bucket/library", library.entries())
    assert not other.root.exists()
    assert files(Library(tmp_path / "none")) == set()
    assert push_documents(Library(tmp_path / "none"), str(tmp_path / "new"), []).copied == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_damage_is_found_before_a_document_exists_and_the_hint_mends_it(
    library: Library, other: Library, tmp_path: Path, damage: str
) -> None:
    far, entry = tmp_path / "far", library.entries()[-1]
    push_documents(library, str(far), [entry])
    kinds = ("documents/*.doc", "documents/*.text", "documents/*.tokens", "segments/*", "fits/*")
    for path in [min(far.glob(kind)) for kind in kinds]:
        whole = path.read_bytes()
        changed = {"flipped": bytes([*whole[:-9], whole[-9] ^ 4, *whole[-8:]]), "cut": whole[:-1]}
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(changed[damage])
        result = pull_documents(other, str(far))
        assert other.entries() == []
        if path.suffix != ".doc" or damage != "missing":
            (error,) = result.failed
            assert path.relative_to(far).as_posix() in error.message
            for one in re.findall(r"(?:documents|segments|fits)/\S+", error.hint):
                (far / one).unlink(missing_ok=True)
        push_documents(library, str(far), [entry])
        assert pull_documents(other, str(far)).copied == [entry.key]
        other.remove(other.entries()[0])


# Contents that no esa wrote, with valid checksums.


def not_pulled(library: Library, given: dict[str, bytes], folder: Path, key: str) -> str:
    """Copies these files from a folder, which brings all documents but that of the key; why."""
    for name, data in [(LIBRARY_MARKER, b""), *given.items()]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    result = pull_documents(library, str(folder))
    assert len(result.failed) == 1
    assert key[:12] in result.failed[0].message
    assert result.failed[0].exit_code == 3
    assert key not in [entry.key for entry in library.entries()]
    assert all(library.verify(entry) == [] for entry in library.entries())
    return result.failed[0].message


def remade(given: dict[str, bytes], key: str, change: Callable[[Any], None]) -> dict[str, bytes]:
    """The files, the facts of one manifest changed, its checksum right."""
    name = f"documents/{key}.doc"
    facts = json.loads(given[name].partition(b"\n")[2])
    change(facts)
    return given | {name: pack_checksummed_file("document", json.dumps(facts).encode())[0]}


CHANGES: dict[str, Callable[[Any], None]] = {
    "no key": lambda facts: facts.pop("key"),
    "one more": lambda facts: facts.update(used=1),
    "another's key": lambda facts: facts.update(key="a" * 40),
    "identity": lambda facts: facts.update(identity="another"),
    "true": lambda facts: facts.update(head=True),
    "tokens": lambda facts: facts.update(tokens=facts["tokens"] - 1),
    "negative": lambda facts: facts.update(head=-1),
    "rows": lambda facts: facts["sizes"].update(segments=facts["sizes"]["segments"] + 1),
    "path": lambda facts: facts.update(
        segments=[f"../../x-{facts['fit']}"] * len(facts["segments"])
    ),
    "fit": lambda facts: facts.update(fit="../x"),
    "layers": lambda facts: facts["layout"].update(layers=10**12),
    "states": lambda facts: facts["layout"].update(states=10**12),
    "sizes": lambda facts: facts["sizes"].update(text=facts["sizes"]["text"] + 1),
    "digests": lambda facts: facts.update(digests={}),
    "characters": lambda facts: facts.update(characters=10**9),
    "provenance": lambda facts: facts.update(provenance=[]),
    "created": lambda facts: facts.update(created=float("nan")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_manifests_with_valid_checksums(
    library: Library, other: Library, tmp_path: Path, change: str
) -> None:
    key = library.entries()[0].key
    given = remade(bytes_of(library), key, CHANGES[change])
    why = not_pulled(other, given, tmp_path / "far", key)
    # Before a file is looked for under a name that a stranger chose.
    assert change not in ("path", "fit") or "not what esa writes" in why


def test_contents_of_another_document(library: Library, other: Library, tmp_path: Path) -> None:
    """Each file is complete, and the wrong one."""
    given = bytes_of(library)
    short, long = sorted(library.entries(), key=lambda entry: entry.tokens)
    for kind in ("text", "tokens"):
        wrong = {f"documents/{short.key}.{kind}": given[f"documents/{long.key}.{kind}"]}
        not_pulled(other, given | wrong, tmp_path / kind, short.key)
    first, last = (f"segments/{long.segments[at]}.seg" for at in (0, -1))
    empty = Library(tmp_path / "empty")
    not_pulled(empty, given | {last: given[first]}, tmp_path / "mixed", long.key)


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_contents_that_the_manifest_agrees_with(
    library: Library, other: Library, tmp_path: Path, kind: str
) -> None:
    """Every checksum is right, and the text is not its key's, or the tokens are not the text's."""
    entry = library.entries()[0]
    tokens = pack_tokens([7] * entry.tokens, [(0, 1)] * entry.tokens)
    text = [library.text(entry)[::-1].encode("utf-8", "surrogatepass"), b"\xff"]
    for i, payload in enumerate(text if kind == "text" else [tokens, b"x", save({})]):
        data, digest = pack_checksummed_file(kind, payload)

        def change(facts: Any, digest: str = digest, size: int = len(data)) -> None:
            facts["digests"][kind], facts["sizes"][kind] = digest, size

        given = remade(bytes_of(library), entry.key, change)
        given[f"documents/{entry.key}.{kind}"] = data
        not_pulled(other, given, tmp_path / f"far{i}", entry.key)


# Archives.


@pytest.fixture
def archive(library: Library, tmp_path: Path) -> Path:
    out = tmp_path / "books.tar"
    done = push_documents(library, str(out), library.entries())
    assert (len(done.copied), done.failed) == (2, [])
    return out


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


def refused(library: Library, path: Path) -> LibraryError:
    """The error of a copy from an archive, which must have changed nothing."""
    before = tree(library.root)
    with pytest.raises(LibraryError) as raised:
        pull_documents(library, str(path))
    assert tree(library.root) == before
    assert raised.value.exit_code == 3
    return raised.value


def test_an_archive_brings_documents_as_they_were(
    library: Library, other: Library, archive: Path, tmp_path: Path
) -> None:
    short, long = sorted(library.entries(), key=lambda entry: entry.tokens)
    assert pull_documents(other, str(archive), [short.id]).copied == [short.key]
    assert pull_documents(other, str(archive)).copied == [long.key]
    assert same(library, other)
    again = pull_documents(other, str(archive))
    assert (again.copied, again.already_there, again.bytes) == ([], 2, 0)
    stored = other.open_document(other.entries()[0])
    assert_holds(StoredKVCache(stored).layers, stored.token_ids.tolist())
    push_documents(library, str(tmp_path / "again.tar"), library.entries())
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()
    if os.name != "nt":
        assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    assert same(library, Library(tmp_path / "out")), "unpacked it is a library"


def test_every_flipped_bit_of_an_archive_is_found_or_harmless(
    library: Library, archive: Path, tmp_path: Path
) -> None:
    data, draw, path = archive.read_bytes(), random.Random(3), tmp_path / "flipped.tar"
    places = {*range(0, 512, 41), *(draw.randrange(len(data)) for _ in range(120))}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            places |= {member.offset + 150, member.offset + 130, member.offset_data}
    for at in sorted(places):
        path.write_bytes(bytes([*data[:at], data[at] ^ 1 << draw.randrange(8), *data[at + 1 :]]))
        new = Library(tmp_path / f"new{at}")
        try:
            failed = pull_documents(new, str(path)).failed
        except LibraryError:
            assert new.entries() == []
        else:
            assert failed or same(library, new)
            assert all(new.verify(entry) == [] for entry in new.entries())


def test_an_archive_that_is_cut_off_is_refused(
    other: Library, archive: Path, tmp_path: Path
) -> None:
    data, draw, path = archive.read_bytes(), random.Random(4), tmp_path / "cut.tar"
    end = len(data.rstrip(b"\0"))
    for size in [0, 1, 511, 512, 700, end - 1, *(draw.randrange(end) for _ in "x" * 40)]:
        path.write_bytes(data[:size])
        refused(other, path)


def test_members_that_esa_does_not_make(
    library: Library, other: Library, archive: Path, tmp_path: Path
) -> None:
    key = "a" * 40
    names = ["../../evil.seg", "/etc/evil", "documents/../x.text", f"claims/{key}.claim", "x\x1b"]
    with tarfile.open(archive, "a") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    before = {path for path in tmp_path.rglob("*") if other.root not in path.parents}
    assert len(pull_documents(other, str(archive)).copied) == 2
    assert {path for path in tmp_path.rglob("*") if other.root not in path.parents} == before | {
        other.root
    }
    assert same(library, other)
    with tarfile.open(archive, "a") as tar:
        link = tarfile.TarInfo(f"documents/{key}.doc")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(ArchiveFileError):
        pull_documents(other, str(archive))


def test_files_that_are_no_archive_of_a_library(
    library: Library, other: Library, archive: Path, tmp_path: Path
) -> None:
    made = {name: tmp_path / name for name in ("a.gz", "a.tar", "a.txt", "none.tar")}
    made["a.gz"].write_bytes(gzip.compress(archive.read_bytes()))
    made["a.txt"].write_text("a text", "utf-8")
    with tarfile.open(made["a.tar"], "w") as tar:
        tar.add(made["a.txt"], "x")
    if hasattr(os, "mkfifo"):  # without a writer, which is not waited for
        os.mkfifo(tmp_path / "pipe.tar")
        made["pipe"] = tmp_path / "pipe.tar"
    for path in made.values():
        assert isinstance(refused(other, path), ArchiveFileError)
    for path in (made["a.txt"], made["a.tar"]):
        before = path.read_bytes()
        with pytest.raises(UsageError):
            push_documents(library, str(path), library.entries())
        assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["books.tar", "far"])
def test_documents_that_are_damaged_are_left_out(
    library: Library, other: Library, tmp_path: Path, place: str
) -> None:
    short, long = sorted(library.entries(), key=lambda entry: entry.tokens)
    last = library.root / "segments" / f"{long.segments[-1]}.seg"
    data = bytearray(last.read_bytes())
    data[-5000] ^= 1
    last.write_bytes(data)
    done = push_documents(library, str(tmp_path / place), library.entries())
    assert (done.copied, len(done.failed)) == ([short.key], 1)
    assert pull_documents(other, str(tmp_path / place)).copied == [short.key]
    (library.root / "documents" / f"{long.key}.doc").write_bytes(b"")
    (library.root / "documents" / f"{short.key}.text").unlink()
    if place == "far":
        assert len(push_documents(library, str(tmp_path / "new"), library.entries()).failed) == 2
        assert not list((tmp_path / "new").rglob("*.doc"))
        return
    with pytest.raises(LibraryError):
        push_documents(library, str(tmp_path / "new.tar"), library.entries())
    assert not (tmp_path / "new.tar").exists()
