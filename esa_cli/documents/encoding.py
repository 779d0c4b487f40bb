"""From the bytes of a plain text to its characters: refuses binary files and doubtful encodings.

The order is: byte order mark, known kinds of binary file, NUL bytes, strict UTF-8, Windows-1252
where its bytes leave no doubt (statistics do: a dozen encodings share its letters), and last
charset-normalizer. Its answer is taken only when enough bytes speak for it and no other encoding
comes close. Other text is refused with the command that converts it.
"""

from __future__ import annotations

import codecs
import re
import string

from esa_cli.errors import DocumentError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark its own begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
BYTE_ORDER_MARKS = tuple(mark for mark, _ in _MARKS)
_NOTATIONS = frozenset(
    ("idna", "punycode", "raw_unicode_escape", "rot13", "undefined", "unicode_escape")
)
"""Python's codecs of text that are no encoding of a file's characters; some take minutes."""

_UNPACK = "unpack it and give the text file inside"
_SAVE = "open it and save it as docx, xlsx or pptx, without a password"
_NO_TEXT = "give a document with text in it"
_ARCHIVES = frozenset(("zip", "tar", "bz2", "xz", "zst", "7z", "rar", "lz", "ar", "cab", "z"))
_PACKED_TEXTS = frozenset(("rtf", "odt", "ods", "odp", "doc", "xls", "ppt"))
_BY_HAND = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file (doc, xls, ppt)", _SAVE),
    (b"\x7fELF", "a program (ELF)", _NO_TEXT),
    (b"GGUF", "a GGUF model", "models are named with --model"),
    (b"{\\rtf", "an RTF document", "convert it: pandoc -t plain {name} -o document.txt"),
)
"""Beginnings that filetype does not know, or that are text."""
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")

# Bytes of Windows-1252 that Central European, Baltic, Turkish, Cyrillic, DOS and Macintosh text do
# not use for something else:
# Euro sign, ellipsis, quotes, dashes, bullet, no-break space, pound, section, guillemets, degree,
# middle dot, inverted marks, ordinals.
_SIGNS = bytes([0x80, 0x85, *range(0x91, 0x98), 0xA0, 0xA3, 0xA7, 0xAB, 0xB0, 0xB7, 0xBB])
_SIGNS += bytes([0xA1, 0xAA])
# Accented letters of French, German, Spanish, Portuguese, Italian, Dutch and the Nordic languages;
# without eth, y acute and thorn, where Turkish and Baltic encodings have letters of their own.
_LETTERS = bytes(
    code
    for code in range(0xC0, 0x100)
    if code not in (0xD0, 0xD7, 0xDD, 0xDE) and code not in (0xF0, 0xF7, 0xFD, 0xFE)
)
_LIGATURES = b"\x8c\x9c"
# The question mark of Spanish stands before a capital; the same byte is a Polish letter.
_QUESTION = re.compile(rb"(?:^|[\s\"(\xab])\xbf(?=[A-Z\xc0-\xdc])")
_HIGH = bytes(range(0x80, 0x100))
# A capital with an accent inside a word of small letters: another encoding's small letter.
_MISPLACED = re.compile(rb"[a-z][\xc0-\xde][a-z]")
# Two accented letters after each other are rare in Western words, and the rule in Cyrillic.
_RUN = re.compile(rb"[\xc0-\xff]{3}")
_MOST_FOREIGN = 0.3

# charset-normalizer says how messy a decoding looks (chaos) and how much like a language it
# reads (coherence), both from 0 to 1. These bounds refuse every wrong answer seen among samples
# in a dozen European and Asian languages, at the price of refusing many right ones.
_HEAD = 1 << 13
_SAMPLE = 1 << 20
_MIN_FOREIGN_BYTES = 16
_MAX_CHAOS = 0.06
_MIN_COHERENCE = 0.25
_CLEAR_LEAD = 0.1


def decode(data: bytes, label: str, path: str) -> tuple[str, str]:
    """The text of a document and the Python name of its encoding.

    Args:
        data: its bytes, at least one.
        label: what messages call it, such as "the document notes.txt".
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
                raise _undecodable(label, path, problem, encoding) from error
    _refuse_binary(data, label, path)
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        broken = error.start
    best, candidates = ("cp1252", []) if looks_like_cp1252(data) else guess_encoding(data)
    if best is not None:
        try:
            return data.decode(best), best
        except UnicodeDecodeError:
            pass  # only a sample was looked at
    choices = f" (it could be {' or '.join(candidates)})" if candidates else ""
    raise _undecodable(
        label,
        path,
        f"is not UTF-8 (byte {broken} does not fit), and its encoding cannot be told for sure"
        f"{choices}",
        candidates[0] if candidates else "ENCODING",
    )


def declared_codec(charset: str) -> str:
    """The Python name of the encoding that a file declares. Raises LookupError: it is none, or a
    notation that only Python knows."""
    codec = codecs.lookup(charset).name
    if codec.replace("-", "_") in _NOTATIONS:
        raise LookupError(charset)
    return codec


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


def looks_like_cp1252(data: bytes) -> bool:
    """True if the bytes are, beyond reasonable doubt, text in Windows-1252."""
    high = len(data) - len(data.translate(None, _HIGH))
    letters = len(data) - len(data.translate(None, string.ascii_letters.encode()))
    if not high or high > _MOST_FOREIGN * letters:
        return False
    used = set(data).intersection(_HIGH)
    if len(_QUESTION.findall(data)) == data.count(b"\xbf"):
        used.discard(0xBF)
    if not used <= set(_SIGNS + _LETTERS + _LIGATURES):
        return False
    if 0xF5 in used and 0xFB in used:  # the Hungarian long o and u
        return False
    return not _MISPLACED.search(data) and not _RUN.search(data)


def _refuse_binary(data: bytes, label: str, path: str) -> None:
    kind = looks_like(data)
    if kind is not None:
        raise DocumentError(
            f"{label} looks like {kind[0]}, which is not among the formats that are read",
            kind[1].format(name=path),
        )
    order = utf16_without_mark(data)
    if order is not None:
        raise _undecodable(label, path, f"looks like {order} without a byte order mark", order)
    if b"\0" in data:
        raise DocumentError(f"{label} is binary: it has a NUL at byte {data.index(0)}", _NO_TEXT)


def is_binary(head: bytes) -> bool:
    """True if a file that begins like this is not text, whatever its encoding."""
    if head.startswith(BYTE_ORDER_MARKS):
        return False
    return looks_like(head) is not None or (b"\0" in head and utf16_without_mark(head) is None)


def looks_like(data: bytes) -> tuple[str, str] | None:
    """The known kind of binary file that begins like the bytes, and how to get text out of it;
    None for other bytes."""
    for magic, what, hint in _BY_HAND:
        if data.startswith(magic) and (magic != b"GGUF" or b"\0" in data[:8]):
            return what, hint
    head = data[:_HEAD]
    if (head[:1] < b"\x80" and not _CONTROL.search(head)) or utf16_without_mark(head):
        return None  # the signs of some kinds are letters, as BM and MZ
    import filetype

    kind = filetype.guess(head)
    if kind is None:
        return None
    what = f"a file of the kind {kind.extension.upper()} ({kind.mime})"
    if kind.extension in _PACKED_TEXTS or b"opendocument" in head:
        return what, _SAVE
    return what, _UNPACK if kind.extension in _ARCHIVES else _NO_TEXT


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


def _undecodable(label: str, path: str, problem: str, encoding: str) -> DocumentError:
    return DocumentError(
        f"{label} {problem}",
        "convert it to UTF-8, naming the encoding it is in, for example: "
        f"iconv -f {encoding.upper()} -t UTF-8 {path} > utf8.txt",
    )
