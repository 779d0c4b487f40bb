"""HTML: paragraphs, lists, tables, headings, encodings, formulas."""

from __future__ import annotations

import io
import random
import zipfile

import pytest
import sample_files as make
from reader_checks import at, chapters, refused, text_of

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText, Mark, TextBuilder
from esa_cli.documents.readers.html_reader import parse_html, write_html_text


def html(body: str) -> ExtractedText:
    return readers.extract_text(f"<!doctype html><body>{body}".encode(), "page.html")


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
        "x: 1; y: 2\n\n  if x:\n    y\n\na [picture: a cat] b\n"
    )
    assert chapters(found) == [("Head ing", "Head ing")]


@pytest.mark.parametrize(("start", "first"), [("7", 7), ("9" * 5_000, 1), ("-5", 1), ("", 1)])
def test_html_lists_with_odd_numbers(start: str, first: int) -> None:
    assert html(f"<ol start='{start}'><li>a</ol>").text == f"{first}. a\n"


def test_html_title_chapters_and_tails() -> None:
    found = readers.extract_text(
        b"<html><head><title>T</title></head><body>a<!-- c -->b<script></script>c"
        b"<h2></h2><h3>S</h3>d",
        "page",
    )
    assert found.text == "abc\n\nS\n\nd\n"
    assert found.marks == (Mark(0, chapter="T"), Mark(5, chapter="S", level=3))


WORDS = "All words."
BESIDE = (
    "section", "figure", "dialog open", "svg", "button", "video", "x-y", "p", "table><td",
    "select><option", "h1",
)  # fmt: skip


def test_html_reads_all_that_a_browser_shows() -> None:
    pages = [
        "<html><body><p>one</p></body></html>WORDS",
        "<html><body>one</body></html><html><body><p>WORDS</p></body></html>",
        "one</html>\n<!doctype html><html><head><title>T</title></head><body>WORDS</body></html>",
        "<p>one</html><!-- x --><div>WORDS</div>",
        "<div>" * 3000 + "WORDS one",
        "<details><summary>one</summary>WORDS</details>",
        *(f"<!doctype html><title>T</title><{tag}>WORDS<p>one" for tag in BESIDE),
        *(f"<{tag}>WORDS</{tag.split()[0].split('>')[0]}>one" for tag in BESIDE),
    ]
    for page in pages:
        text = text_of(page.replace("WORDS", WORDS), "a.html")
        assert WORDS in text, page
        assert "one" in text, page


def test_html_leaves_out_what_a_page_hides() -> None:
    for hidden in (
        "<p hidden>X</p>", "<div style='color:red; Display : NONE !important'><p>X</p>y</div>",
        "<b style=visibility:hidden>X</b>", "<i aria-hidden=true>X</i>", "<dialog>X</dialog>",
        "<template>X</template>", "<noscript>X</noscript>", "<iframe>X</iframe>",
        "<p hidden>a<h2 hidden>X</h2>", "<script>X</script>",
    ):  # fmt: skip
        found = html(f"<p>before</p>{hidden}<p>after</p>")
        assert found.text.split() == ["before", "after"], hidden
        assert found.marks == ()


def test_html_quotation_marks_marks_of_notes_and_hidden_formulas() -> None:
    found = html(
        "<p>She said <q>it is</q><sup>1,2</sup>."
        "<p hidden>no <math><msup><mi>x</mi><mn>2</mn></msup></math> no</p>"
    )
    assert found.text == "She said “it is”1,2.\n\nx^2\n"
    assert html("5<sup>1,2</sup>").text == "5^1,2\n"


@pytest.mark.parametrize(
    ("name", "words", "codec"),
    [
        ("latin1", "“né”", "cp1252"), ("windows-1251", "дом", "cp1251"), ("X-SJIS", "①番", "cp932"),
        ("iso-8859-8-i", "שלום", "iso8859-8"), ("windows-949", "똠방", "cp949"),
        ("gb2312", "朱镕基", "gb18030"), ("euc-kr", "똠방", "cp949"),
    ],
)  # fmt: skip
def test_html_encodings_by_their_names_in_the_web(name: str, words: str, codec: str) -> None:
    for meta in (
        f"<meta charset='{name}'>",
        f"<meta http-equiv=Content-Type content='text/html; charset={name}'>",
    ):
        found = readers.extract_text(f"{' ' * 2000}{meta}<p>{words}".encode(codec), "a.html")
        assert (found.text, found.encoding) == (f"{words}\n", codec)


def test_xhtml_is_read_as_xml() -> None:
    page = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>T</title></head><body>X</body></html>'
    broken = page.replace("X", "<p>a & b</p>").replace("<title>T</title>", "<title/>")
    assert text_of(broken, "a.xhtml") == "a & b\n"
    for dtd in ("<!DOCTYPE html>", "<!DOCTYPE html [<!ENTITY a 'b'>]>", "<!DOCTYPE x 'y' [\n] >"):
        sections = f"{dtd}{page}".replace("X", "<p>a<![CDATA[ <b> & ]]>c</p>]><![CDATA[d]]>")
        assert text_of(sections, "a.xhtml") == "a <b> & c\n\n]>d\n"


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("<msup><mi>x</mi><mn>2</mn></msup><mo>+</mo><mi>y</mi>", "x^2 + y"),
        ("<msub><mi>a</mi><mrow><mi>i</mi><mo>+</mo><mn>1</mn></mrow></msub>", "a_(i + 1)"),
        ("<mfrac><mrow><mo>-</mo><mn>1</mn></mrow><mn>2</mn></mfrac><mo>=</mo><mi>x</mi>",
         "(-1)/2 = x"),
        ("<msqrt><mn>2</mn></msqrt><annotation>no</annotation>", "√(2)"),
        ("<mfenced open='[' close=']'><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr>"
         "<mtr><mtd><mn>3</mn></mtd><mtd><mn>4</mn></mtd></mtr></mtable></mfenced>",
         "[1, 2; 3, 4]"),
        ("<mi>sin</mi><mi>x</mi>", "sin x"),
    ],
)  # fmt: skip
def test_formulas(formula: str, expected: str) -> None:
    root = parse_html(f"<math>{formula}</math>", "a")
    out = TextBuilder()
    write_html_text(root, out)
    assert out.result().text == expected + "\n"


def test_html_rows_have_the_names_of_their_columns() -> None:
    head = "<table><tr><th>Town<th colspan=2>Trains<tr>"
    assert html(f"{head}<td>Ulm<td>9<td>10</table>").text == "Town: Ulm; Trains: 9; Trains: 10\n"
    assert html(f"{head}<th>Ulm<td colspan={'9' * 9999}>9").text == "Town: Ulm; Trains: 9\n"
    below = f"{head}<th><th>slow<th>fast<tr><td>Ulm<td>9<td>10"
    assert html(below).text == "Town: Ulm; Trains slow: 9; Trains fast: 10\n"
    assert " | " in html(f"{head}<td><table><tr><td>x<td>y</table><td>9").text


@pytest.mark.parametrize("seed", range(8))
def test_html_cells_over_several_rows_stand_in_each(seed: int) -> None:
    """A grid is cut into cells of one to three rows; a loop says what each row has."""
    draw = random.Random(seed)
    rows, columns = 7, 4
    grid = [[""] * columns for _ in range(rows)]
    written = [""] * rows
    for column in range(columns):
        row = 0
        while row < rows:
            high = min(draw.randint(1, 3), rows - row) if column else 1
            for below in range(row, row + high):
                grid[below][column] = f"w{row}{column}"
            row += high
    for row in range(rows):
        for column in range(columns):
            if row == 0 or grid[row][column] != grid[row - 1][column]:
                high = sum(line[column] == grid[row][column] for line in grid)
                written[row] += f"<td rowspan={high}><b>{grid[row][column]}</b></td>"
    body = "".join(f"<tr>{row}</tr>" for row in written)
    plain = "".join(" | ".join(row) + "\n" for row in grid)
    assert html(f"<table>{body}</table>").text == plain
    head = "".join(f"<th>n{column}" for column in range(columns))
    named = "".join(
        "; ".join(f"n{at}: {cell}" for at, cell in enumerate(row)) + "\n" for row in grid
    )
    assert html(f"<table><tr>{head}{body}</table>").text == named


def test_html_long_text_over_several_rows_stands_once() -> None:
    long, tail = "word " * 99, "</td><td>a</td></tr><tr><td>b</td></tr><tr><td rowspan=9>c"
    found = html(f"<table><tr><td rowspan=2>{long}{tail}<td>d</td></tr></table>").text
    assert found == f"{long.strip()} | a\n| b\nc | d\n"


def test_epub_order_and_chapters() -> None:
    data = make.epub(
        {
            "z.xhtml": "<h1>Not this</h1><p>first&nbsp;words</p>",
            "a b.xhtml": "<p>before</p><h2 id='s'>Part <i>2</i></h2><p>inside</p><p>deep</p>",
            "c.xhtml": "<p>after</p>",
        },
        nav='<li><a href="z.xhtml">One</a></li><li><a href="a%20b.xhtml">Two</a>'
        '<ol><li><a href="a%20b.xhtml#s"> Two\n b</a></li></ol></li>',
    )
    found = readers.extract_text(data, "a.epub")
    assert found.text == (
        "Not this\n\nfirst words\n\nbefore\n\nPart 2\n\ninside\n\ndeep\n\nafter\n"
    )
    assert at(found, "first") == (None, "One")
    assert at(found, "before") == (None, "Two")
    assert at(found, "Part") == at(found, "deep") == (None, "Two b")
    assert at(found, "after") == (None, "Two b"), "a file without an entry goes on with the last"


def test_epub_older_contents_headings_and_printed_pages() -> None:
    point = "<navPoint><navLabel><text>Old</text></navLabel><content src='a.xhtml'/></navPoint>"
    body = "<p>x</p><span epub:type='pagebreak' title='12'/><h1>Head</h1><p>y</p>"
    older = readers.extract_text(make.epub({"a.xhtml": body}, ncx=point), "a.epub")
    assert at(older, "y") == (12, "Old")
    without = readers.extract_text(make.epub({"a.xhtml": body}), "a.epub")
    assert at(without, "x") == (None, None)
    assert at(without, "y") == (12, "Head")


def test_epub_that_is_no_clean_xml() -> None:
    parts = {"OPS/b.xhtml": "<html><body><p>un<br>closed &copy; <p>tags"}
    data = make.epub({"a.xhtml": "<p>fine</p>", "b.xhtml": ""}, more=parts)
    assert readers.extract_text(data, "a.epub").text == "fine\n\nun\nclosed ©\n\ntags\n"


def test_epub_missing_parts_and_refusals() -> None:
    data = make.epub({"a.xhtml": "<p>x</p>", "b.xhtml": "<p>y</p>"})
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        kept = {name: whole.read(name) for name in whole.namelist() if "b.xhtml" not in name}
    assert readers.extract_text(make.zipped(kept), "a.epub").missing == (
        "b.xhtml is named but not in the book",
    )
    assert "without text" in refused(make.epub({"a.xhtml": "<img/>"}), "a.epub").message
    assert "names no pages" in refused(make.epub({}), "a.epub").message
    lock = (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"'
        ' xmlns:e="http://www.w3.org/2001/04/xmlenc#">'
        '<e:CipherReference URI="OPS/{}"/></encryption>'
    )
    locked = make.epub({"a.xhtml": "x"}, more={"META-INF/encryption.xml": lock.format("a.xhtml")})
    assert "DRM" in refused(locked, "a.epub").message
    font = make.epub({"a.xhtml": "x"}, more={"META-INF/encryption.xml": lock.format("f.ttf")})
    assert readers.extract_text(font, "a.epub").text == "x\n", "scrambled fonts do not matter"


def test_crafted_spans_do_not_multiply_a_table() -> None:
    rows = "".join(f"<tr><td rowspan=1000>{at:0100}</td><td>y</td></tr>" for at in range(300))
    found = html(f"<table>{rows}</table>")
    assert len(found.text) < 2 * len(rows)
