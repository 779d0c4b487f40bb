"""Fixtures of all tests: one run of a command in this process, in a folder of its own."""

from __future__ import annotations

import copy
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Esa, Result
from completion_server import CompletionServer

from esa_cli.__main__ import main
from esa_cli.storage.library import Library

SMALL = 1 << 20


@pytest.fixture(scope="session")
def reading_once() -> tuple[Any, Callable[..., Any]]:
    """The module that reads models, and a reader that reads a small one from the same files once;
    each command has its own copy."""
    load: Any = importlib.import_module("esa_cli.models.loading.load")
    read = load.load_pretrained
    read_files = functools.cache(lambda files, *given, **more: read(*given, **more))

    def read_once(folder: Path, *given: Any, **more: Any) -> Any:
        stats = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
        if sum(stat.st_size for _, stat in stats) > SMALL:
            return read(folder, *given, **more)
        files = tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
        return copy.deepcopy(read_files(files, folder, *given, **more))

    return load, read_once


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder, so that the tiny model is made once."""
    return tmp_path_factory.mktemp("esa-home")


@pytest.fixture
def surroundings(
    cache: Path, reading_once: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ESA_MEMORY_LIMIT", "ESA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ESA_HOME", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(reading_once[0], "load_pretrained", reading_once[1])
    monkeypatch.chdir(tmp_path)


def runner(capsys: pytest.CaptureFixture[str], *before: str) -> Esa:
    """`esa` in this process, with these words before those it is called with."""

    def run(*arguments: object) -> Result:
        code = main([*before, *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Result(code, out, err)

    return run


@pytest.fixture
def esa(surroundings: None, capsys: pytest.CaptureFixture[str]) -> Esa:
    return runner(capsys)


@pytest.fixture(scope="session")
def finder(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained finder of the tiny random model."""
    from tiny_finder import tiny_finder

    folder = tmp_path_factory.mktemp("finders") / "finder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESA_HOME", str(cache))
        tiny_finder(folder)
    return folder


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


@pytest.fixture
def other(tmp_path: Path) -> Library:
    return Library(tmp_path / "other")


@pytest.fixture
def completions() -> Iterator[CompletionServer]:
    with CompletionServer(["stream"]) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def note(tmp_path: Path) -> str:
    path = tmp_path / "note.md"
    path.write_text("The gate opens at nine. " * 40, "utf-8")
    return str(path)
