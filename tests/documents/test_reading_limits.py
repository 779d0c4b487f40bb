"""Crafted files end in a message within the limits, and the child process in which files at risk
are read gives what reading them here gives."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO

import pytest
import sample_files as make
from reader_checks import refused

from esa_cli.documents import readers, reading_process
from esa_cli.documents.readers import zip_parts
from esa_cli.documents.readers.reader_registry import choose, read_by
from esa_cli.documents.reading_process import MOST, NAMES, reading_limits
from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.strict_yaml import MOST_VALUES, load_yaml

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")


def _docx(*body: bytes) -> bytes:
    """A Word document of a few kilobytes with so much in it."""
    head, tail = make.word_part("document", "<w:body>X</w:body>").encode().split(b"X")
    out = BytesIO(make.docx(make.paragraph("x")))
    with zipfile.ZipFile(out) as old, zipfile.ZipFile(made := BytesIO(), "w") as new:
        for part in old.namelist():
            if part != "word/document.xml":
                new.writestr(part, old.read(part))
        new.writestr(
            "word/document.xml",
            b"".join((head, *body, tail)),
            zipfile.ZIP_DEFLATED,
            compresslevel=1,
        )
    return made.getvalue()


def _pdf(*streams: tuple[bytes, bytes]) -> bytes:
    """One page with these content streams, each with entries of its dictionary."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F 4 0 R>>>>/Contents["
        + b" ".join(b"%d 0 R" % (5 + n) for n in range(len(streams)))
        + b"]>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        *(b"<</Length %d%s>>stream\n%s\nendstream" % (len(d), e, d) for e, d in streams),
    ]
    out, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    )
    return out + end % (len(objects) + 1, table, len(objects) + 1, len(out))


def _flate(data: bytes) -> tuple[bytes, bytes]:
    return b"/Filter/FlateDecode", zlib.compress(data, 1)


WORDS = b"BT /F 12 Tf 20 700 Td (Ada built it.) Tj ET\n"
BOMB = b"BT /F 12 Tf " + b"(AAAAAAAAAAAAAAAAAAAAAAAAAAAA) Tj " * 70_000 + b"ET"


def test_the_child_reads_what_this_process_would(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "".join(f"<h2>Part {n}</h2><p>Words, ünï {n} 😀</p>" for n in range(4000))
    files = {
        "a.pdf": _pdf((b"", WORDS)),
        "a.html": page.encode(),
        "a.docx": make.docx("".join(make.paragraph(f"line {n}") for n in range(900))),
    }
    apart = {name: readers.read(data, name) for name, data in files.items()}
    monkeypatch.setattr(reading_process, "SMALL", {})
    assert apart == {name: readers.read(data, name) for name, data in files.items()}
    assert "Ada built it." in apart["a.pdf"].text
    assert len(apart["a.html"].marks) == 4000


def test_one_child_reads_all_and_is_replaced_when_it_is_gone() -> None:
    data = _pdf((b"", WORDS))
    readers.read(data, "a.pdf")
    [child] = reading_process._CHILD
    readers.read(data, "b.pdf")
    assert [child] == reading_process._CHILD
    os.kill(child._process.pid, signal.SIGKILL)
    child._process.wait()
    assert "Ada" in readers.read(data, "c.pdf").text
    assert [child] != reading_process._CHILD
    reading_process.stop_reading()
    reading_process.stop_reading()
    assert child.usable is False


def test_its_errors_are_those_of_the_reader() -> None:
    error = refused(b"%PDF-1.4 nothing", "a.pdf")
    assert "damaged or cut off" in error.message
    assert "save it again" in error.hint


def test_a_pdf_stream_that_unpacks_to_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_READ_PART", "1MiB")
    error = refused(_pdf(_flate(WORDS), _flate(BOMB)), "a.pdf")
    assert "must unpack to at most 1 MiB, got more" in error.message
    assert "ESA_READ_PART" in error.hint
    picture = (b"/Subtype/Image/Filter/FlateDecode", zlib.compress(bytes(3 << 20)))
    assert "Ada" in readers.read(_pdf(_flate(WORDS), picture), "a.pdf").text


@LINUX
def test_a_pdf_that_takes_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed twice, so that only the child's limit sees it: PDFium ends the process."""
    monkeypatch.setenv("ESA_READ_MEMORY", "250MiB")
    twice = zlib.compress(zlib.compress(BOMB * 12, 1), 1)
    error = refused(_pdf((b"/Filter[/FlateDecode/FlateDecode]", twice)), "a.pdf")
    assert "250 MiB of memory" in error.message
    assert "ESA_READ_MEMORY" in error.hint
    monkeypatch.delenv("ESA_READ_MEMORY")
    assert "Ada" in readers.read(_pdf((b"", WORDS)), "b.pdf").text


def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_READ_SECONDS", "1")
    monkeypatch.setattr(reading_process, "CLOCK", 60)
    monkeypatch.setenv("ESA_READ_ATTRIBUTES", "1000000")
    tag = "<p " + " ".join(f"a{n}=''" for n in range(300_000)) + ">words</p>"
    error = refused(tag.encode(), "a.html")
    assert "must be read in 1 s of CPU time, got more" in error.message
    assert "ESA_READ_SECONDS" in error.hint


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals of POSIX")
def test_time_in_which_the_machine_is_busy_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child gets no time, as under load; a child that never gets any is ended."""
    monkeypatch.setenv("ESA_READ_SECONDS", "1")
    data = _pdf((b"", WORDS))
    readers.read(data, "a.pdf")
    [child] = reading_process._CHILD
    os.kill(child._process.pid, signal.SIGSTOP)
    timer = threading.Timer(1.2, os.kill, (child._process.pid, signal.SIGCONT))
    timer.start()
    assert "Ada" in readers.read(data, "a.pdf").text
    timer.join()
    monkeypatch.setattr(reading_process, "CLOCK", 1)
    os.kill(child._process.pid, signal.SIGSTOP)
    assert "must be read in 1 s, got more" in refused(data, "a.pdf").message


@pytest.mark.parametrize("before", [b"", b"x", b"#!/bin/sh\n"])
def test_a_small_archive_behind_other_bytes_is_read_apart(before: bytes) -> None:
    data = before + _docx(b"<w:p/>" * 20_000)
    assert len(data) < reading_process.SMALL["docx"]
    assert reading_process.at_risk("docx", data)
    assert not reading_process.at_risk("docx", before + make.docx(make.paragraph("x")))


def test_a_tag_of_many_attributes() -> None:
    tag = "<p " + " ".join(f"a{n}=''" for n in range(20_000)) + ">words</p>"
    assert "at most 10,000 attributes" in refused(tag.encode(), "a.html").message
    usual = f"<p>{'<img src=data:x;' + 'A' * 60_000 + '>' + 'few words ' * 30_000}</p>"
    assert len(readers.read(usual.encode(), "a.html").text) > 290_000


@pytest.mark.parametrize("piece", [b"<w:p/>", b'<a b=""/>', b"<w:p><w:r><w:t>a</w:t></w:r></w:p>"])
def test_a_word_document_of_empty_elements(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading_limits().elements == 5_000_000
    monkeypatch.setenv("ESA_READ_ELEMENTS", "200000")
    bomb = _docx(piece * 200_000)
    error = refused(bomb, "a.docx")
    assert "its part word/document.xml must have at most 200,000 elements" in error.message
    assert "ESA_READ_ELEMENTS" in error.hint


def test_a_workbook_of_tiny_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_READ_ELEMENTS", "100000")
    rows = "<row><c><v>1</v></c></row>" * 40_000
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
        archive.writestr("xl/worksheets/sheet1.xml", f"<worksheet>{rows}</worksheet>")
    assert "at most 100,000 elements" in refused(out.getvalue(), "a.xlsx").message


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "raw_unicode_escape", "idna"])
def test_notations_of_python_are_no_encodings(charset: str) -> None:
    page = f'<meta charset="{charset}"><p>' + r"ab\u0041" * 100_000
    assert r"ab\u0041" in readers.read(page.encode(), "a.html").text
    mail = (
        f"From: a@b.c\nSubject: x\nContent-Type: text/plain; charset={charset}\n\n" + "ab" * 99_999
    )
    assert readers.read(mail.encode(), "a.eml").text.rstrip().endswith("abab")


def test_a_book_that_names_a_page_many_times() -> None:
    words = "<p>" + "Ada built it. " * 4000
    book = make.epub({"a.xhtml": words})
    with zipfile.ZipFile(BytesIO(book)) as old, zipfile.ZipFile(made := BytesIO(), "w") as new:
        for part in old.namelist():
            data = old.read(part)
            if part.endswith(".opf"):
                start = data.index(b"<itemref")
                end = data.index(b">", start) + 1
                data = data[:start] + data[start:end] * 20_000 + data[end:]
            new.writestr(part, data)
    assert readers.read(made.getvalue(), "a.epub").text.count("Ada") == 4000


def test_mail_fields_without_end() -> None:
    subject = "Subject: " + "=?utf-8?q?a?= " * 100_000
    parameters = "".join(f"; p*{n}*=a" for n in range(20_000))
    kind = f"Content-Type: text/plain{parameters}"
    references = "References: " + "<a@b.c> " * 20_000
    mail = f"From: a@b.c\nTo: d@e.f\n{subject}\n{kind}\n{references}\n\nAda built it.\n"
    assert "Ada built it." in readers.read(mail.encode(), "a.eml").text


def test_gzip_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_READ_BYTES", "1MiB")
    error = refused(gzip.compress(bytes(2 << 20)), "a.txt.gz")
    assert "must unpack to at most 1 MiB, got more" in error.message
    assert "ESA_READ_BYTES" in error.hint


def test_yaml_aliases_are_counted() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for above, here in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{here}: &{here} [{', '.join([f'*{above}'] * 9)}]")
    with pytest.raises(Exception, match=f"at most {MOST_VALUES:,}, aliases included"):
        load_yaml("\n".join(lines))
    assert load_yaml("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ESA_READ_SECONDS", "long"), ("ESA_READ_PART", "0"), ("ESA_READ_SECONDS", "9" * 400),
        ("ESA_READ_MEMORY", str((1 << 53) + 2)),
    ],
)  # fmt: skip
def test_limits_must_be_numbers(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=name):
        reading_limits()


def test_the_highest_limits_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, str(MOST))
    assert "Ada" in readers.read(_pdf((b"", WORDS)), "a.pdf").text


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    reading_process.stop_reading()
    monkeypatch.setattr(sys, "executable", "/nobody/python")
    with pytest.raises(DocumentError, match="no process can be started for it"):
        readers.read(_pdf((b"", WORDS)), "a.pdf")


def test_a_zip_of_many_parts_is_refused_before_it_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zip_parts, "MOST_PARTS", 1000)
    names = ("word/document.xml", *(f"{n}.xml" for n in range(1000)))
    data = make.zipped(dict.fromkeys(names, "x"))
    with pytest.raises(DocumentError, match="must have at most 1,000 parts"):
        read_by(choose(data, "a"), data, "a.docx")


@pytest.mark.parametrize(
    "run", [" ", "\t", "\n", "\r", ".", "-", "#", "`", "<", "&", '"', ",", "1", "a "]
)
@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.csv", "a.ipynb", "a.eml"])
def test_a_long_run_takes_no_time(name: str, run: str) -> None:
    """In this process, whose other threads would wait meanwhile: a run takes what words take."""
    beside = {
        "a.ipynb": '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"id": "a", '
        '"cell_type": "markdown", "metadata": {}, "source": %s}]}',
        "a.eml": "From: a@b.c\nMessage-ID: <1>\nContent-Type: text/html\n\n%s",
    }.get(name, "%s")  # fmt: skip
    text = f"# a\n\n# a{run * 60_000}b\n\n<p>c"
    data = beside % (json.dumps(text) if name == "a.ipynb" else text)
    start = time.process_time()
    with contextlib.suppress(DocumentError):
        read_by(choose(data.encode(), name), data.encode(), name)
    assert time.process_time() - start < 3


def test_a_document_that_is_ready_when_its_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer does not end a child whose reply is there, or the next document is damaged."""
    timers: list[threading.Timer] = []

    class LateTimer(threading.Timer):
        def __init__(self, seconds: float, stop: Callable[[], None]) -> None:
            super().__init__(seconds, stop)
            timers.append(self)

        def cancel(self) -> None:
            self.function()

    monkeypatch.setattr(threading, "Timer", LateTimer)
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        assert "Ada" in readers.read(_pdf((b"", WORDS)), name).text
    for timer in timers:
        super(LateTimer, timer).cancel()
