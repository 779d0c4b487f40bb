"""GGUF files: what is read, and files that are cut off, wrong or made to do harm."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from model_files import home, left_in, tiny_gguf, write_gguf

from esa_cli import models
from esa_cli.errors import ModelError
from esa_cli.models.files.gguf_file import GgufFile

__all__ = ["home", "tiny_gguf"]


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
        header(2, 3),
        entry("general.architecture", 8, text("llama")),
        entry("llama.block_count", 4, struct.pack("<I", 3)),
        entry("llama.numbers", 9, struct.pack("<IQ3h", 3, 3, -1, 2, 3)),
        tensor((3, 2), 0, 0),
        tensor((2,), 1, 32, "b"),
    ]
    head = b"".join(parts)
    body = numpy.arange(6, dtype="<f4").tobytes().ljust(32, b"\0")
    body += numpy.array([0.5, -2], "<f2").tobytes()
    content = head.ljust(-(-len(head) // 32) * 32, b"\0") + body
    file = GgufFile(written(tmp_path / "a.gguf", content))
    assert file.architecture == "llama"
    assert (file.get_setting("block_count"), file.get_setting("numbers")) == (3, [-1, 2, 3])
    assert file.read_float_tensor("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.read_float_tensor("b").tolist() == [0.5, -2]


HUGE = (1 << 64) - 1
HOSTILE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "the first version": lambda: header(version=1) + bytes(40),
    "entries without end": lambda: header(0, HUGE) + bytes(100),
    "tensors without end": lambda: header(HUGE, 0) + bytes(100),
    "words without end": lambda: (
        header(0, 1) + entry("a", 9, struct.pack("<IQ", 8, HUGE)) + bytes(99)
    ),
    "arrays of arrays": lambda: (
        header(0, 1) + entry("a", 9, struct.pack("<IQ", 9, 1) * 9000) + bytes(99)
    ),
    "an alignment of nothing": lambda: (
        header(0, 1) + entry("general.alignment", 4, struct.pack("<I", 0)) + bytes(99)
    ),
    "a tensor beyond the end": lambda: header(1) + tensor((4, 4), 0, 1 << 40) + bytes(99),
    "a tensor that is too large": lambda: header(1) + tensor((HUGE, HUGE), 0, 0) + bytes(99),
    "half a block": lambda: header(1) + tensor((33, 4), 8, 0) + bytes(999),
    "a name twice": lambda: header(2) + tensor((4,), 0, 0) * 2 + bytes(99),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files(kind: str, tmp_path: Path, home: Path) -> None:
    path = written(tmp_path / "bad.gguf", HOSTILE[kind]())
    with pytest.raises(ModelError, match=r"bad\.gguf") as refused:
        models.fetch_model_folder(str(path))
    assert len(str(refused.value)) < 350
    assert left_in(home) == []


def test_a_model_is_prepared_listed_and_removed(tiny_gguf: Path, home: Path) -> None:
    stages: dict[str, tuple[int, int | None]] = {}
    folder = models.fetch_model_folder(
        str(tiny_gguf), progress=lambda stage, done, total: stages.update({stage: (done, total)})
    )
    assert list(stages) == ["import", "convert", "save"]
    assert stages["convert"][0] == stages["convert"][1] != 0
    assert models.find_model_folder(str(tiny_gguf)) == folder
    (listed,) = models.list_models()
    assert (listed.ref, listed.kind) == (str(tiny_gguf), "prepared")
    assert models.find_model_folder(listed.name) == folder
    assert models.delete_cached_model(listed.name) >= listed.size
    assert models.find_model_folder(str(tiny_gguf)) is None
    assert left_in(home) == []
    with pytest.raises(ModelError):
        models.delete_cached_model(str(tiny_gguf))


@pytest.mark.parametrize("stage", ["convert", "save"])
def test_interrupted_conversion_leaves_nothing(tiny_gguf: Path, home: Path, stage: str) -> None:
    def interrupt(now: str, done: int, total: int | None) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.fetch_model_folder(str(tiny_gguf), progress=interrupt)
    assert left_in(home) == []
    assert models.find_model_folder(str(tiny_gguf)) is None


def test_an_unknown_way_to_cut_text_is_refused(tmp_path: Path, home: Path) -> None:
    for name in ("llama-bpe", "olmo", "refact"):
        models.fetch_model_folder(str(write_gguf(tmp_path / f"{name}.gguf", pre=name)))
    with pytest.raises(ModelError, match="a-new-way"):
        models.fetch_model_folder(str(write_gguf(tmp_path / "new.gguf", pre="a-new-way")))
