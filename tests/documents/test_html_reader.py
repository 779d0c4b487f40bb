"""HTML: paragraphs, lists, tables, headings, encodings, formulas."""

from __future__ import annotations

import pytest
from reader_checks import refused

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText, Mark, TextBuilder
from esa_cli.documents.readers.html_text import formula_text, parse_html, write_html
from esa_cli.errors import DocumentError


def text_of(data: bytes | str, name: str) -> str:
    return readers.read(data.encode() if isinstance(data, str) else data, name).text


def html(body: str) -> ExtractedText:
    return readers.read(f"<!doctype html><body>{body}".encode(), "page.html")


def chapters(found: ExtractedText) -> list[tuple[str, str | None]]:
    """The first word each mark holds for, and its chapter."""
    return [(found.text[mark.start :].split()[0], mark.chapter) for mark in found.marks]


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
