"""Fixtures: the tiny random model, and an `Esa` of it that finds by an untrained finder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from finder_encoder import new_finder, save_finder

from esa_cli.qa.api import Esa
from esa_cli.qa.presets.preset import load_preset


@pytest.fixture
def asker(loaded: Any, tmp_path: Path) -> Iterator[Esa]:
    made = new_finder(loaded.model, loaded.tokenizer, layers=1, first=0, rank=2, dim=8, seed=1)
    save_finder(made, tmp_path / "finder", "random:llama")
    settings = ["answer.from=text", f"answer.finder={tmp_path / 'finder'}"]
    with Esa(loaded, load_preset("tiny-random", settings)) as esa:
        yield esa
