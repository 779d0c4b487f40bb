"""Reads plain text and source code, and decodes bytes to characters.

A byte order mark says the encoding; without such a mark, UTF-8 is tried first, then Windows-1252,
Cyrillic and East Asian encodings if the bytes leave no doubt. Other text is refused."""

from __future__ import annotations

import codecs
import re
import shlex
import string
from contextlib import suppress

from esa_cli.documents.readers.text_builder import STDIN, ExtractedText, Mark, label_document
from esa_cli.errors import DocumentError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark begins it
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
BYTE_ORDER_MARKS = tuple(mark for mark, _ in _MARKS)
_WIDER = {
    "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949",
}  # fmt: skip
"""Declared encoding -> its superset by which browsers read it, and on which pages rely."""
_ASCII = bytes(range(32, 127)) + b"\\u0041 +AGE-"
"""Bytes that all encodings of files share, but not EBCDIC nor notations as `unicode_escape`."""
_OLD_OFFICE, _RTF = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"{\\rtf"
_BINARY = {
    _OLD_OFFICE: (
        "an old Office file (doc, xls, ppt) or an Outlook mail (msg)",
        "open the file and save it as docx, xlsx, pptx or eml, without a password",
    ),
    b"PK\3\4": (
        "a ZIP archive",
        "unpack it and name a file in it, or, if a program can open it, save it as docx or xlsx",
    ),
    b"\x1f\x8b\x08": ("gzip-compressed data", "unpack it first: gunzip -k {name}"),
    _RTF: ("an RTF document", "save it as docx, or: pandoc -t plain {name} -o document.txt"),
}
"""Beginning of a file -> its format, and how to get text out of it."""

# Bytes of Windows-1252 that text of other encodings does not use for something else: signs, and
# accented letters of Western languages without those where Turkish and Baltic encodings differ.
_SIGNS = b"\x80\x85\x91\x92\x93\x94\x95\x96\x97\xa0\xa1\xa3\xa7\xaa\xab\xb0\xb7\xbb\x8c\x9c"
_NOT_COMMON = b"\xd0\xdd\xde\xf0\xfd\xfe"
_WESTERN = frozenset(_SIGNS) | set(range(0xC0, 0x100)).difference(_NOT_COMMON)
# The question mark of Spanish begins a word; the same byte is a Polish letter, also inside words.
_QUESTION = re.compile(rb"(?<![A-Za-z\xb5\xc0-\xff])\xbf(?=[A-Za-z\xa1\xab\xc0-\xff])")
_HIGH = bytes(range(0x80, 0x100))
# A capital with an accent inside a word of small letters is another encoding's small letter; three
# accented letters in a row are rare in Western words, and the rule in Cyrillic.
_NOT_WESTERN = re.compile(rb"[a-z][\xc0-\xde][a-z]|[\xc0-\xff]{3}")
_MAX_FOREIGN = 0.3
_RARE = 500
"""One byte of so many foreign ones may be another sign, such as the ordinal in `n\u00ba 5`; one of
`_RARE` // 10 in a text with fewer than one foreign byte in 1,000 letters, as English is."""
_COMMON = {
    "cp1251": ("оеаинтсрвл", 0.5),
    "koi8_u": ("оеаинтсрвл", 0.5),
    "gb18030": ("的一是不了在人有我他这之曰也来说于", 0.05),
    "big5": ("的一是不了在人有我他這之曰也來說於", 0.05),
    "cp932": ("のにはをたがでてとしるい", 0.15),
    "euc_jp": ("のにはをたがでてとしるい", 0.15),
    "cp949": ("이다는의가에을를하고한은", 0.12),
}  # fmt: skip
"""Legacy encoding -> frequent characters of its languages, and their least share of its foreign
characters. Read by another encoding of the table, no text has half as many."""
_UNLIKELY = re.compile("[\u2500-\u25a0ЂЃѓЉЊЌЋЏђљњќћџ‚\ue000-\uf8ff]|[а-ю]Я")
"""Signs and Balkan letters that show in the text of another Cyrillic encoding."""
_MIN_FOREIGN = 40
"""Foreign characters, at least, by which an encoding is recognised."""

_LATEX_HEADING = re.compile(
    r"^[ \t]*\\(?P<kind>chapter|(?:sub){0,2}section)(?P<star>\*?)[ \t]*(?:\[[^\]\n]*\])?"
    r"\{(?P<title>(?:[^{}\n]|\{[^{}\n]*\})*)\}|^[ \t]*\\appendix\b",
    re.MULTILINE,
)
_LATEX_MARKUP = re.compile(r"\\[A-Za-z]+\*?|[{}$]")


def read_plain_text(data: bytes, name: str) -> ExtractedText:
    """Reads plain text or source code; only line endings change."""
    text, encoding = decode_text_with_lf(data, name)
    return ExtractedText(text, encoding=encoding)


def read_latex(data: bytes, name: str) -> ExtractedText:
    """Reads the source of a LaTeX document as it is; headings are chapters, with the numbers that
    LaTeX gives them, such as `2.1`, or `B.1` after `\\appendix`."""
    text, encoding = decode_text_with_lf(data, name)
    found = [*_LATEX_HEADING.finditer(text)]
    top = int(all(one["kind"] != "chapter" for one in found))
    counts, marks, in_appendix = [0] * 4, list[Mark](), False
    for one in found:
        if not one["kind"]:
            counts, in_appendix = [0] * 4, True
            continue
        level = 0 if one["kind"] == "chapter" else 1 + one["kind"].count("sub")
        title = _LATEX_MARKUP.sub("", one["title"])
        if not one["star"]:
            counts[level:] = [counts[level] + 1, *[0] * (3 - level)]
            numbers = [*map(str, counts[top : level + 1])]
            if in_appendix:
                numbers[0] = chr(ord("A") + (counts[top] - 1) % 26)
            appendix = "Appendix " * (in_appendix and level == top)
            title = f"{appendix}{'.'.join(numbers)} {title}"
        marks.append(Mark(one.start(), chapter=" ".join(title.split()), level=level - top + 1))
    return ExtractedText(text, tuple(marks), encoding=encoding)


def decode_text_with_lf(data: bytes, name: str) -> tuple[str, str]:
    """Decodes a document as `decode_text` does, and replaces its line endings by \\n."""
    text, encoding = decode_text(data, name)
    return text.replace("\r\n", "\n").replace("\r", "\n"), encoding


def decode_text(data: bytes, name: str) -> tuple[str, str]:
    """Returns the text of the document `name` with the Python name of its encoding. Raises
    DocumentError: the document is binary, or in a broken or unknown encoding."""
    encoding = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "")
    encoding = encoding or _guess_utf16_encoding(data)
    if not encoding:
        _refuse_binary_document(data, name)
    try:
        return data.decode(encoding or "utf-8"), encoding or "utf-8"
    except UnicodeDecodeError as error:
        problem = f"starts as {encoding or 'UTF-8'} but breaks at byte {error.start}"
    if not encoding:
        guess = "cp1252" if is_probably_cp1252(data) else guess_legacy_encoding(data)
        with suppress(UnicodeDecodeError, LookupError):
            return data.decode(guess), guess
    path = "FILE" if name == STDIN else shlex.quote(name)
    raise DocumentError(
        f"{label_document(name)} {problem}, and its encoding cannot be told reliably",
        "convert the text to UTF-8 from its encoding, for example CP1252, CP1250 or GB18030: "
        f"iconv -f {encoding.upper() or 'ENCODING'} -t UTF-8 {path} > utf8.txt",
    )


def look_up_encoding(charset: str) -> str:
    """Returns the Python name of a declared encoding, or of the superset that browsers use in its
    place. Raises LookupError, ValueError: the name is unknown, or no encoding of files."""
    codec = codecs.lookup(charset).name
    if codec == "idna":  # an encoding of host names
        raise LookupError(charset)
    if not codec.startswith(("utf-16", "utf-32")) and _ASCII.decode(codec) != _ASCII.decode():
        raise LookupError(charset)
    return _WIDER.get(codec, codec)


def is_probably_cp1252(data: bytes) -> bool:
    """Returns True if the bytes are, beyond reasonable doubt, text in Windows-1252."""
    high = len(data) - len(data.translate(None, _HIGH))
    letters = len(data) - len(data.translate(None, string.ascii_letters.encode()))
    if not high or high > _MAX_FOREIGN * letters:
        return False
    used = set(data).intersection(_HIGH)
    others = sum(data.count(byte) for byte in used - _WESTERN) - len(_QUESTION.findall(data))
    rare = _RARE if high * 1000 > letters else _RARE // 10
    if others * rare > high or used >= {0xF5, 0xFB}:  # the Hungarian letters ő and ű
        return False
    with suppress(UnicodeDecodeError):  # five bytes of Windows-1252 have no character
        return not _NOT_WESTERN.search(data) and bool(data.decode("cp1252"))
    return False


def guess_legacy_encoding(data: bytes) -> str:
    """Returns the legacy encoding whose frequent characters a text has, or "" if none is clear."""
    shares: list[tuple[float, str]] = []
    for encoding, (common, least) in _COMMON.items():
        with suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            foreign = [character for character in text if character > "\x7f"]
            spaced = encoding in ("gb18030", "big5") and 8 * text.count(" ") > len(foreign)
            if len(foreign) >= _MIN_FOREIGN and not spaced and not _UNLIKELY.search(text):
                share = sum(map(foreign.count, common)) / len(foreign)
                shares.append((share / least, encoding))
    (best, encoding), (second, _) = sorted([*shares, (0.0, ""), (0.0, "")], reverse=True)[:2]
    return encoding if best >= 1 and second < best / 2 else ""


def _refuse_binary_document(data: bytes, name: str) -> None:
    for magic, (what, hint) in _BINARY.items():
        if data.startswith(magic):
            message = f"{label_document(name)} looks like {what}, a format that esa does not read"
            raise DocumentError(message, hint.format(name=shlex.quote(name)))
    if b"\0" in data:
        message = f"{label_document(name)} is binary: it has a NUL at byte {data.index(0)}"
        raise DocumentError(message, "name a document with text; unpack an archive first")


def describe_binary(head: bytes) -> str:
    """Returns what a file that begins with `head` is if it is not text in any encoding, or ""."""
    if head.startswith((_OLD_OFFICE, _RTF)):
        return "in a format that esa does not read (as doc, xls, msg, rtf)"
    binary = head.startswith(tuple(_BINARY)) or (b"\0" in head and not _guess_utf16_encoding(head))
    return "binary" if binary and not head.startswith(BYTE_ORDER_MARKS) else ""


def _guess_utf16_encoding(data: bytes) -> str:
    """Returns "utf-16le" or "utf-16be" if every other byte is mostly NUL, and "" otherwise."""
    head = data[:4096]
    half, even, odd = len(head) // 2, head[0::2].count(0), head[1::2].count(0)
    if half > 1 and odd > 0.7 * half and even == 0:
        return "utf-16le"
    return "utf-16be" if half > 1 and even > 0.7 * half and odd == 0 else ""
