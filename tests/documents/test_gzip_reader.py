"""Gzip: what it holds, limits, refusals."""

from __future__ import annotations

import gzip
import random
import types
import zlib
from typing import Any

import pytest
import sample_files as make
from reader_checks import refused

from esa_cli.documents import readers
from esa_cli.documents.readers import gzip_reader as packed


def text_of(data: bytes | str, name: str) -> str:
    return readers.read(data.encode() if isinstance(data, str) else data, name).text


def test_gzip_is_read_as_what_it_holds() -> None:
    assert text_of(gzip.compress(b"a,b\n1,2\n"), "t.csv.gz") == text_of(b"a,b\n1,2\n", "t.csv")
    two = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 8
    assert text_of(two, readers.STDIN) == "one two"
    assert text_of(gzip.compress(make.pdf(["Hello"])), "a.pdf.gz") == "Hello\n"


@pytest.mark.parametrize(
    "texts", [[b"line %d\n" % n for n in range(3000)], [b"words " * (1 << 20)], [b"", b"x", b""]]
)
def test_gzip_copies_little(texts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed to zlib, which copies what it does not take, grows with the file alone."""
    handed = 0
    real = zlib.decompressobj

    class Counted:
        def __init__(self, wbits: int) -> None:
            self.inner = real(wbits)

        def decompress(self, data: Any, most: int) -> bytes:
            nonlocal handed
            handed += len(data)
            return self.inner.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    monkeypatch.setattr(
        packed, "zlib", types.SimpleNamespace(decompressobj=Counted, error=zlib.error)
    )
    data = b"".join(map(gzip.compress, texts))
    assert packed.unpack(data, "a.gz") == b"".join(texts)
    calls = len(texts) + sum(map(len, texts)) // packed._STEP + len(data) // packed._PIECE + 1
    assert handed <= calls * packed._PIECE


def test_gzip_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"words " * 1000)
    assert "the end is missing" in refused(packed[:-12], "a.txt.gz").message
    assert "damaged" in refused(packed + b"junk", "a.txt.gz").message
    noise = random.Random(0).randbytes(1 << 17)
    zeroed = gzip.compress(b"one") + gzip.compress(noise)[: 1 << 16] + bytes(1 << 16)
    assert "damaged" in refused(zeroed, "a.txt.gz").message, "zeros in a member are no padding"
    assert "more than once" in refused(gzip.compress(packed), "a.gz").message
    assert "empty file" in refused(gzip.compress(b""), "a.gz").message
    inner = refused(gzip.compress(b"\x89PNG\r\n\x1a\n"), "a.png.gz")
    assert "unpacked from a.png.gz" in inner.message
    assert "gunzip -k a.png.gz" in inner.hint
    monkeypatch.setenv("ESA_READ_BYTES", "1MiB")
    assert "at most 1 MiB" in refused(gzip.compress(bytes(5 << 20)), "a.gz").message
