"""Notebooks and mail: their text in order, what is missing, and what each refusal says."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from esa_cli.documents import readers
from esa_cli.documents.readers import STDIN, ExtractedText, Mark
from esa_cli.errors import DocumentError

WESTERN = "Le café était fermé, et l’été déjà loin; on rentra à la forêt."
PICTURE = "iVBORw0KGgo" + "A" * 80


def refused(data: bytes, name: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        readers.read(data, name)
    return caught.value


# --- notebooks ---


def code(source: Any, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def markdown(source: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": source}


def display(**data: Any) -> dict[str, Any]:
    forms = {form.replace("_", "/", 1): value for form, value in data.items()}
    return {"output_type": "display_data", "data": forms}


def raw(*cells: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"cells": cells, "nbformat": 4, "metadata": {}} | more).encode()


def notebook(*cells: dict[str, Any], **more: Any) -> ExtractedText:
    return readers.read(raw(*cells, **more), "a.ipynb")


def test_notebook_cells_in_order_with_their_headings_for_chapters() -> None:
    found = notebook(
        markdown(["lead\n", "\n", "# One\n", "alpha"]),
        code(["x = 1\n", "x"], {"output_type": "execute_result", "data": {"text/plain": ["1"]}}),
        markdown("```\n# no heading"),
        markdown("---\n## Two\nbeta\n"),
        {"cell_type": "raw", "source": "# raw"},
        code("", {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]}),
        markdown("  "),
        metadata={"language_info": {"name": "python"}},
    )
    assert found.text == (
        "lead\n\n# One\nalpha\n\n```python\nx = 1\nx\n```\n\n```output\n1\n```\n\n"
        "```\n# no heading\n\n---\n## Two\nbeta\n\n# raw\n\n```output\na\nb\n```\n"
    )
    starts = [(found.text[mark.start :].split("\n")[0], mark.chapter) for mark in found.marks]
    assert starts == [("# One", "One"), ("## Two", "Two")]
    assert found.missing == ()


def test_notebook_outputs_of_every_kind() -> None:
    found = notebook(
        code(
            "f()",
            {"output_type": "stream", "text": "\x1b[31m 10%\r100%\x1b[0m\r\nred\r\n"},
            display(text_plain="<Figure size 1x1>", image_png=PICTURE),
            display(text_plain="<IPython.core.display.HTML object>", text_html="<b>bold</b> text"),
            display(text_plain="   a\n0  1", text_html="<table><tr><td>a</table>"),
            display(text_plain="<pkg.Thing at 1>"),
            display(text_plain="<pkg.Thing object at 0x7f>"),
            {"output_type": "display_data", "data": {"application/json": {"k": "ü"}}},
            {"output_type": "display_data", "data": {"application/vnd.plotly.v1+json": {}}},
            {
                "output_type": "error",
                "ename": "ValueError",
                "evalue": "too few",
                "traceback": ["\x1b[0;31m..."],
            },
        )
    )
    assert found.text.split("```output\n")[1] == (
        "100%\nred\n<Figure size 1x1>\nbold text\n   a\n0  1\n<pkg.Thing at 1>\n"
        '<pkg.Thing object at 0x7f>\n{"k": "ü"}\nValueError: too few\n```\n'
    )
    assert found.missing == (
        "pictures are left out: 1",
        "the tracebacks of errors are left out: 1",
        "outputs without a text are left out: 1 (application/vnd.plotly.v1+json)",
    )


def test_notebook_pictures_inside_its_markdown_and_fences_inside_its_code() -> None:
    cell = markdown(f"![map](data:image/png;base64,{PICTURE}) and ![b](attachment:b.png)")
    found = notebook(cell | {"attachments": {"b.png": {"image/png": PICTURE}}}, code("s = '```'"))
    assert found.text == "![map](picture) and ![b](attachment:b.png)\n\n````\ns = '```'\n````\n"
    assert found.missing == ("pictures are left out: 2",)


def test_notebook_of_nbformat_3() -> None:
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Old\n", "one"]},
        {
            "cell_type": "code",
            "input": ["1/0"],
            "outputs": [
                {"output_type": "stream", "stream": "stdout", "text": "said\n"},
                {"output_type": "pyout", "text": ["4"], "html": "<i>4</i>"},
                {"output_type": "display_data", "png": PICTURE},
                {"output_type": "pyerr", "ename": "E", "evalue": "e", "traceback": []},
            ],
        },
    ]
    data = {"worksheets": [{"cells": cells[:1]}, {"cells": cells[1:]}], "nbformat": 3}
    found = readers.read(json.dumps(data).encode(), "a.ipynb")
    assert found.text == "## Old one\n\n```\n1/0\n```\n\n```output\nsaid\n4\nE: e\n```\n"
    assert found.marks == (Mark(0, None, "Old one"),)
    assert found.missing == ("pictures are left out: 1",)


def test_notebook_is_told_by_content_where_no_name_is() -> None:
    data = raw(markdown("# Hello"))
    assert readers.read(data, STDIN).text == "# Hello\n"
    assert readers.read(data, "a.json").text == data.decode(), "its name says what it is"
    assert readers.read(b'{"nbformat": 4}', STDIN).text == '{"nbformat": 4}'


@pytest.mark.parametrize(
    "text", ["words", '{"a": 1}', "[1]", '{"cells": {}}', '{"cells": [1]}', '{"worksheets": 1}']
)
def test_what_is_called_a_notebook_and_is_none_is_plain_text(text: str) -> None:
    assert readers.read(text.encode(), "a.ipynb") == ExtractedText(text, encoding="utf-8")


def test_notebook_refusals() -> None:
    broken = refused(raw(markdown("x"))[:-9], "a.ipynb")
    assert "its JSON is broken" in broken.message
    assert ".txt" in broken.hint
    assert "pictures only" in refused(raw(code("", display(image_png=PICTURE))), "a").message
    assert "without text" in refused(raw(), "a.ipynb").message
    for odd in (
        markdown(7),
        markdown([7]),
        code("x", display(text_plain={})),
        code("x") | {"outputs": 1},
    ):
        assert "damaged" in refused(raw(odd), "a.ipynb").message
    assert "broken" in refused(b"{" + b'"a":[' * 100_000, "a.ipynb").message


# --- mail ---


def mail(body: str, *fields: str, charset: str = "utf-8") -> ExtractedText:
    head = "".join(f"{field}\r\n" for field in ("From: Ann <ann@x.org>", "Subject: Trip", *fields))
    return readers.read(f"{head}\r\n{body}".encode(charset), "a.eml")


def parts(*inside: str, kind: str = "mixed", sign: str = "b") -> str:
    """A field and a body: parts that begin with their own fields."""
    body = "".join(f"--{sign}\r\n{part}\r\n" for part in inside)
    return f"Content-Type: multipart/{kind}; boundary={sign}\r\n\r\nignored\r\n{body}--{sign}--\r\n"


def of(*inside: str, kind: str = "mixed") -> ExtractedText:
    field, _, body = parts(*inside, kind=kind).partition("\r\n\r\n")
    return mail(body, field, "MIME-Version: 1.0")


PLAIN = "Content-Type: text/plain; charset=utf-8\r\n\r\nWe leave at nine, from the old gate."
PAGE = "Content-Type: text/html\r\n\r\n<h1>Trip</h1><p>We leave at <b>nine</b>, from the gate.<img>"
HEAD = "From: Ann <ann@x.org>\nSubject: Trip\n\n"
LOGO = f"Content-Type: image/png\r\nContent-ID: <l>\r\n\r\n{PICTURE}"


def attached(name: str, kind: str = "application/pdf") -> str:
    how = f"Content-Disposition: attachment; filename={name}"
    return f"Content-Type: {kind}\r\n{how}\r\nContent-Transfer-Encoding: base64\r\n\r\nAAAA"


def test_mail_fields_and_text() -> None:
    data = (
        "Received: by x\r\n"
        "Date: Mon, 03 Jun 2024 09:00:00 +0200\r\nSubject: =?utf-8?q?Gr=C3=BC?=\r\n"
        " =?utf-8?q?=C3=9Fe?=\r\nCc: c@x.org,\r\n\td@x.org\r\nTo: Bö <b@x.org>\r\nFrom: a@x.org\r\n"
        "X-Spam: no\r\n\r\none\r\n\r\n  two\r\n"
    )
    found = readers.read(data.encode(), "a.eml")
    assert found.text == (
        "From: a@x.org\nTo: Bö <b@x.org>\nCc: c@x.org, d@x.org\n"
        "Date: Mon, 03 Jun 2024 09:00:00 +0200\nSubject: Grüße\n\none\n\n  two\n"
    )
    assert found.marks == (Mark(0, None, "Grüße"),)
    assert found.missing == ()


@pytest.mark.parametrize(
    ("charset", "encoding", "written"),
    [
        ("; charset=iso-8859-1", "8bit", "né".encode("latin-1")),
        ("; charset=iso-8859-1", "8bit", "né “x”".encode("cp1252")),
        ("; charset=utf-8", "quoted-printable", b"n=C3=A9 =\r\n=E2=80=9Cx=E2=80=9D"),
        ("; charset=utf-8", "base64", b"bsOpIOKAnHjigJ0="),
        ("", "8bit", "né “x”".encode()),
        ("; charset=us-ascii", "8bit", "né “x”".encode()),
        ("; charset=no-such", "8bit", "né “x”".encode()),
        ("; charset=utf-8", "8bit", WESTERN.encode("cp1252")),
    ],
)
def test_mail_encodings(charset: str, encoding: str, written: bytes) -> None:
    head = f"From: a\nContent-Type: text/plain{charset}\nContent-Transfer-Encoding: {encoding}\n\n"
    found = readers.read(head.encode() + written, "a.eml")
    assert found.text.removeprefix("From: a\n\n").strip() in ("né", "né “x”", WESTERN)
    assert found.missing == ()


def test_mail_whose_letters_are_nobodys() -> None:
    found = readers.read(
        b"From: a\nContent-Type: text/plain; charset=utf-8\n\nab\x81\x8d\xff", "a.eml"
    )
    assert found.text.startswith("From: a\n\nab")
    assert found.missing == ("characters are lost whose encoding cannot be told",)


def test_mail_in_several_forms_is_read_in_one() -> None:
    assert of(PLAIN, PAGE, kind="alternative").text == (
        f"{HEAD}We leave at nine, from the old gate.\n"
    )
    page = of("Content-Type: text/plain\r\n\r\nSee HTML", PAGE, kind="alternative")
    assert page.text == f"{HEAD}Trip\n\nWe leave at nine, from the gate.\n"
    assert page.marks == (Mark(0, None, "Trip"),)
    alone = mail("<p>né</p>", "Content-Type: text/html; charset=iso-8859-1", charset="latin-1")
    assert alone.text == f"{HEAD}né\n"
    declared = mail("<meta charset=koi8-r><p>да</p>", "Content-Type: text/html", charset="koi8-r")
    assert declared.text == f"{HEAD}да\n"


def test_mail_forms_that_have_more_beside_them() -> None:
    page = parts(PAGE, LOGO, attached("plan.pdf"), kind="related", sign="c")
    found = of(PLAIN, page, "Content-Type: text/calendar\r\n\r\nBEGIN:", kind="alternative")
    assert found.text == f"{HEAD}We leave at nine, from the old gate.\n"
    assert found.missing == (
        "attached files are not read: plan.pdf, (text/calendar)", "pictures are left out",
    )  # fmt: skip
    assert of(page, kind="alternative").text == f"{HEAD}Trip\n\nWe leave at nine, from the gate.\n"


def test_mail_attached_files_are_named() -> None:
    names = [f"{n}.pdf" for n in range(22)]
    found = of(PLAIN, attached("a.txt", "text/plain"), *map(attached, names), LOGO, LOGO)
    assert found.text == f"{HEAD}We leave at nine, from the old gate.\n"
    listed = ", ".join(["a.txt", *names[:19]])
    assert found.missing == (
        f"attached files are not read: {listed} and 3 more", "pictures are left out: 2",
    )  # fmt: skip
    shown = "Content-Type: text/x-patch\r\nContent-Disposition: inline; filename=p\r\n\r\n-a\r\n+b"
    assert of(PLAIN, shown).text.endswith("gate.\n\n-a\n+b\n")


def test_mail_inside_a_mail_is_a_chapter_of_its_own() -> None:
    inner = "Subject: Old\r\nFrom: Bo\r\n\r\nFirst words"
    found = of(PLAIN, f"Content-Type: message/rfc822\r\n\r\n{inner}", PLAIN)
    assert found.text == (
        f"{HEAD}We leave at nine, from the old gate.\n\nFrom: Bo\nSubject: Old\n\nFirst words\n\n"
        "We leave at nine, from the old gate.\n"
    )
    assert [mark.chapter for mark in found.marks] == ["Trip", "Old", "Trip"]
    packed = base64.b64encode(inner.encode()).decode()
    kind = "Content-Type: message/rfc822\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    assert of(PLAIN, kind + packed, PLAIN) == found
    status = (
        "Content-Type: message/delivery-status\r\n\r\nA: 1\r\n\r\nFinal: b@x\r\nAction: failed\r\n"
    )
    assert "A: 1\n\nFinal: b@x\nAction: failed\n" in of(PLAIN, status, kind="report").text


def test_mail_that_is_cut_off() -> None:
    field, _, body = parts(PLAIN, PAGE).partition("\r\n\r\n")
    found = mail(body[:-40], field)
    assert "We leave at nine" in found.text
    assert found.missing == ("the end of the mail is missing, or where a part of it ends",)
    packed = mail("bsOpIOK", "Content-Transfer-Encoding: base64")
    assert packed.missing[0] == "a part is damaged or cut off"
    assert packed.text.endswith("\n\nné \ufffd\n"), "what is whole stays"
    behind = mail(f"{body}unsubscribe\r\n", field)
    assert behind.missing == ("text behind the last part is left out",)


def test_mail_that_nobody_else_can_read() -> None:
    locked = 'Content-Type: multipart/encrypted; boundary=b; protocol="application/pgp-encrypted"'
    error = refused(f"From: a\r\n{locked}\r\n\r\n--b\r\n\r\nx\r\n--b--".encode(), "a.eml")
    assert "encrypted" in error.message
    assert "mail program" in error.hint
    inside = of(PLAIN, "Content-Type: application/pkcs7-mime; name=s.p7m\r\n\r\nAAAA")
    assert inside.missing == ("an encrypted or signed part cannot be read",)


def test_mail_is_told_by_content_where_no_name_is() -> None:
    data = b"Received: by x\r\nFrom: a\r\n\r\nwords"
    assert readers.read(data, STDIN).text == "From: a\n\nwords\n"
    assert readers.read(data, "a.txt").text == "Received: by x\nFrom: a\n\nwords"
    for text in (b"From: here\nto: there\n\nwords", b"Message-ID: x\nfoo: y\n\nwords"):
        assert readers.read(text, STDIN).text == text.decode()
    assert readers.read(b"Note: no mail\n\nwords", "a.eml").text == "Note: no mail\n\nwords"
    assert "PNG" in refused(b"\x89PNG\r\n\x1a\n\0", "a.eml").message
