"""The folder of prepared models: whole or not at all, with several processes and after kills."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
from model_files import home, left_in, tiny_gguf

from esa_cli import models
from esa_cli.errors import ModelError
from esa_cli.models.files import prepared_models

__all__ = ["home", "tiny_gguf"]


def test_killed_build_is_not_a_model_and_is_swept(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    ref = models.parse_reference(str(path))
    folder = home / "models" / prepared_models.slug(ref)
    stale = folder.with_name(f".{folder.name}.999999.part")
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"half")
    assert models.list_models() == []

    def fill(temp: Path) -> dict[str, Any]:
        (temp / "config.json").write_text("{}")
        return {"sha256": "0"}

    assert prepared_models.build(ref, fill) == folder
    assert left_in(home) == [folder.name]
    (folder / "config.json").write_text("{}{}")
    assert models.path_of(ref) is None


def test_each_part_of_a_split_file_makes_the_model(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for path in parts:
        path.write_bytes(b"x")
    ref = models.parse_reference(str(parts[0]))
    found = {prepared_models.slug(ref)}
    for path in parts:
        path.write_bytes(b"xx")
        found.add(prepared_models.slug(ref))
    assert len(found) == 4
    parts[1].unlink()
    with pytest.raises(ModelError, match="lacks 1 of its 3 parts"):
        prepared_models.slug(ref)


def test_second_builder_waits_and_uses_the_first(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    ref = models.parse_reference(str(path))
    filled, stages = [], []
    entered, go_on = threading.Event(), threading.Event()

    def fill(temp: Path) -> dict[str, Any]:
        filled.append(temp)
        entered.set()
        go_on.wait(10)
        (temp / "config.json").write_text("{}")
        return {}

    def wait(stage: str, done: int, total: int | None) -> None:
        stages.append(stage)
        go_on.set()

    first = threading.Thread(target=prepared_models.build, args=(ref, fill))
    first.start()
    assert entered.wait(10)
    assert models.path_of(ref) is None
    prepared_models.build(ref, fill, wait)
    first.join()
    assert len(filled) == 1
    assert stages == ["wait"]


def pull_when_all_are_there(ref: str, start: Any, pulled: Any) -> None:
    start.wait(60)
    pulled.put(models.pull(ref))


def test_two_processes_at_once(tiny_gguf: Path, home: Path) -> None:
    # Forked where that is possible: torch is there already, and both begin at the same moment.
    known = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if "fork" in known else None)
    given = (str(tiny_gguf), context.Barrier(2), context.Queue())
    both = [context.Process(target=pull_when_all_are_there, args=given) for _ in range(2)]
    for process in both:
        process.start()
    folders = {given[2].get(timeout=100) for _ in both}
    for process in both:
        process.join(100)
    assert [process.exitcode for process in both] == [0, 0]
    assert folders == {models.path_of(str(tiny_gguf))}
    assert left_in(home) == [path.name for path in folders]


def test_cache_that_cannot_be_written(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be changed") as caught:
        models.pull(str(tiny_gguf))
    assert caught.value.hint.endswith("ESA_HOME to a folder that can be written")
