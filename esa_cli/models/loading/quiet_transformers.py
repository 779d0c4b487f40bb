"""Context managers that make transformers silent, and quicker to import and load.

They change process-wide settings (log level, progress bars, warnings, the garbage collector) while
they are open: other threads see the change too.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pauses garbage collection, which takes a quarter of the time of importing torch and
    transformers, and frees nothing of theirs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def quiet_transformers(imported: bool = True) -> Iterator[None]:
    """Lets transformers log errors only and show no progress bar, and ignores warnings; the last of
    such blocks to end, in any thread, restores what was there before the first.

    Args:
        imported: transformers is needed, and imported if it was not. Else it is made silent by the
            next block, within this one, that needs it.
    """
    global _open, _restore
    with _lock:
        if not _open:
            _no_warnings.enter_context(warnings.catch_warnings(action="ignore"))
        _open += 1
    try:
        with _lock:
            if _restore is None and (imported or "transformers" in sys.modules):
                _restore = _silence()
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                _no_warnings.close()
                if _restore is not None:
                    _restore()
                    _restore = None


_lock = threading.RLock()
_open = 0
"""Blocks of `quiet_transformers` that have not ended."""
_no_warnings = ExitStack()
"""Restores the filters of warnings; filters of each block would be restored out of order."""
_restore: Callable[[], None] | None = None
"""Undoes what the first of them that found transformers imported has set."""


def _silence() -> Callable[[], None]:
    # Through Any: these functions of transformers carry no annotations.
    settings: Any = importlib.import_module("transformers.utils.logging")
    verbosity, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()

    def restore() -> None:
        settings.set_verbosity(verbosity)
        if bars:
            settings.enable_progress_bar()

    return restore


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Context in which torchao, which transformers imports where it is installed, does not report
    the GPU kernels that it could not load."""
    importlib.import_module("torch")  # which sets its own levels
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)
