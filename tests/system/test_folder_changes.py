"""Waiting for changes where the system gives no notices."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from esa_cli.system import files

watchfiles = pytest.importorskip("watchfiles")


@pytest.mark.parametrize("error", [OSError(28, "OS file watch limit reached"), RuntimeError("x")])
@pytest.mark.parametrize("before", [0, 2])
def test_without_notices_it_looks_again(
    error: Exception, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(*folders: str, **options: Any) -> Iterator[None]:
        yield from [None] * before
        raise error

    slept: list[float] = []
    monkeypatch.setattr(watchfiles, "watch", watch)
    monkeypatch.setattr(files.time, "sleep", slept.append)  # type: ignore[attr-defined]
    assert len(list(islice(files.folder_changes("."), before + 3))) == before + 3
    assert slept == [files.POLL_S] * 3
