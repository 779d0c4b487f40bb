"""From the bytes of a plain text to its letters: refuses binary files and doubtful encodings.

The order is: byte order mark, known kinds of binary file, NUL bytes, strict UTF-8, Western text in
Windows-1252, and last charset-normalizer. Its answer is taken only when enough bytes speak for it
and no other encoding comes close; other text is refused with the command that converts it, rather
than read with the wrong letters.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from esa_cli.documents.western import is_western
from esa_cli.errors import DocumentError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark its own begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
BYTE_ORDER_MARKS = tuple(mark for mark, _ in _MARKS)


@dataclass(frozen=True)
class Kind:
    """A kind of file that is not plain text: what to call it, and how to get text out of it."""

    what: str
    hint: str


_PANDOC = "Convert it first, for example: pandoc -t plain {name} -o document.txt"
_UNPACK = "Unpack it first and give the text file inside."
_NO_TEXT = "Give a document with text in it."
_ZIP_KINDS = (
    (b"application/vnd.oasis.opendocument", Kind("an OpenDocument file", _PANDOC)),
    (b"xl/", Kind("an Excel file (xlsb)", "Save it as xlsx first.")),
)
_OLD_OFFICE = Kind(
    "an old Office file (doc, xls, ppt), or a newer one with a password",
    "Open it and save it as docx or xlsx, without a password.",
)
_MAGIC = (
    (b"BZh91AY&SY", Kind("bzip2-compressed data", _UNPACK)),
    (b"\xfd7zXZ\0", Kind("xz-compressed data", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", Kind("zstd-compressed data", _UNPACK)),
    (b"7z\xbc\xaf\x27\x1c", Kind("a 7z archive", _UNPACK)),
    (b"\x7fELF", Kind("a program (ELF)", _NO_TEXT)),
    (b"\x89PNG\r\n\x1a\n", Kind("a PNG image", _NO_TEXT)),
    (b"\xff\xd8\xff", Kind("a JPEG image", _NO_TEXT)),
    (b"GIF87a", Kind("a GIF image", _NO_TEXT)),
    (b"GIF89a", Kind("a GIF image", _NO_TEXT)),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _OLD_OFFICE),
    (b"{\\rtf", Kind("an RTF document", _PANDOC)),
    (b"SQLite format 3\0", Kind("a SQLite database", _NO_TEXT)),
    (b"GGUF\x02\0\0\0", Kind("a GGUF model", "Models are named with --model.")),
    (b"GGUF\x03\0\0\0", Kind("a GGUF model", "Models are named with --model.")),
)

# charset-normalizer says how messy a decoding looks (chaos) and how much like a language it
# reads (coherence), both from 0 to 1. These bounds refuse every wrong answer seen among samples
# in a dozen European and Asian languages, at the price of refusing many right ones.
_SAMPLE = 1 << 20
_MIN_FOREIGN_BYTES = 16
_MAX_CHAOS = 0.06
_MIN_COHERENCE = 0.25
_CLEAR_LEAD = 0.1


def decode(data: bytes, called: str, path: str) -> tuple[str, str]:
    """The text of a document and the Python name of its encoding.

    Args:
        data: its bytes, at least one.
        called: what messages call it, such as "The document notes.txt".
        path: what the commands in hints call it.

    Raises:
        DocumentError: it is binary, or its encoding is broken or cannot be told.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(encoding), encoding
            except UnicodeDecodeError as error:
                problem = f"starts as {encoding} but breaks at byte {error.start}"
                raise _undecodable(called, path, problem, encoding) from error
    _refuse_binary(data, called, path)
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        broken = error.start
    best, candidates = ("cp1252", []) if is_western(data) else guess_encoding(data)
    if best is not None:
        try:
            return data.decode(best), best
        except UnicodeDecodeError:
            pass  # only a sample was looked at
    choices = f" (it could be {' or '.join(candidates)})" if candidates else ""
    raise _undecodable(
        called,
        path,
        f"is not UTF-8 (byte {broken} does not fit), and its encoding cannot be told for sure"
        f"{choices}",
        candidates[0] if candidates else "ENCODING",
    )


def guess_encoding(data: bytes) -> tuple[str | None, list[str]]:
    """The encoding that is clearly the best, or None; and up to three that are likely."""
    from charset_normalizer import from_bytes

    sample = data[:_SAMPLE]
    if len(data) > _SAMPLE:
        # A character cut in half at the end would rule out the right multi-byte encoding.
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    matches = list(from_bytes(sample))
    candidates = [match.encoding for match in matches[:3] if match.coherence > 0]
    if not matches or sum(byte > 127 for byte in sample) < _MIN_FOREIGN_BYTES:
        return None, candidates
    best = matches[0]
    good = best.chaos <= _MAX_CHAOS and best.coherence >= _MIN_COHERENCE
    rivals = [
        m
        for m in matches[1:]
        if m.coherence > best.coherence - _CLEAR_LEAD and m.chaos < best.chaos + _CLEAR_LEAD
    ]
    # Encodings differ in few letters: a byte the sample lacks may be the one that tells them apart.
    unseen = data.translate(None, bytes(set(sample)))
    clear = good and not rivals and not unseen
    return (best.encoding if clear else None), candidates


def _refuse_binary(data: bytes, called: str, path: str) -> None:
    kind = looks_like(data)
    if kind is not None:
        raise DocumentError(
            f"{called} looks like {kind.what}, which is not among the formats that are read.",
            kind.hint.format(name=path),
        )
    order = utf16_without_mark(data)
    if order is not None:
        raise _undecodable(called, path, f"looks like {order} without a byte order mark", order)
    if b"\0" in data:
        raise DocumentError(
            f"{called} is binary: it has a NUL at byte {data.index(0)}.",
            _NO_TEXT,
        )


def is_binary(head: bytes) -> bool:
    """Whether a file that begins like this is no text, whatever its encoding."""
    if head.startswith(BYTE_ORDER_MARKS):
        return False
    return looks_like(head) is not None or (b"\0" in head and utf16_without_mark(head) is None)


def looks_like(data: bytes) -> Kind | None:
    """The known kind of binary file the bytes begin like, or None."""
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        head = data[:65536] + data[-65536:]  # the list of names is at the end
        return next((kind for sign, kind in _ZIP_KINDS if sign in head), Kind("a zip", _UNPACK))
    if data[257:262] == b"ustar":
        return Kind("a tar archive", _UNPACK)
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


def utf16_without_mark(data: bytes) -> str | None:
    """The byte order, if every other byte of the beginning is mostly NUL as in UTF-16 text."""
    head = data[:4096]
    half = len(head) // 2
    if half < 2:
        return None
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if odd > 0.7 * half and even == 0:
        return "utf-16le"
    if even > 0.7 * half and odd == 0:
        return "utf-16be"
    return None


def _undecodable(called: str, path: str, problem: str, encoding: str) -> DocumentError:
    return DocumentError(
        f"{called} {problem}.",
        "Convert it to UTF-8, naming the encoding it is in, for example: "
        f"iconv -f {encoding.upper()} -t UTF-8 {path} > utf8.txt",
    )
