"""transformers is silent within blocks, and says as much as before behind the last of them."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from esa_cli.models.files.quiet_transformers import quiet_transformers


@pytest.fixture
def logging() -> Any:
    found: Any = importlib.import_module("transformers.utils.logging")
    found.set_verbosity_warning()
    found.enable_progress_bar()
    return found


def is_silent(logging: Any) -> bool:
    levels = (logging.get_verbosity() == logging.ERROR, not logging.is_progress_bar_enabled())
    assert len(set(levels)) == 1
    return levels[0]


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_blocks_of_several_threads(logging: Any, first_to_end: int) -> None:
    filters = list(warnings.filters)
    blocks = [quiet_transformers(), quiet_transformers()]

    def in_thread(step: Callable[[], object]) -> None:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()

    for block in blocks:
        in_thread(block.__enter__)
    in_thread(partial(blocks.pop(first_to_end).__exit__, None, None, None))
    assert is_silent(logging)
    with warnings.catch_warnings(record=True) as shown:
        warnings.warn("no", stacklevel=1)
    assert not shown
    in_thread(partial(blocks.pop().__exit__, None, None, None))
    assert not is_silent(logging)
    assert list(warnings.filters) == filters
