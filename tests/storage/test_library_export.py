"""Documents in one file and back: every byte checked, and nothing changed where it is not right."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import save
from test_library import assert_holds, files, ingest, offsets_of, text_of

from esa_cli.errors import (
    DiskError,
    ExportFileError,
    ForeignVersionError,
    LibraryError,
    ResourceError,
    UsageError,
)
from esa_cli.storage.library import Layout, Library
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.document_files import pack_tokens
from esa_cli.storage.library.formats.library_paths import MARKER, LibraryPaths
from esa_cli.storage.library.transfer import export_format, library_export
from esa_cli.storage.library.transfer.document_transfer import pull
from esa_cli.storage.library.transfer.export_format import BLOCK, END
from esa_cli.storage.library.transfer.exported_file import ExportedFile
from esa_cli.storage.library.transfer.library_export import export_documents, import_documents

IDS = [*range(40)]
MORE = [*IDS, *range(90, 120)]
Member = tuple[str, bytes]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Two documents, the first segments of which are the same."""
    made = Library(tmp_path / "library")
    ingest(made, IDS)
    ingest(made, MORE)
    return made


@pytest.fixture
def other(tmp_path: Path) -> Library:
    return Library(tmp_path / "other")


@pytest.fixture
def exported(library: Library, tmp_path: Path) -> Path:
    out = tmp_path / "books.tar"
    done = export_documents(library, out, library.entries())
    assert (len(done.copied), done.failed, done.bytes) == (2, [], out.stat().st_size)
    return out


def same(one: Library, two: Library) -> bool:
    """Whether their documents have the same bytes, and are whole."""
    first, second = (
        {name: (lib.root / name).read_bytes() for name in files(lib)} for lib in (one, two)
    )
    return first == second and all(two.verify(entry) == [] for entry in two.entries())


def members(path: Path) -> list[Member]:
    """Names and bytes of all members but the index."""
    with ExportedFile(path) as export:
        return [(name, export.read(name)) for name in export.members]


def build(path: Path, given: list[Member], headers: list[bytes] | None = None) -> Path:
    """An export of these members; its index is right, whatever they are."""
    sizes = [(name, len(data), checksummed(data)) for name, data in given]
    index = export_format.index_bytes(sizes)
    out = io.BytesIO()
    for i, (name, data) in enumerate([(export_format.INDEX, index), *given]):
        header = export_format.tar_header(name, len(data))
        out.write(headers[i - 1] if headers and i else header)
        out.write(data + bytes(-len(data) % BLOCK))
    path.write_bytes(out.getvalue() + END)
    return path


def checksummed(data: bytes) -> str:
    digest = export_format.new_digest()
    digest.update(data)
    return digest.hexdigest()


def not_pulled(library: Library, given: list[Member], folder: Path, key: str) -> None:
    """Pulls these files from a folder, which brings all documents but that of the key."""
    for name, data in [(MARKER, b""), *given]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    result = pull(library, str(folder))
    assert len(result.failed) == 1
    assert key[:12] in result.failed[0].message
    assert key not in [entry.key for entry in library.entries()]
    assert all(library.verify(entry) == [] for entry in library.entries())


def refused(library: Library, path: Path) -> LibraryError:
    """The error of an import, which must have changed nothing."""
    before = tree(library.root)
    with pytest.raises(LibraryError) as raised:
        import_documents(library, path)
    assert tree(library.root) == before
    assert raised.value.exit_code == 3
    assert raised.value.hint
    assert "\n" not in raised.value.message
    return raised.value


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


def test_documents_come_back_as_they_were(library: Library, other: Library, exported: Path) -> None:
    checks, copies = list[tuple[int, int]](), list[tuple[int, int]]()
    done = import_documents(
        other, exported, lambda *now: checks.append(now), lambda *now: copies.append(now)
    )
    assert (len(done.copied), done.there) == (2, 0)
    assert checks[-1] == (len(checks), len(members(exported)))
    assert copies == [(1, 2), (2, 2)]
    assert same(library, other)
    assert not list((other.root / "claims").iterdir())
    again = import_documents(other, exported)
    assert (again.copied, again.there, again.bytes) == ([], 2, 0)
    for entry, ids in zip(
        sorted(other.entries(), key=lambda one: one.tokens), (IDS, MORE), strict=True
    ):
        stored = other.open(entry)
        assert (stored.text, stored.ids) == (text_of(ids), ids)
        assert stored.offsets.tolist() == [list(pair) for pair in offsets_of(ids)]
        assert_holds(stored.layers(), ids)


def test_rows_of_an_unusual_layout_come_back(
    library: Library, other: Library, tmp_path: Path
) -> None:
    """As those of latents, whose parts have scales of their own."""
    entry = ingest(library, IDS[:20], Layout(1, 1, 4, "float32", "int8", block=2))
    export_documents(library, tmp_path / "one.tar", [entry])
    assert import_documents(other, tmp_path / "one.tar").copied == [entry.key]
    assert other.entries()[0].layout == entry.layout


def test_chosen_documents_and_shared_segments(
    library: Library, other: Library, tmp_path: Path
) -> None:
    short, long = sorted(library.entries(), key=lambda entry: entry.tokens)
    export_documents(library, tmp_path / "short.tar", [short])
    export_documents(library, tmp_path / "long.tar", [long])
    assert import_documents(other, tmp_path / "short.tar").copied == [short.key]
    kept = {path: path.stat().st_mtime_ns for path in other.root.glob("segments/*")}
    done = import_documents(other, tmp_path / "long.tar")
    assert done.copied == [long.key]
    shared = sum(path.stat().st_size for path in kept)
    assert done.bytes < (tmp_path / "long.tar").stat().st_size - shared * 2 / 3
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert same(library, other)


def test_a_file_is_the_same_each_time_and_for_its_owner(
    library: Library, exported: Path, tmp_path: Path
) -> None:
    entries = library.entries()
    export_documents(library, tmp_path / "again.tar", entries)
    assert (tmp_path / "again.tar").read_bytes() == exported.read_bytes()
    export_documents(library, exported, entries[:1])
    assert exported.stat().st_size < (tmp_path / "again.tar").stat().st_size
    if os.name != "nt":
        assert exported.stat().st_mode & 0o777 == 0o600


def test_tar_reads_it(library: Library, exported: Path, tmp_path: Path) -> None:
    with tarfile.open(exported) as archive:
        found = archive.getmembers()
        assert found[0].name == export_format.INDEX
        assert all(one.isreg() and one.mode == 0o600 for one in found)
        archive.extractall(tmp_path / "out", filter="data")
    for one in found[1:]:
        assert (tmp_path / "out" / one.name).read_bytes() == (library.root / one.name).read_bytes()
    if tar := shutil.which("tar"):
        listed = subprocess.run([tar, "tf", exported], capture_output=True, text=True, timeout=20)
        assert listed.stdout.split() == [one.name for one in found]
        assert (listed.returncode, listed.stderr) == (0, "")


def test_a_header_of_more_than_8_gib() -> None:
    with pytest.raises(tarfile.TarError):
        tarfile.TarInfo.frombuf(bytes(BLOCK), "ascii", "strict")
    for size in (0, 1, 8**11 - 1, 8**11, 1 << 50):
        read = tarfile.TarInfo.frombuf(
            export_format.tar_header("segments/x.seg", size), "ascii", ""
        )
        assert (read.name, read.size, read.mode) == ("segments/x.seg", size, 0o600)


def test_every_flipped_bit_is_found(other: Library, exported: Path, tmp_path: Path) -> None:
    whole, draw = exported.read_bytes(), random.Random(3)
    places = {*range(0, BLOCK, 41), len(whole) - 1, len(whole) - 600}
    places |= {draw.randrange(len(whole)) for _ in range(150)}
    with ExportedFile(exported) as export:
        for member in export.members.values():
            places |= {member.start - 7, member.start, member.start + member.size}
    path = tmp_path / "flipped.tar"
    for at in sorted(places):
        path.write_bytes(bytes([*whole[:at], whole[at] ^ 1 << draw.randrange(8), *whole[at + 1 :]]))
        refused(other, path)


def test_every_truncation_is_found(other: Library, exported: Path, tmp_path: Path) -> None:
    whole, draw = exported.read_bytes(), random.Random(4)
    path = tmp_path / "cut.tar"
    for size in [
        0,
        1,
        511,
        512,
        700,
        len(whole) - 1,
        *(draw.randrange(len(whole)) for _ in "x" * 40),
    ]:
        path.write_bytes(whole[:size])
        refused(other, path)
    path.write_bytes(whole[:-1])
    assert "cannot be imported: it is cut off: " in refused(other, path).message
    path.write_bytes(whole + b"\0")
    assert "it has 1 bytes behind its end" in refused(other, path).message


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.seg",
        "/etc/passwd",
        "documents/../x.text",
        "documents/notes.text",
        "claims/" + "a" * 40 + ".claim",
        "documents/" + "a" * 40 + ".words",
        "esa-library",
        "C:\\evil.seg",
        "segments/x\x1b[31m",
    ],
)
def test_names_that_esa_does_not_make(
    other: Library, exported: Path, tmp_path: Path, name: str
) -> None:
    path = build(tmp_path / "evil.tar", [*members(exported), (name[:99], b"x")])
    assert "which is no file of a library" in refused(other, path).message


def test_other_kinds_of_members(other: Library, exported: Path, tmp_path: Path) -> None:
    given = members(exported)
    headers = [export_format.tar_header(name, len(data)) for name, data in given]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE):
        made = tarfile.TarInfo(given[-1][0])
        made.type, made.linkname, made.size = kind, "/etc/passwd", len(given[-1][1])
        path = build(
            tmp_path / "link.tar", given, [*headers[:-1], made.tobuf(tarfile.USTAR_FORMAT)[:BLOCK]]
        )
        assert "is not what esa writes" in refused(other, path).message
    twice = build(tmp_path / "twice.tar", [*given, given[-1]])
    assert f"it has {given[-1][0]} twice" in refused(other, twice).message


def test_foreign_and_missing_members(other: Library, exported: Path, tmp_path: Path) -> None:
    given = members(exported)
    for i, (name, _) in enumerate(given):
        path = build(tmp_path / "less.tar", [*given[:i], *given[i + 1 :]])
        message = refused(other, path).message
        assert name in message or "belongs to none of its documents" in message
    spare = f"segments/{'a' * 40}-none.seg"
    path = build(tmp_path / "more.tar", [*given, (spare, b"x")])
    assert f"{spare} belongs to none of its documents" in refused(other, path).message


def remade(given: list[Member], kind: str, change: Callable[[Any], None]) -> list[Member]:
    """The members, the first manifest's facts changed, its checksum right."""
    out = list(given)
    name, data = out[0]
    facts = json.loads(data.partition(b"\n")[2])
    change(facts)
    out[0] = (name, checksummed_file.encode(kind, json.dumps(facts).encode())[0])
    return out


CHANGES: dict[str, Callable[[Any], None]] = {
    "no key": lambda facts: facts.pop("key"),
    "one more": lambda facts: facts.update(used=1),
    "another's key": lambda facts: facts.update(key="a" * 40),
    "identity": lambda facts: facts.update(identity="another"),
    "no number": lambda facts: facts.update(tokens="many"),
    "true": lambda facts: facts.update(head=True),
    "tokens": lambda facts: facts.update(tokens=facts["tokens"] - 1),
    "path": lambda facts: facts.update(segments=["../../x-none"] * len(facts["segments"])),
    "order": lambda facts: facts["segments"].reverse(),
    "fit": lambda facts: facts.update(fit="../x"),
    "layers": lambda facts: facts["layout"].update(layers=10**12),
    "reduced": lambda facts: facts["layout"].update(reduced=[-1, 5]),
    "states": lambda facts: facts["layout"].update(states=10**12),
    "no states": lambda facts: facts["layout"].update(states=-1),
    "dtype": lambda facts: facts["layout"].update(dtype="float8"),
    "sizes": lambda facts: facts["sizes"].update(text=facts["sizes"]["text"] + 1),
    "digests": lambda facts: facts.update(digests={}),
    "text": lambda facts: facts.update(text_sha256="0" * 64),
    "characters": lambda facts: facts.update(characters=10**9),
    "marks": lambda facts: facts.update(marks=[["a", None, None]]),
    "provenance": lambda facts: facts.update(provenance=[]),
    "name": lambda facts: facts["provenance"].update(name=3),
    "created": lambda facts: facts.update(created=float("nan")),
    "future": lambda facts: facts.update(created=1e300),
}


@pytest.mark.parametrize("change", CHANGES)
def test_manifests_with_valid_checksums(
    other: Library, exported: Path, tmp_path: Path, change: str
) -> None:
    made = remade(members(exported), "document", CHANGES[change])
    assert isinstance(refused(other, build(tmp_path / "made.tar", made)), ExportFileError)
    not_pulled(other, made, tmp_path / "far", Path(made[0][0]).stem)


def test_manifests_that_are_no_json(other: Library, exported: Path, tmp_path: Path) -> None:
    given = members(exported)
    for payload in (b"", b"[]", b"\xff", b"[" * 100_000, b'{"key": 1, "key": 2}'):
        data = checksummed_file.encode("document", payload)[0]
        message = refused(other, build(tmp_path / "made.tar", [(given[0][0], data), *given[1:]]))
        assert "its contents are not what esa writes" in message.message


def test_contents_of_another_document(
    library: Library, other: Library, exported: Path, tmp_path: Path
) -> None:
    """Each file is whole, and the wrong one."""
    given = dict(members(exported))
    short, long = sorted(library.entries(), key=lambda entry: entry.tokens)
    paths = LibraryPaths(Path())
    for kind in ("text", "tokens"):
        changed = dict(given)
        changed[str(paths.document(short.key, kind))] = given[str(paths.document(long.key, kind))]
        path = build(tmp_path / "mixed.tar", list(changed.items()))
        refused(other, path)
        not_pulled(other, list(changed.items()), tmp_path / kind, short.key)
    first, second = (str(paths.segment(name)) for name in long.segments[:2])
    changed = given | {first: given[second], second: given[first]}
    message = refused(other, build(tmp_path / "mixed.tar", list(changed.items()))).message
    assert "it holds another segment than its name says" in message
    data = bytearray(given[first])
    data[-5000] ^= 1
    path = build(tmp_path / "mixed.tar", list((given | {first: bytes(data)}).items()))
    assert "cannot be imported: " in refused(other, path).message


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_contents_that_the_manifest_agrees_with(
    library: Library, other: Library, exported: Path, tmp_path: Path, kind: str
) -> None:
    """Every checksum is right, and the text is not its key's, or the tokens are not the text's."""
    entry = library.entries()[0]
    name = str(LibraryPaths(Path()).document(entry.key, kind))
    text = library.text(entry)
    tokens = pack_tokens([7] * entry.tokens, [(0, 1)] * entry.tokens)
    wrong = [text[::-1].encode(), b"\xff"] if kind == "text" else [tokens, b"x", save({})]
    documents = sorted(members(exported), key=lambda one: entry.key not in one[0])
    for number, payload in enumerate(wrong):
        data, digest = checksummed_file.encode(kind, payload)

        def change(facts: Any, digest: str = digest, size: int = len(data)) -> None:
            facts["digests"][kind], facts["sizes"][kind] = digest, size

        given = dict(remade(documents, "document", change)) | {name: data}
        refused(other, build(tmp_path / "made.tar", list(given.items())))
        not_pulled(other, list(given.items()), tmp_path / f"far{number}", entry.key)


def test_other_formats_are_named(
    library: Library, other: Library, tmp_path: Path, exported: Path
) -> None:
    import gzip
    import zipfile

    made = {name: tmp_path / name for name in ("a.zip", "a.gz", "a.tar", "a.txt", "a.doc", "none")}
    with zipfile.ZipFile(made["a.zip"], "w") as archive:
        archive.writestr("x", "y")
    made["a.gz"].write_bytes(gzip.compress(exported.read_bytes()))
    with tarfile.open(made["a.tar"], "w") as tar:
        tar.add(made["a.zip"], "x")
    made["a.txt"].write_text("a text", "utf-8")
    made["a.doc"].write_bytes(next(library.root.glob("documents/*.doc")).read_bytes())
    says = {
        "a.zip": "is a zip archive, no export of esa",
        "a.gz": "is a gzip file, no export of esa",
        "a.tar": "is another tar archive, no export of esa",
        "a.txt": "is no export of esa",
        "a.doc": "is a library's own file, no export of esa",
        "none": "cannot be read: No such file",
    }
    for name, words in says.items():
        assert words in refused(other, made[name]).message
    assert "cannot be read" in refused(other, tmp_path).message


def test_another_version_is_named(
    library: Library, other: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = tmp_path / "books.tar"
    export_documents(library, exported, library.entries())
    given = members(exported)
    monkeypatch.setattr(checksummed_file, "FORMAT", 3)
    newer = build(tmp_path / "newer.tar", given)
    monkeypatch.undo()
    error = refused(other, newer)
    assert isinstance(error, ForeignVersionError)
    assert f"{newer} is of format 3; this esa reads formats 1 to 2" == error.message
    assert error.hint == "use the esa that wrote it"
    name, data = given[0]
    document = (name, data.replace(b"document 1 ", b"document 4 ", 1))
    error = refused(other, build(tmp_path / "mixed.tar", [document, *given[1:]]))
    assert isinstance(error, ForeignVersionError)
    assert f"mixed.tar cannot be imported: {name} is of format 4" in error.message


def test_damaged_documents_are_left_out(library: Library, other: Library, tmp_path: Path) -> None:
    short, long = sorted(library.entries(), key=lambda entry: entry.tokens)
    last = library.root / "segments" / f"{long.segments[-1]}.seg"
    data = bytearray(last.read_bytes())
    data[-5000] ^= 1
    last.write_bytes(data)
    out = tmp_path / "books.tar"
    done = export_documents(library, out, library.entries())
    assert (done.copied, len(done.failed)) == ([short.key], 1)
    assert import_documents(other, out).copied == [short.key]
    out.unlink()
    (library.root / "documents" / f"{short.key}.text").unlink()
    done = export_documents(library, out, library.entries())
    assert (done.copied, len(done.failed)) == ([], 2)
    assert not out.exists()


def test_what_may_be_overwritten(library: Library, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("mine", "utf-8")
    for path in (own, tmp_path):
        with pytest.raises(UsageError, match="--out must be a new file or an export"):
            export_documents(library, path, library.entries())
    assert own.read_text("utf-8") == "mine"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_an_export_that_is_stopped_leaves_nothing(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(*given: Any) -> None:
        if given[0] > 2:
            raise error

    out = tmp_path / "new" / "books.tar"
    out.parent.mkdir()
    with pytest.raises((KeyboardInterrupt, ResourceError)):
        export_documents(library, out, library.entries(), None, fails)
    assert not list(out.parent.iterdir())
    monkeypatch.setattr(library_export.shutil, "disk_usage", lambda path: SimpleNamespace(free=9))
    with pytest.raises(DiskError, match="the export would take"):
        export_documents(library, out, library.entries())


def test_a_document_that_changes_meanwhile(library: Library, tmp_path: Path) -> None:
    out, (last, _) = tmp_path / "books.tar", library.entries()
    path = library.root / "documents" / f"{last.key}.tokens"
    data = path.read_bytes()

    def cut(done: int, total: int) -> None:
        path.write_bytes(data[:-1])

    with pytest.raises(LibraryError, match="was changed meanwhile"):
        export_documents(library, out, library.entries(), None, cut)
    path.write_bytes(data)
    with pytest.raises(LibraryError, match="was removed meanwhile"):
        export_documents(library, out, library.entries(), None, lambda *now: path.unlink(True))
    assert not out.exists()


def test_an_import_that_is_stopped_goes_on(
    library: Library, other: Library, exported: Path
) -> None:
    real = ExportedFile.chunks
    stops = 0
    while stops < 40:
        left = 2

        def chunks(self: ExportedFile, name: str) -> Any:
            nonlocal left
            if name.startswith("segments/") and (other.root / "locks").exists():
                left -= 1
                if not left:
                    raise KeyboardInterrupt
            return real(self, name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ExportedFile, "chunks", chunks)
            patch.setattr(
                "esa_cli.storage.library.transfer.library_export.check_export",
                lambda export, progress: sorted(library.entries(), key=lambda one: one.tokens),
            )
            try:
                import_documents(other, exported)
                break
            except KeyboardInterrupt:
                stops += 1
                assert all(other.verify(entry) == [] for entry in other.entries())
                assert not list(other.root.rglob("*.part"))
    assert 1 < stops < 40
    assert same(library, other)


def test_a_file_that_changes_between_check_and_copy(other: Library, exported: Path) -> None:
    with ExportedFile(exported) as export:
        member = next(one for one in export.members.values() if one.name.startswith("segments/"))

    def flip(done: int, total: int) -> None:
        if done == total:
            with exported.open("r+b") as file:
                file.seek(member.start + 9000)
                file.write(b"changed")

    real = library_export.check_export

    def check(export: ExportedFile, progress: Any) -> Any:
        found = real(export, progress)
        flip(1, 1)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_export, "check_export", check)
        with pytest.raises(ExportFileError, match="its checksum is wrong"):
            import_documents(other, exported)
    assert other.entries() == []


def test_a_full_disk_is_said_before_anything_is_copied(
    other: Library, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "esa_cli.storage.library.disk_room.shutil.disk_usage",
        lambda path: SimpleNamespace(free=100),
    )
    with pytest.raises(DiskError):
        import_documents(other, exported)
    assert not other.root.exists()


def test_a_folder_that_is_no_library_is_refused(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("mine", "utf-8")
    with pytest.raises(LibraryError, match="is not a library of esa"):
        import_documents(Library(tmp_path / "own"), exported)
    assert len(list((tmp_path / "own").iterdir())) == 1


def test_damaged_segments_of_the_library_are_replaced(
    library: Library, other: Library, tmp_path: Path
) -> None:
    short, long = sorted(library.entries(), key=lambda entry: entry.tokens)
    out = tmp_path / "books.tar"
    export_documents(library, out, [short])
    import_documents(other, out)
    shared = other.root / "segments" / f"{short.segments[0]}.seg"
    shared.write_bytes(bytes(10))
    export_documents(library, out, [long])
    import_documents(other, out)
    assert same(library, other)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ExportFileError, match="must be a file"):
        ExportedFile(tmp_path / "pipe")
