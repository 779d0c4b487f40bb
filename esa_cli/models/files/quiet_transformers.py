"""Makes transformers silent: errors are logged, and no progress bar or warning is shown.

These are settings of the process: other threads see the change, too.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_lock = threading.RLock()
_open = 0
"""Blocks of `quiet_transformers` that have not ended."""
_silent = False
_undo = ExitStack()
"""Restores what the blocks have changed: filters of each block would be restored out of order."""


@contextmanager
def quiet_transformers(imported: bool = True) -> Iterator[None]:
    """Lets transformers log errors only and show no progress bar, and ignores warnings; the last of
    such blocks to end, in any thread, restores what was there before the first.

    Args:
        imported: transformers is needed, and imported if it was not. Else it is made silent by the
            next block, within this one, that needs it.
    """
    global _open, _silent
    with _lock:
        if not _open:
            _undo.enter_context(warnings.catch_warnings(action="ignore"))
        _open += 1
        if not _silent and (imported or "transformers" in sys.modules):
            _silence()
            _silent = True
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                _undo.close()
                _silent = False


def _silence() -> None:
    # torchao, where it is installed, reports each GPU kernel that it could not load.
    importlib.import_module("torch")  # which sets levels of its own
    for name in ("torchao", "torch.utils._pytree", "bitsandbytes"):
        logger = logging.getLogger(name)
        _undo.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
    # Through Any: these functions of transformers carry no annotations.
    settings: Any = importlib.import_module("transformers.utils.logging")
    _undo.callback(settings.set_verbosity, settings.get_verbosity())
    if settings.is_progress_bar_enabled():
        _undo.callback(settings.enable_progress_bar)
    settings.set_verbosity_error()
    settings.disable_progress_bar()
