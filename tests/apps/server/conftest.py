"""A server with an asker of words and three folders, one of which requests may read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_asker import FakeAsker
from live_server import ENDING, LiveServer, Start


@pytest.fixture(scope="module", autouse=True)
def every_server_ends() -> Iterator[None]:
    yield
    for thread in ENDING:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def asker() -> FakeAsker:
    return FakeAsker()


@pytest.fixture
def start(asker: FakeAsker, tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "open/sub").mkdir(parents=True)
    (tmp_path / "open/a.txt").write_text("text a", "utf-8")
    (tmp_path / "open/sub/b.txt").write_text("text b", "utf-8")
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    (tmp_path / "open-not").mkdir()
    (tmp_path / "open-not/c.txt").write_text("secret", "utf-8")
    running: list[LiveServer] = []

    def start(**more: Any) -> LiveServer:
        running.append(LiveServer(asker, tmp_path, **more))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture
def live(start: Start) -> LiveServer:
    return start()


@pytest.fixture
def slow(asker: FakeAsker) -> FakeAsker:
    """Reads a document for ten seconds, if nobody ends it."""
    asker.words, asker.delay = 500, 0.02
    return asker
