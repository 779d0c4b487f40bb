"""Sizes, times, limits on memory and home folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from esa_cli.system import machine


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
