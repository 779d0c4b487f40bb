"""Documents: what is read, how bytes become text, and what each refusal says."""

from __future__ import annotations

import builtins
import io
import os
import zipfile
from pathlib import Path

import pytest

from esa_cli.documents.document import Document, join, read_document, read_documents
from esa_cli.errors import DocumentError, UsageError

POLISH = "Zażółć gęślą jaźń. Wszyscy ludzie rodzą się wolni i równi pod względem swych praw. " * 20
RUSSIAN = "Съешь ещё этих мягких французских булок, да выпей чаю. Вышел заяц на крыльцо. " * 20
FRENCH = "Le garçon a été très étonné de voir la forêt brûler. Où est-il allé ? Ça va. " * 20


def refused(source: Path | str, **options: object) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        read_document(str(source), **options)  # type: ignore[arg-type]
    return caught.value


def write(tmp_path: Path, data: bytes, name: str = "doc.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_reads_text(tmp_path: Path) -> None:
    path = write(tmp_path, "Grüße, 世界\n".encode(), "notes.md")
    document = read_document(str(path))
    assert document == Document("notes.md", "Grüße, 世界\n", str(path), "utf-8", 16)


def test_line_endings(tmp_path: Path) -> None:
    assert read_document(str(write(tmp_path, b"a\r\nb\rc\n"))).text == "a\nb\nc\n"


@pytest.mark.parametrize("stream", [io.BytesIO(b"x\n"), io.TextIOWrapper(io.BytesIO(b"x\n"))])
def test_standard_input(stream: io.IOBase) -> None:
    document = read_document("-", stream)  # type: ignore[arg-type]
    assert (document.text, document.source, document.bytes) == ("x\n", "-", 2)


def test_standard_input_terminal() -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    assert "terminal" in refused("-", stdin=Terminal()).message


def test_standard_input_empty_and_huge() -> None:
    assert "empty" in refused("-", stdin=io.BytesIO()).message
    assert "limit of 10 bytes" in refused("-", stdin=io.BytesIO(b"x" * 11), limit=10).message


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    document = read_document(str(write(tmp_path, "né\r\n".encode(encoding))))
    assert (document.text, document.encoding) == ("né\n", encoding)


@pytest.mark.parametrize(
    ("text", "encoding"), [(POLISH, "cp1250"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r")]
)
def test_legacy_encoding_when_clear(tmp_path: Path, text: str, encoding: str) -> None:
    assert read_document(str(write(tmp_path, text.encode(encoding)))).text == text


@pytest.mark.parametrize(
    "data",
    [
        POLISH.encode("iso8859-2"),
        "café\n".encode("latin-1"),
        b"plain words " * 50 + b"\x80\x9d\xff",
        (RUSSIAN * 2).encode() + b"\xff" + RUSSIAN.encode(),
        bytes(range(128, 256)) * 20,
    ],
    ids=["polish", "short", "junk", "broken", "noise"],
)
def test_doubtful_encoding_is_refused(tmp_path: Path, data: bytes) -> None:
    error = refused(write(tmp_path, data))
    assert "cannot be told" in error.message
    assert "iconv -f " in error.hint


def test_letter_beyond_the_sample_is_not_guessed(tmp_path: Path) -> None:
    text = ("Die Straße führt über die Brücke, größer als früher. Wäre es möglich?\n") * 16000
    data = text.encode("cp1252")
    assert len(data) > 1 << 20
    assert read_document(str(write(tmp_path, data))).text == text
    assert "cannot be told" in refused(write(tmp_path, data + "Škoda\n".encode("cp1252"))).message


def test_broken_after_mark(tmp_path: Path) -> None:
    error = refused(write(tmp_path, b"\xef\xbb\xbfok \xff\xfe"))
    assert "breaks at byte" in error.message
    assert "iconv" in error.hint


def test_what_is_no_file_is_told_in_few_words(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    said = {}
    for name in ("https://example.com/a", f"{tmp_path}/a.txt/", f"{tmp_path}/no/b.txt", "b" * 5000):
        with pytest.raises(DocumentError) as caught:
            read_document(name)
        said[name[-5:]] = caught.value
    assert "fetch the page" in said["com/a"].hint
    assert said[".txt/"].hint == "", "there is a file of that name"
    assert "no folder" in said["b.txt"].hint
    assert said["bbbbb"].message.count("bbbbb" * 1000) == 1


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_mark(tmp_path: Path, encoding: str) -> None:
    error = refused(write(tmp_path, ("plain words\n" * 30).encode(encoding)))
    assert "without a byte order mark" in error.message


def test_missing_suggests_a_near_name(tmp_path: Path) -> None:
    write(tmp_path, b"x", "report.txt")
    write(tmp_path, b"x", "bin.txt")
    error = refused(tmp_path / "reprot.txt")
    assert "there is no document" in error.message
    assert error.hint == f"did you mean {tmp_path / 'report.txt'}?"
    assert "no folder" in refused(tmp_path / "nowhere" / "x.txt").hint
    assert "check the path" in refused(tmp_path / "missing.txt").hint, "an ending is no likeness"


def test_empty_and_blank(tmp_path: Path) -> None:
    assert "0 bytes" in refused(write(tmp_path, b"")).message
    assert "white space" in refused(write(tmp_path, b" \n\t\n")).message
    assert "white space" in refused(write(tmp_path, b"\xef\xbb\xbf\n")).message


def test_folder(tmp_path: Path) -> None:
    error = refused(tmp_path)
    assert "is a folder" in error.message
    assert "notes.md" in error.hint


def zipped(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, "x")
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "hint"),
    [
        (zipped("a.txt"), "ZIP", "unpack"),
        (bytes(257) + b"ustar" + bytes(50), "TAR", "unpack"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old Office", "docx"),
        (b"\x7fELF\x02\x01", "ELF", ""),
        (b"\x89PNG\r\n\x1a\n", "PNG", ""),
        (b"{\\rtf1 words}", "RTF", "pandoc"),
        (b"GGUF\3\0\0\0", "GGUF", "--model"),
        (b"\xff\xd8\xff\xe0", "JPG", ""),
    ],
)
def test_known_binary(tmp_path: Path, data: bytes, kind: str, hint: str) -> None:
    error = refused(write(tmp_path, data))
    assert kind in error.message
    assert "not among the formats" in error.message
    assert hint in error.hint


def test_unknown_binary(tmp_path: Path) -> None:
    assert "NUL at byte 3" in refused(write(tmp_path, b"abc\0def")).message


def test_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, b"secret")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    error = refused(path)
    assert "may not be read" in error.message
    assert "chmod" in error.hint


def test_pipe_and_device_are_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "pipe, socket or device" in refused(pipe).message
    assert "pipe, socket or device" in refused("/dev/zero").message


def test_huge_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.txt"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)
    message = refused(path).message
    assert "3.0 GiB" in message
    assert "limit of 1.0 GiB" in message
    assert "limit of 4 bytes" in refused(write(tmp_path, b"12345"), limit=4).message


def test_name_with_nul() -> None:
    assert "cannot be read" in refused("a\0b").message


def test_several(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = write(tmp_path, b"one"), write(tmp_path, b"two\n", "b.md")
    same = write(tmp_path / "other", b"three\n")
    assert join(read_documents([str(one)])) == "one"
    text = join(read_documents([str(one), str(two)]))
    assert text == (
        "===== Document 1 of 2: doc.txt =====\n\none\n\n===== Document 2 of 2: b.md =====\n\ntwo\n"
    )
    assert f"Document 2 of 2: {same} =" in join(read_documents([str(one), str(same)]))
    odd = Document("a\udcff.txt", "three", "a\udcff.txt", "utf-8", 5)
    assert "Document 2 of 2: a?.txt =" in join([odd, odd]), "a name that is not UTF-8"


def test_no_source_and_stdin_twice() -> None:
    with pytest.raises(UsageError):
        read_documents([])
    with pytest.raises(UsageError):
        read_documents(["-", "-"])


WESTERN = {
    "quotes": "“It’s a trap,” he said – and left… " * 3,
    "french": "L’été dernier, Benoît a mangé des crêpes à la crème chez sa sœur Zoë. ",
    "german": "Der größte Bär läßt über Nacht drei Äpfel für Frau Müller übrig. ",
    "spanish": "¿Dónde está el niño que soñó con la señora del jardín? ",
}
OTHERS = {
    "cp1250": "Zażółć gęślą jaźń, mówił łagodnie święty człowiek. ",
    "cp1251": "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
    "iso-8859-2": "Příliš žluťoučký kůň úpěl ďábelské ódy. ",
    "cp1254": "Pijamalı hasta yağız şoföre çabucak güvendi. ",
    "cp850": "Voix ambiguë d’un cœur qui préfère".replace("’", "'").replace("œ", "oe"),
}


@pytest.mark.parametrize("text", ["BM is a name", "MZ was here", "ID3 tags", "%!PS at dawn"])
def test_text_that_begins_as_a_binary_kind(text: str, tmp_path: Path) -> None:
    assert read_document(str(write(tmp_path, text.encode()))).text == text


@pytest.mark.parametrize("name", WESTERN)
def test_western_text_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "western.txt"
    path.write_bytes(WESTERN[name].encode("cp1252"))
    document = read_document(str(path))
    assert document.text == WESTERN[name]
    assert document.encoding == "cp1252"


@pytest.mark.parametrize("encoding", OTHERS)
def test_look_alikes_are_not_taken_for_western(encoding: str) -> None:
    from esa_cli.documents.encoding import looks_like_cp1252

    assert not looks_like_cp1252((OTHERS[encoding] * 5).encode(encoding))
