"""Files that are whole or not there; what a disk says, in words; limits on memory; progress."""

from __future__ import annotations

import errno
import os
from itertools import chain
from pathlib import Path

import pytest
from safetensors import SafetensorError

from esa_cli.errors import DocumentError, EsaError, ResourceError, UsageError
from esa_cli.system import machine
from esa_cli.system.files import convert_writing_errors, replace_atomically, write_text_atomically
from esa_cli.system.progress import WorkShard

PLACE = Path("some") / "file"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ResourceError, "No space left"),
        (OSError(errno.EDQUOT, "quota"), ResourceError, "quota"),
        (PermissionError(errno.EACCES, "Permission denied"), DocumentError, "Permission denied"),
        (SafetensorError("Error: I/O error (os error 28)"), ResourceError, "No space left"),
        (SafetensorError("something else"), DocumentError, "something else"),
    ],
)
def test_what_hinders_writing_is_said(error: Exception, kind: type[EsaError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught, convert_writing_errors(
        PLACE, "room", "other", also_caught=SafetensorError
    ):  # fmt: skip
        raise error
    assert str(PLACE) in caught.value.message
    assert caught.value.hint == ("room" if kind is ResourceError else "other")


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talk.md"
    write_text_atomically(path, "before é")
    assert path.read_text("utf-8") == "before é"

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text_atomically(path, "after")
    assert path.read_text("utf-8") == "before é"
    assert [one.name for one in tmp_path.iterdir()] == ["talk.md"]


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_not_finished_disappears_and_the_rest_appears_whole(
    tmp_path: Path, is_folder: bool
) -> None:
    def fill(part: Path, error: type[BaseException] | None = None) -> None:
        if is_folder:
            part.mkdir()
        (part / "file" if is_folder else part).write_text("half")
        if error:
            raise error

    with pytest.raises(KeyboardInterrupt), replace_atomically(tmp_path / "place") as part:
        fill(part, KeyboardInterrupt)
    assert not list(tmp_path.iterdir())
    with replace_atomically(tmp_path / "place") as part:
        fill(part)
    names = [path.name for path in tmp_path.rglob("*")]
    assert names == ["place", "file"] if is_folder else ["place"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("8GiB", 8 << 30), ("1.5 GB", 1_500_000_000), ("64Mi", 64 << 20)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert machine.parse_size(text, "x") == size


def test_the_limit_only_lowers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "1TiB")
    assert machine.measure_available_memory() < 1 << 40
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "1000")
    assert machine.measure_available_memory() == 1000
    assert machine.measure_free_memory() > 1000


def test_a_container_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 100\n")
    assert machine._read_free_container_memory(tmp_path) == 700
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._read_free_container_memory(tmp_path) is None


@pytest.mark.parametrize("length", [0, 1, 5, 16, 17])
@pytest.mark.parametrize("count", [1, 3, 16])
def test_shards_are_a_partition_of_equal_parts(length: int, count: int) -> None:
    items = list(range(length))
    shards = [WorkShard(number, count) for number in range(1, count + 1)]
    in_turn = [list(shard.select_items(items)) for shard in shards]
    blocks = [list(shard.select_contiguous_items(items)) for shard in shards]
    assert sorted(chain(*in_turn)) == items
    assert list(chain(*blocks)) == items
    for parts in (in_turn, blocks):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1/0", "1/2/3"])
def test_another_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard must be K/N with K from 1 to N, got"):
        WorkShard.parse(text)
