"""How a reader is chosen and added; damaged files; places in a text."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import ClassVar

import pytest
import sample_files as make
from conftest import copy_registries
from reader_checks import refused, text_of

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText, Mark
from esa_cli.documents.readers.text_builder import STDIN
from esa_cli.errors import PluginError
from esa_cli.methods import plugin_loading


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (make.pdf(["Hello"]), "report", "Hello\n"),
        (make.pdf(["Hello"]), "report.txt", "Hello\n"),
        (make.docx(make.paragraph("Hello")), STDIN, "Hello\n"),
        (make.epub({"a.xhtml": "<p>Hello</p>"}), "a.zip", "Hello\n"),
        (b"<!DOCTYPE html><p>Hello", STDIN, "Hello\n"),
        (b"<!DOCTYPE html><p>Hello", "page.php", "<!DOCTYPE html><p>Hello"),
        (b"<p>Hello", "A.HTM", "Hello\n"),
        (b"<p>Hello", "unknown.kind", "<p>Hello"),
        (make.xlsx([["Hello"]]), "a.docx", "Sheet: Sheet\nHello\n"),
        (make.slides("Hello"), "a.txt", "Hello\n"),
        (make.odt("<text:p>Hello</text:p>"), "a.pdf", "Hello\n"),
        (b"x" * 9 + make.pdf(["Hello"]) + b"\0", "a.md", "Hello\n"),
    ],
)
def test_content_then_name_choose_the_reader(data: bytes, name: str, expected: str) -> None:
    assert text_of(data, name) == expected


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"<html>Not found</html>", "a.pdf"),
        (b"plain", "a.epub"),
        (make.zipped({"x": "y"}), "a.docx"),
        (make.docx(make.paragraph("x"))[:-40], "a.docx"),
        (make.xlsx([["x", "y"]])[:-40], "a.xlsx"),
        (make.odt("<text:p>x</text:p>")[:-30], "a.odt"),
        (make.slides("x")[:-40], "a.pptx"),
    ],
)
def test_what_is_damaged_or_called_what_it_is_not(data: bytes, name: str) -> None:
    error = refused(data, name)
    assert name in error.message
    assert "damaged or cut off" in error.message


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


LATEX = r"""% \section{Not this}
\section{Aims of $x$}\label{sec:aims}
  \subsection[short]{First \emph{things} first}
\subsection*{Thanks}
\subsection{Second}
\subsubsection{Deep}
\section {Results}
\subsection{New} and \section{in a line}
\section{Broken {
\appendix
\section{Proofs}
\subsection{Lemma}
"""


@pytest.mark.parametrize(("top", "shift"), [("", 0), ("\\chapter{One}\n", 1)])
def test_latex_headings_have_the_numbers_of_latex(top: str, shift: int) -> None:
    found = readers.extract_text((top + LATEX).encode(), "paper.tex")
    assert found.text == top + LATEX
    expected = ["1 Aims of x", "1.1 First things first", "Thanks", "1.2 Second", "1.2.1 Deep"]
    expected += ["2 Results", "2.1 New"]
    appendix = ["Appendix A Proofs", "A.1 Lemma"]
    if shift:  # sections are below the chapter
        expected = ["1 One", *(f"1.{one}" if one != "Thanks" else one for one in expected)]
    told = [mark.chapter for mark in found.marks]
    assert told[: len(expected)] == expected
    assert shift or told[len(expected) :] == appendix
    levels = [mark.level for mark in found.marks][: len(expected)]
    assert levels == [1] * shift + [n + shift for n in (1, 2, 2, 2, 3, 1, 2)]


@pytest.mark.usefixtures("scratch")
def test_a_reader_is_added_and_asked_first() -> None:
    readers.register("upper")(Upper)
    assert text_of("a", "x.md") == "A"
    assert text_of("a", "folder/Makefile") == "A"
    assert text_of("a", "x.txt") == "a"


@pytest.mark.usefixtures("scratch")
def test_the_worked_reader_of_the_docs(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "readers.md").read_text("utf-8")
    path = tmp_path / "subtitles.py"
    path.write_text(docs.split("```python\n")[-1].split("```")[0])
    plugin_loading.load_file(path)
    found = readers.extract_text(
        b"1\n00:00:01,5 --> 00:00:03,0\nWho is\nthere?\n\n2\n00:01:04,0 --> 00:01:05,0\nI am.\n",
        "x.srt",
    )
    marks = (Mark(0, None, "00:00:01"), Mark(14, None, "00:01:04"))
    assert found == ExtractedText("Who is there?\nI am.\n", marks)


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("error", [KeyError("q"), SystemExit(0), BaseException("b")])
def test_an_exception_nobody_foresaw_is_damage(error: BaseException) -> None:
    class Ends(Upper):
        def read(self, data: bytes, name: str) -> ExtractedText:
            raise error

    readers.register("ends")(Ends)
    assert type(error).__name__ in refused(b"a", "x.md").message


@pytest.mark.usefixtures("scratch")
def test_a_careless_reader_is_named() -> None:
    class Careless(Upper):
        result = ExtractedText("")

        def read(self, data: bytes, name: str) -> ExtractedText:
            return self.result

    readers.register("careless")(Careless)
    for marks in ((Mark(1), Mark(1)), (Mark(3),), (Mark(-1),), ()):
        Careless.result = ExtractedText("ab" if marks else "a\rb", marks)
        with pytest.raises(PluginError, match="shouting"):
            readers.extract_text(b"x", "a.md")


def test_strict_open_xml_is_the_same_by_other_namespaces() -> None:
    data = make.docx(make.paragraph("Chapter 1", "Heading1") + make.paragraph("Text."))
    usual = re.compile(
        rb"http://schemas\.openxmlformats\.org/([A-Za-z]+)/2006/(main|relationships)"
    )
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        parts = {part: file.read(part) for part in file.namelist()}

    def renamed(match: re.Match[bytes]) -> bytes:
        own = match[1] != b"package"
        return b"http://purl.oclc.org/ooxml/%s/%s" % match.groups() if own else match[0]

    strict = {
        part: content if part.startswith("[") else usual.sub(renamed, content)
        for part, content in parts.items()
    }
    assert strict != parts
    read = readers.extract_text
    assert read(make.zipped(strict), "a.docx") == read(data, "a.docx")
