"""Headers of GGUF files: what is read, and files that are cut off, wrong or made to do harm."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from model_files import own_home, tiny_gguf

from esa_cli import models
from esa_cli.errors import ModelError
from esa_cli.models.gguf.gguf_file import GgufFile

__all__ = ["tiny_gguf"]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def header(tensors: int = 0, entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def tensor(shape: tuple[int, ...], kind: int, offset: int, name: str = "a") -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    parts = [
        header(2, 4),
        entry("general.architecture", 8, text("llama")),
        entry("llama.block_count", 4, struct.pack("<I", 3)),
        entry("numbers", 9, struct.pack("<IQ3h", 3, 3, -1, 2, 3)),
        entry("words", 9, struct.pack("<IQ", 8, 2) + text("a") + text("é")),
        tensor((3, 2), 0, 0),
        tensor((2,), 1, 32, "b"),
    ]
    head = b"".join(parts)
    body = numpy.arange(6, dtype="<f4").tobytes().ljust(32, b"\0")
    body += numpy.array([0.5, -2], "<f2").tobytes()
    content = head.ljust(-(-len(head) // 32) * 32, b"\0") + body
    with GgufFile(written(tmp_path / "a.gguf", content)) as file:
        assert file.architecture == "llama"
        assert file.metadata["llama.block_count"] == 3
        assert file.metadata["numbers"] == [-1, 2, 3]
        assert file.metadata["words"] == ["a", "é"]
        assert file.read("a").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file.read("b").tolist() == [0.5, -2]


def test_it_reads_what_the_package_gguf_reads(tiny_gguf: Path) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(str(tiny_gguf))
    with GgufFile(tiny_gguf) as file:
        assert list(file.tensors) == [one.name for one in reader.tensors]
        for one in reader.tensors:
            assert numpy.array_equal(file.read(one.name), one.data)
        for name, field in reader.fields.items():
            if not name.startswith("GGUF."):
                assert file.metadata[name] == field.contents()


HUGE = (1 << 64) - 1
HOSTILE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "another magic": lambda: b"GGML" + bytes(60),
    "the first version": lambda: header(version=1) + bytes(40),
    "another byte order": lambda: b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(40),
    "entries without end": lambda: header(0, HUGE) + bytes(100),
    "tensors without end": lambda: header(HUGE, 0) + bytes(100),
    "a name without end": lambda: header(0, 1) + struct.pack("<Q", HUGE) + bytes(100),
    "a text without end": lambda: header(0, 1) + entry("a", 8, struct.pack("<Q", HUGE)) + bytes(99),
    "words without end": lambda: (
        header(0, 1) + entry("a", 9, struct.pack("<IQ", 8, HUGE)) + bytes(99)
    ),
    "numbers without end": lambda: (
        header(0, 1) + entry("a", 9, struct.pack("<IQ", 10, HUGE)) + bytes(99)
    ),
    "arrays of arrays": lambda: (
        header(0, 1) + entry("a", 9, struct.pack("<IQ", 9, 1) * 9) + bytes(99)
    ),
    "an unknown kind of entry": lambda: header(0, 1) + entry("a", 77, bytes(99)),
    "an alignment of nothing": lambda: (
        header(0, 1) + entry("general.alignment", 4, struct.pack("<I", 0)) + bytes(99)
    ),
    "many dimensions": lambda: header(1) + tensor((1,) * 9, 0, 0) + bytes(99),
    "no dimension": lambda: header(1) + tensor((), 0, 0) + bytes(99),
    "an empty tensor": lambda: header(1) + tensor((0, 4), 0, 0) + bytes(99),
    "a tensor beyond the end": lambda: header(1) + tensor((4, 4), 0, 1 << 40) + bytes(99),
    "a tensor that is too large": lambda: header(1) + tensor((HUGE, HUGE), 0, 0) + bytes(99),
    "an unknown type": lambda: header(1) + tensor((4, 4), 999, 0) + bytes(99),
    "half a block": lambda: header(1) + tensor((33, 4), 8, 0) + bytes(999),
    "a name twice": lambda: header(2) + tensor((4,), 0, 0) * 2 + bytes(99),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)
    path = written(tmp_path / "bad.gguf", HOSTILE[kind]())
    with pytest.raises(ModelError, match=r"bad\.gguf") as refused:
        models.pull(str(path))
    assert len(str(refused.value)) < 300


def test_a_file_without_an_architecture(tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", header() + bytes(40))
    with GgufFile(path) as file, pytest.raises(ModelError, match="which kind of model"):
        assert file.architecture


def test_damaged_bytes_are_refused_or_read(tiny_gguf: Path, tmp_path: Path) -> None:
    """Any byte of the header may be wrong: a ModelError, or other numbers."""
    content, chance = tiny_gguf.read_bytes(), random.Random(0)
    for number in range(200):
        bad = bytearray(content)
        for _ in range(3):
            bad[chance.randrange(6000)] = chance.randrange(256)
        cut = chance.randrange(len(bad)) if number % 3 == 0 else len(bad)
        path = written(tmp_path / f"{number}.gguf", bytes(bad[:cut]))
        try:
            with GgufFile(path) as file:
                for name in file.tensors:
                    file.read(name)
        except ModelError:
            continue
