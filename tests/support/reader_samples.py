"""A small document of each format, by its name."""

from __future__ import annotations

import io
import re
import zipfile

import sample_files as make


def undated(data: bytes) -> bytes:
    """An archive without the time at which it was made: the same bytes in every run."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as copy,
    ):
        for one in archive.infolist():
            content = re.sub(
                rb"20\d\d-\d\d-\d\dT[\d:.]+Z", b"2020-01-01T00:00:00Z", archive.read(one)
            )
            copy.writestr(zipfile.ZipInfo(one.filename), content, one.compress_type)
    return out.getvalue()


SAMPLES: dict[str, bytes] = {
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
    "a.ipynb": b'{"cells": [{"cell_type": "markdown", "metadata": {}, "source": ["# One\\n", "x"]},'
    b' {"cell_type": "code", "metadata": {}, "source": "y", "outputs": [{"output_type": "stream", '
    b'"text": "z"}]}], "metadata": {}, "nbformat": 4}',
    "a.eml": b"From: Ann <a@x.org>\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nContent-Type: multipart/"
    b"mixed; boundary=b\n\n--b\nContent-Type: text/html\n\n<p>One\n--b\nContent-Type: image/png\n"
    b"Content-Transfer-Encoding: base64\n\nAAAA\n--b--\n",
    "a.xlsx": make.xlsx([["name", "sum"], ["Ann", 3], ["Bo", 2.5]]),
    "a.pptx": make.slides("One", "Two"),
    "a.odt": make.odt(
        "<text:h>One</text:h><text:list><text:list-item><text:p>x</text:p>"
        "</text:list-item></text:list><text:soft-page-break/>"
    ),
    "form.pdf": make.form(
        "/Subtype /Widget /FT /Tx /T (name) /V (Ann)",
        "/Subtype /Widget /FT /Btn /T (paid) /V /Yes /AS /Yes",
        "/Subtype /FreeText /Contents (A note)",
    ),
    "a.tsv": b"name\ttown\nAnn\tUlm\n" * 3,
    "utf16.txt": "Grüße, 世界\n".encode("utf-16") * 3,
    "a.py": b"def f():\n    return 1\n" * 5,
}
SAMPLES |= {name: undated(data) for name, data in SAMPLES.items() if data.startswith(b"PK\3\4")}
