"""Mail: fields, text, forms, attachments, encodings, refusals."""

from __future__ import annotations

import base64

import pytest
import sample_files as make
from reader_checks import at, refused

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText, Mark
from esa_cli.documents.readers.text_builder import STDIN

WESTERN = "Le café était fermé, et l’été déjà loin; on rentra à la forêt."
PICTURE = "iVBORw0KGgo" + "A" * 80


def mail(body: str, *fields: str, charset: str = "utf-8") -> ExtractedText:
    head = "".join(f"{field}\r\n" for field in ("From: Ann <ann@x.org>", "Subject: Trip", *fields))
    return readers.extract_text(f"{head}\r\n{body}".encode(charset), "a.eml")


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


def attached(name: str, kind: str = "application/octet-stream", data: bytes = b"\0" * 3) -> str:
    how = f"Content-Disposition: attachment; filename={name}"
    coded = base64.b64encode(data).decode()
    return f"Content-Type: {kind}\r\n{how}\r\nContent-Transfer-Encoding: base64\r\n\r\n{coded}"


def test_mail_fields_and_text() -> None:
    data = (
        "Received: by x\r\n"
        "Date: Mon, 03 Jun 2024 09:00:00 +0200\r\nSubject: =?utf-8?q?Gr=C3=BC?=\r\n"
        " =?utf-8?q?=C3=9Fe?=\r\nCc: c@x.org,\r\n\td@x.org\r\nTo: Bö <b@x.org>\r\nFrom: a@x.org\r\n"
        "X-Spam: no\r\n\r\none\r\n\r\n  two\r\n"
    )
    found = readers.extract_text(data.encode(), "a.eml")
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
        ("; charset=utf-8", "quoted-printable", b"n=C3=A9 =\r\n=E2=80=9Cx=E2=80=9D"),
        ("; charset=utf-8", "base64", b"bsOpIOKAnHjigJ0="),
        ("; charset=no-such", "8bit", "né “x”".encode()),
        ("; charset=utf-8", "8bit", WESTERN.encode("cp1252")),
    ],
)
def test_mail_encodings(charset: str, encoding: str, written: bytes) -> None:
    head = f"From: a\nContent-Type: text/plain{charset}\nContent-Transfer-Encoding: {encoding}\n\n"
    found = readers.extract_text(head.encode() + written, "a.eml")
    assert found.text.removeprefix("From: a\n\n").strip() in ("né", "né “x”", WESTERN)
    assert found.missing == ()


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


def test_mail_attached_files_are_chapters() -> None:
    """Files of several formats, an attached mail with an attached file, and a file with a password;
    other files are named."""
    pdf, locked = make.pdf(["bill 17", "paid"]), make.pdf(["secret"], locked=True)
    word, note = make.docx(make.paragraph("trip")), attached("n.txt", data=b"low")
    inner = f"From: Bo\r\nSubject: Old\r\nMIME-Version: 1.0\r\n{parts(note)}"
    found = of(
        PLAIN, attached("bill.pdf", data=pdf), attached("t.docx", data=word),
        attached("a.bin", "text/plain", b"words"), attached("old.eml", data=inner.encode()),
        attached("locked.pdf", data=locked), attached("x.zip", data=b"PK\3\4"),
        attached("k.rtf", "text/rtf", b"{rtf}"),
    )  # fmt: skip
    gate = "We leave at nine, from the old gate."
    assert found.text == (
        f"{HEAD}{gate}\n\nbill 17\n\npaid\n\ntrip\n\nwords\n\nFrom: Bo\nSubject: Old\n\nlow\n"
    )
    assert (at(found, "bill 17"), at(found, "paid")) == ((1, "bill.pdf"), (2, "bill.pdf"))
    chapters = {"nine": "Trip", "trip": "t.docx", "words": "a.bin", "Bo": "Old", "low": "n.txt"}
    for words, chapter in chapters.items():
        assert at(found, words) == (None, chapter)
    assert found.missing == (
        "attached files are not read: x.zip, k.rtf",
        "an attached file is not read: the document locked.pdf is protected by a password",
    )


def test_mail_attached_files_are_limited() -> None:
    found = of(*(attached(f"{n}.txt", data=b"w%d" % n) for n in range(102)))
    assert "w99" in found.text
    assert found.missing == ("attached files are not read: 100.txt, 101.txt",)
    nested = b"From: a\nSubject: deepest\n\nx"
    for depth in range(4):
        inside = parts(attached("m.eml", data=nested))
        nested = f"From: a\r\nSubject: s{depth}\r\nMIME-Version: 1.0\r\n{inside}".encode()
    deep = readers.extract_text(nested, "a.eml")
    assert "s0" in deep.text
    assert "deepest" not in deep.text
    assert deep.missing == ("attached files are not read: m.eml",)


def test_mail_attached_files_are_named() -> None:
    names = [f"{n}.bin" for n in range(22)]
    found = of(PLAIN, attached("a.zip"), *map(attached, names), LOGO, LOGO)
    assert found.text == f"{HEAD}We leave at nine, from the old gate.\n"
    listed = ", ".join(["a.zip", *names[:19]])
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


def test_mail_that_is_a_part_of_a_longer_one_says_so() -> None:
    found = mail("Subject: Long\r\n\r\nFirst", "Content-Type: message/partial; number=1; total=2")
    assert "First" in found.text
    assert len(found.missing) == 1
    assert "parts of a longer mail" in found.missing[0]


@pytest.mark.parametrize("damage", ["!!$", "%", "="])
def test_mail_whose_base64_is_damaged_says_so(damage: str) -> None:
    coded = base64.b64encode(b"We leave at nine, from the gate").decode()
    how = "Content-Type: text/plain\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    assert of(how + coded).missing == of(PLAIN).missing == ()
    assert of(how + coded[:9] + damage + coded[10:]).missing == ("a part is damaged or cut off",)


def test_mail_is_told_by_content_where_no_name_is() -> None:
    data = b"Received: by x\r\nFrom: a\r\n\r\nwords"
    assert readers.extract_text(data, STDIN).text == "From: a\n\nwords\n"
    assert readers.extract_text(data, "a.txt").text == "Received: by x\nFrom: a\n\nwords"
    for text in (b"From: here\nto: there\n\nwords", b"Message-ID: x\nfoo: y\n\nwords"):
        assert readers.extract_text(text, STDIN).text == text.decode()
    assert readers.extract_text(b"Note: no mail\n\nwords", "a.eml").text == "Note: no mail\n\nwords"
    assert "binary" in refused(b"\x89PNG\r\n\x1a\n\0", "a.eml").message


@pytest.mark.timeout(20)
def test_mail_with_fields_made_to_take_long() -> None:
    for field in (
        "Subject: " + "=?utf-8?q?a?= " * 100_000,
        "To: " + "a <a@x.org>, " * 20_000,
        "To: " + "(" * 100_000,
        "References: " + "<a@b.c> " * 20_000,
        "Content-Type: text/plain" + "".join(f"; p*{n}*=a" for n in range(20_000)),
        "Content-Disposition: inline; filename=" + "a" * 100_000,
    ):
        assert mail("words", field).text.endswith("\n\nwords\n")
