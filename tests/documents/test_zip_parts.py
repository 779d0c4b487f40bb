"""Limits of zipped formats: passwords, unpacking bombs, huge parts, entities."""

from __future__ import annotations

import pytest
import sample_files as make
from reader_checks import refused

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText


def word(*body: str, pages: int | None = None, **more: str) -> ExtractedText:
    parts = {"word/styles.xml": make.STYLES, "word/numbering.xml": make.NUMBERING}
    parts |= {f"word/{name}.xml": text for name, text in more.items()}
    return readers.read(make.docx("".join(body), parts, pages), "a.docx")


def test_locked_and_bloated_zips(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(make.docx(make.paragraph("x")))
    for sign, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = 0
        while (start := data.find(sign, start)) >= 0:
            data[start + flags] |= 1
            start += 4
    assert "password" in refused(bytes(data), "a.docx").message
    monkeypatch.setenv("ESA_READ_BYTES", "1MiB")
    bomb = make.docx(make.paragraph("x" * (3 << 20)))
    assert len(bomb) < 1 << 14
    assert "at most 1 MiB" in refused(bomb, "a.docx").message


def test_a_part_that_would_be_a_huge_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_READ_PART", "1MiB")
    for data, name in (
        (make.docx(make.paragraph("x" * (1 << 20))), "a.docx"),
        (make.epub({"a.xhtml": "<p>" + "x" * (1 << 20)}), "a.epub"),
    ):
        error = refused(data, name)
        assert "its part" in error.message
        assert "at most 1 MiB" in error.message
    several = {f"{n}.xhtml": "<p>" + "x" * (1 << 19) for n in range(4)}
    assert len(readers.read(make.epub(several), "a.epub").text) > 1 << 21


def test_entities_are_refused_or_kept_as_they_are() -> None:
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
    body = make.word_part("document", "<w:body><w:p><w:r><w:t>&b;ok</w:t></w:r></w:p></w:body>")
    data = make.docx("", {"word/document.xml": laughs + body})
    assert "entities of its own" in refused(data, "a.docx").message
    page = {"OPS/a.xhtml": f"{laughs}<html><body>one &b; two</body></html>"}
    text = readers.read(make.epub({"a.xhtml": ""}, more=page), "a.epub").text
    assert "one" in text
    assert "two" in text
    assert "haha" not in text
