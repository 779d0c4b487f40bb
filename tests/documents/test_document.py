"""Documents: what is read, how bytes become text, and what is refused."""

from __future__ import annotations

import io
import os
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
import sample_files as make

from esa_cli.documents.document import Document, join_texts, read_document, read_documents
from esa_cli.documents.readers.plain_text import decode_text, is_probably_cp1252
from esa_cli.errors import DocumentError, UsageError

POLISH = "Zażółć gęślą jaźń. Wszyscy ludzie rodzą się wolni i równi pod względem swych praw. " * 20
RUSSIAN = "Съешь ещё этих мягких французских булок, да выпей чаю. Вышел заяц на крыльцо. " * 20
GERMAN = "Die Straße führt über die Brücke, größer als früher. Wäre es möglich?\n"


def refused(source: Path | str, **options: object) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        read_document(str(source), **options)  # type: ignore[arg-type]
    return caught.value


def write(tmp_path: Path, data: bytes, name: str = "doc.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "Grüße, 世界\r\nb\rc\n".encode(), "notes.md")
    document = read_document(str(path))
    assert document == Document("notes.md", "Grüße, 世界\nb\nc\n", str(path), "utf-8", 21)


def test_a_path_object_is_a_path_and_no_text_is_in_the_repr(tmp_path: Path) -> None:
    path = write(tmp_path, b"# All\n\nAll of it.\n" * 5_000, "notes.md")
    document = read_document(path)
    assert document == read_document(str(path))
    assert read_documents([path]) == read_documents(path) == [document]
    assert str(path) in repr(document)
    assert len(repr(document)) < 1_000


@pytest.mark.parametrize("stream", [io.BytesIO(b"x\n"), io.TextIOWrapper(io.BytesIO(b"x\n"))])
def test_standard_input(stream: io.IOBase) -> None:
    document = read_document("-", stream)  # type: ignore[arg-type]
    assert (document.text, document.source, document.bytes) == ("x\n", "-", 2)


def test_standard_input_that_is_refused() -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    assert "terminal" in refused("-", stdin=Terminal()).message
    assert "empty" in refused("-", stdin=io.BytesIO()).message
    assert "limit of 10 bytes" in refused("-", stdin=io.BytesIO(b"x" * 11), limit=10).message


@pytest.mark.parametrize(
    ("text", "encoding", "known"),
    [
        *(("né\n", mark, mark) for mark in ("utf-8-sig", "utf-16", "utf-32")),
        ("“It’s a trap,” he said – and left… " * 3, "cp1252", "cp1252"),
        ("L’été, Benoît a mangé des crêpes à la crème chez sa sœur Zoë. ", "cp1252", "cp1252"),
        ("¿Dónde está el niño que soñó con la señora del jardín? ", "cp1252", "cp1252"),
        (GERMAN * 16_000 + "Škoda\n", "cp1252", "cp1252"),
        ("The café sold tea. " * 60 + "No sign at all. " * 6_000 + "¶ 5\n", "cp1252", "cp1252"),
    ],
)
def test_encodings(text: str, encoding: str, known: str, tmp_path: Path) -> None:
    document = read_document(str(write(tmp_path, text.encode(encoding))))
    assert (document.text, document.encoding) == (text, known)


@pytest.mark.parametrize(
    "data",
    [
        POLISH.encode("cp1250"),
        RUSSIAN.encode("cp1251"),
        "café\n".encode("latin-1"),
        b"plain words " * 50 + b"\x80\x9d\xff",
        (RUSSIAN * 2).encode() + b"\xff" + RUSSIAN.encode(),
        bytes(range(128, 256)) * 20,
    ],
    ids=["polish", "russian", "short", "junk", "broken", "noise"],
)
def test_doubtful_encoding_is_refused(tmp_path: Path, data: bytes) -> None:
    error = refused(write(tmp_path, data))
    assert "cannot be told" in error.message
    assert "iconv -f " in error.hint


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1250", "Zażółć gęślą jaźń, mówił łagodnie święty człowiek. "),
        ("cp1251", "Съешь же ещё этих мягких французских булок, да выпей чаю. "),
        ("cp850", "Voix ambiguë d'un coeur qui préfère"),
    ],
)
def test_look_alikes_are_not_taken_for_western(encoding: str, text: str) -> None:
    assert not is_probably_cp1252((text * 5).encode(encoding))


@pytest.mark.parametrize(
    ("data", "kind", "hint"),
    [
        (make.zipped({"a.txt": "x"}), "a ZIP archive", "unpack"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old Office", "docx"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Outlook", "eml"),
        (b"{\\rtf1 words}", "RTF", "pandoc"),
        (b"abc\0def", "NUL at byte 3", ""),
        (b"\xef\xbb\xbfok \xff\xfe", "breaks at byte", "iconv"),
        (b"", "0 bytes", ""),
        (b" \n\t\n", "white space", ""),
    ],
)
def test_what_is_no_text(tmp_path: Path, data: bytes, kind: str, hint: str) -> None:
    error = refused(write(tmp_path, data))
    assert kind in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("data", "program"),
    [
        (make.pdf([None]), "ocrmypdf"), (b"{\\rtf1 words}", "pandoc"),
        (b"\x1f\x8b\x08", "gunzip"), (b"\xef\xbb\xbfok \xff\xfe", "iconv"),
    ],
)  # fmt: skip
def test_commands_of_hints_name_the_file_as_a_shell_reads_it(
    tmp_path: Path, data: bytes, program: str
) -> None:
    path = write(tmp_path, data, "two words.pdf" if program == "ocrmypdf" else "two words")
    _, _, command = refused(path).hint.rpartition(program)
    assert str(path) in shlex.split(command)


def test_what_is_no_file(tmp_path: Path) -> None:
    write(tmp_path, b"x", "report.txt")
    write(tmp_path, b"x", "bin.txt")
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "reprot.txt").hint == f"did you mean {tmp_path / 'report.txt'}?"
    unlike = refused(tmp_path / "missing.txt").hint
    assert unlike == f"check the path; {tmp_path} has no such file", "an ending is no likeness"
    assert "no folder" in refused(tmp_path / "nowhere" / "x.txt").hint
    assert "fetch the page" in refused("https://example.com/a").hint
    assert refused("b" * 5000).message.count("b" * 5000) == 1
    assert "cannot be read" in refused("a\0b").message
    assert "is a folder" in refused(tmp_path).message
    for special in (tmp_path / "pipe", "/dev/zero"):
        assert "pipe, socket or device" in refused(special).message, "it is not waited for"


def test_several(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = write(tmp_path, b"one"), write(tmp_path, b"two\n", "b.md")
    same = write(tmp_path / "other", b"three\n")
    assert join_texts(read_documents([str(one)])) == "one"
    text = join_texts(read_documents([str(one), str(two)]))
    assert text == (
        "===== Document 1 of 2: doc.txt =====\n\none\n\n===== Document 2 of 2: b.md =====\n\ntwo\n"
    )
    assert f"Document 2 of 2: {same} =" in join_texts(read_documents([str(one), str(same)]))
    odd = Document("a\udcff.txt", "three", "a\udcff.txt", "utf-8", 5)
    assert "Document 2 of 2: a?.txt =" in join_texts([odd, odd]), "a name that is not UTF-8"
    for names in ([], ["-", "-"]):
        with pytest.raises(UsageError):
            read_documents(names)


def test_place_of_every_character(tmp_path: Path) -> None:
    pages = make.pdf(["One\nline two", "", "Head\nlast"], [("Head", 2)])
    document = read_document(str(write(tmp_path, pages, "a.pdf")))
    assert document.text == "One\nline two\n\nHead\nlast\n"
    head = document.text.index("Head")
    for offset in range(len(document.text) + 1):
        line = document.text[:offset].count("\n") + 1
        expected = (1, line, None) if offset < head else (3, line, "Head")
        assert document.place(offset) == (*expected, None, None)
    for outside in (-1, len(document.text) + 1):
        with pytest.raises(IndexError):
            document.place(outside)


TEXTS = {
    "de": "Die Tür war offen, und über der Straße hörte man Gelächter; später fror es [÷ 3]. ",
    "fr": "Élise était là, près de la fenêtre; où êtes-vous, monsieur? Voilà la clé. ",
    "es": "--¿Dónde está el niño?--Mañana iré a la ciudad, señora; ¡qué alegría! ¿de veras? ",
    "ru": "Утром они пошли к реке, потому что вода была тёплая и рыба клевала хорошо. ",
    "uk": "Вранці вони пішли до річки, бо вода була тепла, і риба їла добре її хліб. ",
    "pl": "Rano poszli nad rzekę, bo woda była ciepła i ryby dobrze brały; żółw też. ",
    "tr": "Sabah nehre gittiler, çünkü su ılıktı ve balıklar iyi yiyordu; güneş doğdu. ",
    "hu": "Reggel elmentek a folyóhoz, mert a víz meleg volt, és az őz is ott ivott; fűz. ",
    "el": "Το πρωί πήγαν στο ποτάμι, γιατί το νερό ήταν ζεστό και τα ψάρια τσιμπούσαν. ",
    "zh": "早上他们去了河边，因为水是暖的，鱼也很多。他说这是他来过的最好的地方，人不多。",
    "tw": "早上他們去了河邊，因為水是暖的，魚也很多。他說這是他來過的最好的地方，人不多。",
    "ja": "朝になって、みんなは川に行った。水が温かいので、魚もたくさんいるのである。",
    "ko": "아침에 그들은 강가에 갔다. 물이 따뜻하고 물고기가 많은 곳이다. 날씨는 좋았다. ",
}
ENCODINGS = (
    "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "iso8859_2", "iso8859_5", "koi8_r", "koi8_u",
    "cp866", "mac_cyrillic", "mac_roman", "gb18030", "big5", "cp932", "euc_jp", "cp949",
)  # fmt: skip
KNOWN = {
    "de": ["cp1252"], "fr": ["cp1252"], "es": ["cp1252"], "ru": ["cp1251", "koi8_r"],
    "uk": ["cp1251", "koi8_u"], "zh": ["gb18030"], "tw": ["big5"], "ja": ["cp932", "euc_jp"],
    "ko": ["cp949"],
}  # fmt: skip


@pytest.mark.parametrize("language", TEXTS)
def test_legacy_text_is_read_as_it_was_written_or_refused(language: str) -> None:
    text = TEXTS[language] * 150
    for encoding in ENCODINGS:
        with suppress(UnicodeEncodeError, DocumentError):
            decoded, found = decode_text(text.encode(encoding), "a.txt")
            assert decoded == text, (encoding, found)


@pytest.mark.parametrize("language", KNOWN)
def test_frequent_encodings_are_recognised(language: str) -> None:
    text = TEXTS[language] * 20
    if language == "fr":
        text = text * 10 + "nº 5"
    for encoding in KNOWN[language]:
        assert decode_text(text.encode(encoding), "a.txt")[0] == text


@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_mark_says_width_and_order(encoding: str, order: str, tmp_path: Path) -> None:
    data = "\ufeffGrüße, 世界\n".encode(f"{encoding}-{order}")
    assert read_document(str(write(tmp_path, data))).text == "Grüße, 世界\n"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark(encoding: str) -> None:
    text = "The gate opens at nine, and the café at ten. "
    assert decode_text(text.encode(encoding), "a.txt")[0] == text
