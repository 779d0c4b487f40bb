"""Crafted files end in a message within the limits, and the child process gives what reading them
here gives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import zlib

import pytest
import sample_files as make
from reader_checks import changed, refused
from reader_fuzz import read_here

from esa_cli.documents import readers
from esa_cli.documents.readers import reading_process
from esa_cli.documents.readers.reading_process import LIMITS, MAX_LIMIT, look_up_reading_limit
from esa_cli.errors import DocumentError, UsageError

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
PDF = make.pdf(["Ada built it."])
BOMB = b"BT /F 12 Tf " + b"(AAAAAAAAAAAAAAAAAAAAAAAAAAAA) Tj " * 840_000 + b"ET"


def with_part(data: bytes, part: str, content: bytes) -> bytes:
    return changed(data, lambda name, old: content if name == part else old)


def word_bomb(piece: bytes) -> bytes:
    """A Word document of a few kilobytes with millions of these pieces."""
    head, tail = make.word_part("document", "<w:body>X</w:body>").encode().split(b"X")
    content = b"".join((head, piece * 3_000_000, tail))
    return with_part(make.docx(make.paragraph("x")), "word/document.xml", content)


def pdf_bomb() -> bytes:
    """Packed twice; PDFium ends its process where memory is not enough."""
    twice = zlib.compress(zlib.compress(BOMB, 1), 1)
    stream = b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%s\nendstream"
    return make.assembled([
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 5 0 R"
        b" /Resources << /Font << /F 4 0 R >> >> >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>", stream % (len(twice), twice),
    ])  # fmt: skip


def test_the_child_reads_what_this_process_would() -> None:
    page = "".join(f"<h2>Part {n}</h2><p>Words, ünï {n} 😀</p>" for n in range(4000))
    lines = "".join(make.paragraph(f"line {n}") for n in range(900))
    for name, data in {"a.pdf": PDF, "a.html": page.encode(), "a.docx": make.docx(lines)}.items():
        assert readers.extract_text(data, name) == read_here(data, name)


def test_one_child_reads_all_and_is_replaced_when_it_is_gone() -> None:
    readers.extract_text(PDF, "a.pdf")
    [child] = reading_process._CHILD
    readers.extract_text(PDF, "b.pdf")
    assert [child] == reading_process._CHILD
    os.kill(child._process.pid, signal.SIGKILL)
    child._process.wait()
    assert "Ada" in readers.extract_text(PDF, "c.pdf").text
    assert [child] != reading_process._CHILD
    reading_process.stop_document_reader_process()
    reading_process.stop_document_reader_process()
    assert child.is_usable is False


@LINUX
@pytest.mark.parametrize(
    ("name", "data"), [("a.pdf", pdf_bomb()), ("a.docx", word_bomb(b"<w:p/>"))], ids=["pdf", "docx"]
)
def test_what_takes_too_much_memory(
    name: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESA_READ_MEMORY", "300MiB")
    assert len(data) < 1 << 20
    error = refused(data, name)
    assert "300 MiB of memory" in error.message
    assert "ESA_READ_MEMORY" in error.hint
    monkeypatch.delenv("ESA_READ_MEMORY")
    assert "Ada" in readers.extract_text(PDF, "b.pdf").text


def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser takes time quadratic in the attributes of a tag."""
    monkeypatch.setenv("ESA_READ_SECONDS", "1")
    monkeypatch.setattr(reading_process, "CLOCK", 60)
    tag = "<p " + " ".join(f"a{n}=''" for n in range(300_000)) + ">words</p>"
    error = refused(tag.encode(), "a.html")
    assert "needs more than 1 s of CPU time" in error.message
    assert "ESA_READ_SECONDS" in error.hint


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals of POSIX")
def test_time_in_which_the_machine_is_busy_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child gets no time, as under load; a child that never gets any is ended."""
    monkeypatch.setenv("ESA_READ_SECONDS", "1")
    readers.extract_text(PDF, "a.pdf")
    [child] = reading_process._CHILD
    os.kill(child._process.pid, signal.SIGSTOP)
    timer = threading.Timer(1.2, os.kill, (child._process.pid, signal.SIGCONT))
    timer.start()
    assert "Ada" in readers.extract_text(PDF, "a.pdf").text
    timer.join()
    monkeypatch.setattr(reading_process, "CLOCK", 1)
    os.kill(child._process.pid, signal.SIGSTOP)
    assert "needs more than 1 s" in refused(PDF, "a.pdf").message


def test_what_unpacks_to_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_READ_BYTES", "1MiB")
    bombs = {
        "a.docx": make.docx(make.paragraph("x" * (3 << 20))),
        "a.xlsx": make.xlsx([[f"{n}{'x' * 30_000}" for n in range(70)]]),
        "a.pptx": make.slides("x" * (2 << 20)),
        "a.odt": make.odt(f"<text:p>{'x' * (2 << 20)}</text:p>"),
    }
    for name, bomb in bombs.items():
        assert len(bomb) < 1 << 16
        error = refused(bomb, name)
        assert "needs more than 1.0 MiB of unpacked data" in error.message
        assert "ESA_READ_BYTES" in error.hint


def test_entities_are_not_expanded() -> None:
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
    body = make.word_part("document", "<w:body><w:p><w:r><w:t>&b;ok</w:t></w:r></w:p></w:body>")
    page = {"OPS/a.xhtml": f"{laughs}<html><body>ok &b; two</body></html>"}
    bombs = {
        "a.docx": make.docx("<w:p/>", {"word/document.xml": laughs + body}),
        "a.xlsx": changed(
            make.xlsx([["ok"]]),
            lambda n, part: (
                laughs.encode() + part.replace(b">ok<", b">ok &b;<") if "shared" in n else part
            ),
        ),
        "a.epub": make.epub({"a.xhtml": ""}, more=page),
    }
    for name, data in bombs.items():
        with contextlib.suppress(DocumentError):
            assert "haha" not in readers.extract_text(data, name).text


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "raw_unicode_escape", "idna"])
def test_notations_of_python_are_no_encodings(charset: str) -> None:
    page = f'<meta charset="{charset}"><p>' + r"ab\u0041" * 100_000
    assert r"ab\u0041" in readers.extract_text(page.encode(), "a.html").text
    mail = f"From: a@b.c\nSubject: x\nContent-Type: text/plain; charset={charset}\n\n" + "ab" * 9999
    assert readers.extract_text(mail.encode(), "a.eml").text.rstrip().endswith("abab")


@pytest.mark.parametrize("value", ["long", "0", str(MAX_LIMIT + 2)])
def test_limits_must_be_numbers(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_READ_SECONDS", value)
    with pytest.raises(UsageError, match="ESA_READ_SECONDS"):
        look_up_reading_limit("ESA_READ_SECONDS")
    for name in LIMITS:
        monkeypatch.setenv(name, str(MAX_LIMIT))
    assert "Ada" in readers.extract_text(PDF, "a.pdf").text


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.csv", "a.ipynb", "a.eml"])
def test_a_long_run_takes_no_time(name: str) -> None:
    """In this process, whose other threads would wait meanwhile: a run takes what words take."""
    beside = {
        "a.ipynb": '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"id": "a", '
        '"cell_type": "markdown", "metadata": {}, "source": %s}]}',
        "a.eml": "From: a@b.c\nMessage-ID: <1>\nContent-Type: text/html\n\n%s",
    }.get(name, "%s")  # fmt: skip
    for run in (*' \t\n\r.-#`<&",1', "a "):
        text = f"# a\n\n# a{run * 60_000}b\n\n<p>c"
        data = (beside % (json.dumps(text) if name == "a.ipynb" else text)).encode()
        start = time.process_time()
        with contextlib.suppress(DocumentError):
            read_here(data, name)
        assert time.process_time() - start < 3, repr(run)
