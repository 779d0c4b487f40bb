"""Readers of text, Markdown, CSV, HTML and gzip; how a reader is chosen and added; no surprises."""

from __future__ import annotations

import gzip
import random
import types
import warnings
import zlib
from pathlib import Path
from typing import Any, ClassVar

import pytest
import sample_files as make
from conftest import copy_registries

from esa_cli.documents import readers, text_builder
from esa_cli.documents.document import read_document
from esa_cli.documents.readers import ExtractedText, Mark, TextBuilder, reader_registry
from esa_cli.documents.readers import gzip_reader as packed
from esa_cli.documents.readers.html_text import formula_text, parse_html, write_html
from esa_cli.errors import DocumentError, PluginError
from esa_cli.methods import plugin_loading


def text_of(data: bytes | str, name: str) -> str:
    return readers.read(data.encode() if isinstance(data, str) else data, name).text


def html(body: str) -> ExtractedText:
    return readers.read(f"<!doctype html><body>{body}".encode(), "page.html")


def chapters(found: ExtractedText) -> list[tuple[str, str | None]]:
    """The first word each mark holds for, and its chapter."""
    return [(found.text[mark.start :].split()[0], mark.chapter) for mark in found.marks]


def refused(data: bytes, name: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        readers.read(data, name)
    return caught.value


def test_source_code_is_text_as_it_is() -> None:
    code = "def f():\n\treturn  1  # <b>\n"
    found = readers.read(code.encode(), "f.py")
    assert found == ExtractedText(code, encoding="utf-8")


def test_markdown_headings_are_chapters() -> None:
    text = (
        "---\ntitle: x\n---\nlead\n\n# One #\nalpha\n```\n# no heading\n```\n"
        "Two\n---\nbeta\n\n- item\n---\n\n    # code\n#no\n### Three\ngamma\n"
    )
    found = readers.read(text.encode(), "a.md")
    assert found.text == text
    assert [(text[m.start :].split("\n")[0], m.chapter) for m in found.marks] == [
        ("# One #", "One"), ("Two", "Two"), ("### Three", "Three"),
    ]  # fmt: skip


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_csv_rows_name_their_columns(sign: str) -> None:
    rows = [["name", "town"], ["Ann", '"a\nb"'], ["", "Rome"], ["Bo", "Ulm", "9"]]
    text = "\r\n".join(sign.join(row) for row in rows)
    assert text_of(text, "a.csv") == (
        "name: Ann; town: a b\ntown: Rome\nname: Bo; town: Ulm; column 3: 9\n"
    )


def test_csv_without_heading_and_what_is_no_table() -> None:
    assert text_of("1,2\n3,4\n", "a.csv") == "column 1: 1; column 2: 2\ncolumn 1: 3; column 2: 4\n"
    assert text_of(",b\n0,x\n", "a.csv") == "column 1: 0; b: x\n"
    assert text_of("just words\nand more\n", "a.csv") == "just words\nand more\n"
    assert text_of('a,b\n1,"open\n', "a.csv") == 'a,b\n1,"open\n', "no cell may swallow the rest"
    assert text_of("a,b\n1,2\n", "a.txt") == "a,b\n1,2\n"


def test_csv_with_lines_above_the_table() -> None:
    table = "Date,Payee,Sum\n1 May,Ann,12\n2 May,Bo,3\n"
    rows = "Date: 1 May; Payee: Ann; Sum: 12\nDate: 2 May; Payee: Bo; Sum: 3\n"
    assert text_of(table, "a.csv") == rows
    assert text_of(f"Statement\n\n{table}", "a.csv") == f"Statement\n{rows}"
    assert text_of(f"Statement,,\n{table}", "a.csv") == f"Statement\n{rows}"
    assert text_of(f"Statement\nOwner,Ann\n\n{table}\n", "a.csv") == (
        f"Statement\nOwner; Ann\n{rows}"
    )
    assert text_of(f"sep=,\n{table}", "a.csv") == rows


def test_csv_whose_heading_is_too_short_names_nothing() -> None:
    """As R writes it: the numbers of the rows have no name, and all others would be shifted."""
    assert text_of("name,town\n1,Ann,Ulm\n2,Bo,Rome\n", "a.csv") == (
        "column 1: name; column 2: town\n"
        "column 1: 1; column 2: Ann; column 3: Ulm\ncolumn 1: 2; column 2: Bo; column 3: Rome\n"
    )


def test_csv_with_as_many_commas_in_every_row() -> None:
    assert text_of("1,5;2,5\n3,5;4,5\n", "a.csv") == (
        "column 1: 1,5; column 2: 2,5\ncolumn 1: 3,5; column 2: 4,5\n"
    )
    assert text_of("Lee, Ann\tUlm, DE\nKay, Bo\tRome, IT\n", "a.tsv") == (
        "Lee, Ann: Kay, Bo; Ulm, DE: Rome, IT\n"
    )
    assert text_of("sep=;\na;b,c\nx;y,z\n", "a.csv") == "a: x; b,c: y,z\n"


def test_html_paragraphs_lists_tables() -> None:
    found = html(
        "<h1>Head\n<b>ing</b></h1><script>no()</script><style>no</style><!-- no -->"
        "<p>One\n  <i>two</i><br>three &amp; four</p><template>no</template>"
        "<ul><li>a<li><p>b</p></ul><ol start=3><li>c<li>d</ol>"
        "<table><tr><th>x<th>y<tr><td><p>1</p><td>2</table>"
        "<pre>  if x:\n    y</pre><p>a<img alt='a cat'>b<img>"
    )
    assert found.text == (
        "Head ing\n\nOne two\nthree & four\n\n- a\n- b\n\n3. c\n4. d\n\n"
        "x | y\n1 | 2\n\n  if x:\n    y\n\na [picture: a cat] b\n"
    )
    assert chapters(found) == [("Head", "Head ing")]


def test_html_title_chapters_and_tails() -> None:
    found = readers.read(
        b"<html><head><title>T</title></head><body>a<!-- c -->b<script></script>c"
        b"<h2></h2><h3>S</h3>d",
        "page",
    )
    assert found.text == "abc\n\nS\n\nd\n"
    assert found.marks == (Mark(0, chapter="T"), Mark(5, chapter="S"))


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        ('<meta charset="iso-8859-1"><p>né “x”'.encode("cp1252"), "cp1252"),
        ("<?xml version='1.0' encoding='koi8-r'?><html><p>né “x”".encode(), "utf-8"),
        ("<meta charset=utf-16><p>né “x”".encode("utf-8-sig"), "utf-8-sig"),
        ("<meta charset=nonsense><p>né “x”".encode(), "utf-8"),
        ("<meta charset=utf-16><p>né “x”.".encode(), "utf-8"),
        ("<meta charset=utf-16><p>né “x”".encode(), "utf-8"),
    ],
    ids=["declared", "xml", "mark", "unknown", "impossible", "impossible, another length"],
)
def test_html_encodings(data: bytes, encoding: str) -> None:
    found = readers.read(data, "page.html")
    if encoding == "utf-8" and b"koi8" in data:
        assert found.encoding == "koi8-r", "what is declared counts when it fits"
    else:
        assert (found.text.replace(".", ""), found.encoding) == ("né “x”\n", encoding)


@pytest.mark.parametrize(
    ("declared", "words", "encoding"),
    [("gb2312", "朱镕基", "gb18030"), ("Shift_JIS", "①番", "cp932"), ("euc-kr", "똠방", "cp949")],
)
def test_html_in_an_encoding_that_browsers_take_for_a_wider_one(
    declared: str, words: str, encoding: str
) -> None:
    data = f"<meta charset={declared}><p>{words}".encode(encoding)
    assert text_of(data, "page.html") == f"{words}\n"


def test_html_exponents_and_what_stands_side_by_side() -> None:
    found = html(
        "<p>10<sup>6</sup> m<sup> <a>2</a></sup>, 5 <sup>3</sup>, 1<sup>st</sup>, H<sub>2</sub>O"
        "<p><textarea>one</textarea><button>two</button>"
        "<svg><title>Pie</title><text>half</text><text>rest</text></svg>"
    )
    assert found.text == "10^6 m 2, 5 3, 1st, H2O\n\none two Pie half rest\n"
    assert found.marks == (), "a picture's title is not the page's"


def test_html_nested_too_deep_loses_nothing_silently() -> None:
    deep = b"<p>a</p>" + b"<div>" * 3000 + b"deep" + b"</div>" * 3000
    try:
        outcome = text_of(deep, "a.html")
    except DocumentError as error:  # libxml2 from 2.14 on
        outcome = error.message
    assert "deep" in outcome or "cannot be read as HTML" in outcome
    formula = html("<math>" + "<mrow>" * 1500 + "<mi>x</mi>")
    assert formula.text == "x\n"
    assert html("<math><mrow>bare<mi>y</mi>tail</mrow></math>").text == "bareytail\n"


def test_html_without_text() -> None:
    error = refused(b"<html><body><script>app()</script></body></html>", "a.html")
    assert "without text" in error.message
    assert "browser" in error.hint


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("<msup><mi>x</mi><mn>2</mn></msup><mo>+</mo><mi>y</mi>", "x^2 + y"),
        ("<msub><mi>a</mi><mrow><mi>i</mi><mo>+</mo><mn>1</mn></mrow></msub>", "a_(i + 1)"),
        ("<mfrac><mrow><mo>-</mo><mn>1</mn></mrow><mn>2</mn></mfrac><mo>=</mo><mi>x</mi>",
         "(-1)/2 = x"),
        ("<msqrt><mn>2</mn></msqrt>", "√(2)"),
        ("<mfenced open='[' close=']'><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr>"
         "<mtr><mtd><mn>3</mn></mtd><mtd><mn>4</mn></mtd></mtr></mtable></mfenced>",
         "[1, 2; 3, 4]"),
        ("<mtable><mtr><mtd><mn>1</mn></mtd></mtr><mtr><mtd><mn>2</mn></mtd></mtr></mtable>",
         "1; 2"),
        ("<mtable><mtr><mtd><mi>x</mi></mtd><mtd><mo>=</mo><mn>1</mn></mtd></mtr>"
         "<mtr><mtd><mi>y</mi></mtd><mtd><mo>=</mo><mn>2</mn></mtd></mtr></mtable>",
         "x = 1; y = 2"),
        ("<mi>sin</mi><mi>x</mi>", "sin x"),
    ],
)  # fmt: skip
def test_formulas(formula: str, expected: str) -> None:
    root = parse_html(f"<math>{formula}</math>", "a")
    assert formula_text(root.find(".//math")) == expected
    out = TextBuilder()
    write_html(root, out, "a")
    assert out.result().text == expected + "\n"


def test_gzip_is_read_as_what_it_holds() -> None:
    assert text_of(gzip.compress(b"a,b\n1,2\n"), "t.csv.gz") == text_of(b"a,b\n1,2\n", "t.csv")
    two = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 8
    assert text_of(two, readers.STDIN) == "one two"
    assert text_of(gzip.compress(make.pdf(["Hello"])), "a.pdf.gz") == "Hello\n"


@pytest.mark.parametrize(
    "texts", [[b"line %d\n" % n for n in range(3000)], [b"words " * (1 << 20)], [b"", b"x", b""]]
)
def test_gzip_copies_little(texts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed to zlib, which copies what it does not take, grows with the file alone."""
    handed = 0
    real = zlib.decompressobj

    class Counted:
        def __init__(self, wbits: int) -> None:
            self.inner = real(wbits)

        def decompress(self, data: Any, most: int) -> bytes:
            nonlocal handed
            handed += len(data)
            return self.inner.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    monkeypatch.setattr(
        packed, "zlib", types.SimpleNamespace(decompressobj=Counted, error=zlib.error)
    )
    data = b"".join(map(gzip.compress, texts))
    assert packed.unpack(data, "a.gz") == b"".join(texts)
    calls = len(texts) + sum(map(len, texts)) // packed._STEP + len(data) // packed._PIECE + 1
    assert handed <= calls * packed._PIECE


def test_gzip_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"words " * 1000)
    assert "the end is missing" in refused(packed[:-12], "a.txt.gz").message
    assert "damaged" in refused(packed + b"junk", "a.txt.gz").message
    noise = random.Random(0).randbytes(1 << 17)
    zeroed = gzip.compress(b"one") + gzip.compress(noise)[: 1 << 16] + bytes(1 << 16)
    assert "damaged" in refused(zeroed, "a.txt.gz").message, "zeros in a member are no padding"
    assert "more than once" in refused(gzip.compress(packed), "a.gz").message
    assert "empty file" in refused(gzip.compress(b""), "a.gz").message
    inner = refused(gzip.compress(b"\x89PNG\r\n\x1a\n"), "a.png.gz")
    assert "unpacked from a.png.gz" in inner.message
    assert "gunzip -k a.png.gz" in inner.hint
    monkeypatch.setattr(text_builder, "UNPACKED_LIMIT", 1 << 20)
    assert "limit of 1 MiB" in refused(gzip.compress(bytes(5 << 20)), "a.gz").message


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (make.pdf(["Hello"]), "report", "Hello\n"),
        (make.pdf(["Hello"]), "report.txt", "Hello\n"),
        (make.docx(make.paragraph("Hello")), readers.STDIN, "Hello\n"),
        (make.epub({"a.xhtml": "<p>Hello</p>"}), "a.zip", "Hello\n"),
        (b"<!DOCTYPE html><p>Hello", readers.STDIN, "Hello\n"),
        (b"<!DOCTYPE html><p>Hello", "page.php", "<!DOCTYPE html><p>Hello"),
        (b"<p>Hello", "A.HTM", "Hello\n"),
        (b"<p>Hello", "unknown.kind", "<p>Hello"),
    ],
)
def test_content_then_name_choose_the_reader(data: bytes, name: str, expected: str) -> None:
    assert text_of(data, name) == expected


def test_called_what_it_is_not() -> None:
    assert "cannot be read as a PDF" in refused(b"<html>Not found</html>", "a.pdf").message
    assert "cannot be read as an EPUB" in refused(b"plain", "a.epub").message
    assert "cannot be read as a Word document" in refused(make.zipped({"x": "y"}), "a.docx").message


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_registries(monkeypatch)


class Upper:
    what: ClassVar[str] = "shouting"
    suffixes: ClassVar[tuple[str, ...]] = (".md", "makefile")
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        return False

    def read(self, data: bytes, name: str) -> ExtractedText:
        return ExtractedText(data.decode().upper())


@pytest.mark.usefixtures("scratch")
def test_a_reader_is_added_and_asked_first() -> None:
    readers.register("upper")(Upper)
    assert text_of("a", "x.md") == "A"
    assert text_of("a", "folder/Makefile") == "A"
    assert text_of("a", "x.txt") == "a"


@pytest.mark.usefixtures("scratch")
def test_a_plugin_file_may_hold_readers_alone(tmp_path: Path) -> None:
    path = tmp_path / "plug.py"
    path.write_text(
        "from esa_cli.documents.readers import ExtractedText, register\n\n"
        "@register('roman')\nclass Roman:\n"
        "    what, suffixes, binary = 'roman', ('.rom',), False\n"
        "    def sniff(self, head): return False\n"
        "    def read(self, data, name): return ExtractedText('MCM')\n"
    )
    assert plugin_loading.load_file(path) == [("reader", "roman")]
    assert text_of("1900", "x.rom") == "MCM"
    path.with_name("bad.py").write_text(path.read_text().replace("roman", "greek") + "1 / 0\n")
    with pytest.raises(PluginError, match="does not run"):
        plugin_loading.load_file(path.with_name("bad.py"))
    assert "greek" not in reader_registry.READERS


@pytest.mark.usefixtures("scratch")
def test_the_worked_reader_of_the_docs(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "readers.md").read_text("utf-8")
    path = tmp_path / "subtitles.py"
    path.write_text(docs.split("```python\n")[-1].split("```")[0])
    plugin_loading.load_file(path)
    found = readers.read(
        b"1\n00:00:01,5 --> 00:00:03,0\nWho is\nthere?\n\n2\n00:01:04,0 --> 00:01:05,0\nI am.\n",
        "x.srt",
    )
    marks = (Mark(0, None, "00:00:01"), Mark(14, None, "00:01:04"))
    assert found == ExtractedText("Who is there?\nI am.\n", marks)


@pytest.mark.usefixtures("scratch")
def test_what_cannot_be_registered() -> None:
    with pytest.raises(PluginError, match="already registered by esa_cli"):
        readers.register("pdf")(Upper)
    with pytest.raises(PluginError, match="no what and no read"):
        readers.register("less")(type("Less", (), {"suffixes": (), "binary": 0, "sniff": 0}))


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(
    "found",
    [
        ExtractedText("ab", (Mark(1), Mark(1))),
        ExtractedText("ab", (Mark(3),)),
        ExtractedText("ab", (Mark(-1),)),
        ExtractedText("a\rb"),
    ],
)
def test_a_careless_reader_is_named(found: ExtractedText) -> None:
    class Careless(Upper):
        def read(self, data: bytes, name: str) -> ExtractedText:
            return found

    readers.register("careless")(Careless)
    with pytest.raises(PluginError, match="shouting"):
        readers.read(b"x", "a.md")


@pytest.mark.usefixtures("scratch")
def test_an_exception_nobody_foresaw_is_damage() -> None:
    class Broken(Upper):
        def read(self, data: bytes, name: str) -> ExtractedText:
            raise KeyError("q")

    readers.register("broken")(Broken)
    assert "KeyError: 'q'" in refused(b"x", "a.md").message


def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pypdfium2", None)
    error = refused(make.pdf(["x"]), "a.pdf")
    assert "pypdfium2 is not installed" in error.message
    assert error.hint == "pip install pypdfium2"


def test_builder_places_marks_at_the_first_letter() -> None:
    out = TextBuilder()
    out.flow("a ")
    out.page(1)
    out.paragraph()
    out.page(2)
    out.chapter("c")
    out.flow("\n b\u00a0c")
    out.line()
    out.exact("d\r\n\x00e")
    assert out.result(["m"]) == ExtractedText("a\n\nb c\nd\n e\n", (Mark(3, 2, "c"),), ("m",))


SAMPLES = {
    "a.pdf": make.pdf(["Hello world", None, "More\nwords"], [("More", 2)]),
    "a.epub": make.epub(
        {"a.xhtml": "<h1>One</h1><p>x</p>", "b.xhtml": "<p id='s'>y</p>"},
        nav='<li><a href="b.xhtml#s">Two</a></li>',
    ),
    "a.docx": make.docx(
        make.paragraph("Head", "H1") + make.paragraph("Words", before=make.PAGE),
        {"word/styles.xml": make.STYLES, "word/numbering.xml": make.NUMBERING},
    ),
    "a.html": b"<!doctype html><h1>A</h1><table><tr><td>x<td>y</table><ol start=2><li>z<pre> k",
    "a.csv": b'name,town\nAnn,"a b"\nBo,Ulm\n' * 3,
    "a.md": b"# One\ntext\n```\ncode\n```\nTwo\n===\n" * 3,
    "a.txt": "Grüße, 世界\n".encode() * 5,
    "a.ipynb": b'{"cells": [{"cell_type": "markdown", "source": ["# One\\n", "x"]}, {"cell_type": '
    b'"code", "source": "y", "outputs": [{"output_type": "stream", "text": "z"}]}], "nbformat": 4}',
    "a.eml": b"From: Ann <a@x.org>\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nContent-Type: multipart/"
    b"mixed; boundary=b\n\n--b\nContent-Type: text/html\n\n<p>One\n--b\nContent-Type: image/png\n"
    b"Content-Transfer-Encoding: base64\n\nAAAA\n--b--\n",
    "a.xlsx": make.xlsx([["name", "sum"], ["Ann", 3], ["Bo", 2.5]]),
    "a.odt": make.odt(
        "<text:h>One</text:h><text:list><text:list-item><text:p>x</text:p>"
        "</text:list-item></text:list><text:soft-page-break/>"
    ),
    "a.txt.gz": gzip.compress(b"some words\n" * 20),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_files_end_in_a_clear_error(name: str) -> None:
    """Cut off anywhere, and with bits flipped: text or a DocumentError, nothing else."""
    data, dice = SAMPLES[name], random.Random(name)
    assert text_of(data, name).strip(), "the whole file is readable"
    wrecks = [data[: dice.randrange(1, len(data))] for _ in range(40)]
    for _ in range(60):
        flipped = bytearray(data)
        for _ in range(dice.choice((1, 3, 20))):
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
        wrecks.append(bytes(flipped))
    refusals = []
    for wreck in wrecks:
        try:
            assert isinstance(readers.read(wreck, name).text, str)
        except DocumentError as error:
            refusals.append(error.message)
    assert all(name.removesuffix(".gz") in message for message in refusals)
    if name.endswith(("pdf", "epub", "docx", "xlsx", "odt", "ipynb", "gz")):
        assert refusals, "some damage is beyond reading"


def test_place_of_every_character(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(make.pdf(["One\nline two", "", "Head\nlast"], [("Head", 2)]))
    document = read_document(str(path))
    assert document.text == "One\nline two\n\nHead\nlast\n"
    lines = document.text.split("\n")
    line, at = 1, 0
    for offset, letter in enumerate(document.text):
        page = 1 if offset < document.text.index("Head") else 3
        place = document.place(offset)
        assert place == (page, line, None if page == 1 else "Head")
        assert document.text[at:].startswith(lines[line - 1])
        if letter == "\n":
            line, at = line + 1, offset + 1
    assert document.place(len(document.text)).line == line
    for outside in (-1, len(document.text) + 1):
        with pytest.raises(IndexError):
            document.place(outside)


def test_no_warnings_reach_the_terminal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, data in SAMPLES.items():
            readers.read(data, name)
