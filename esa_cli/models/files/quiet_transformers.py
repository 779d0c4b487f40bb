"""Makes transformers log errors only, and show neither progress bars nor warnings.

Log levels and warning filters belong to the whole process, so all threads are silenced together."""

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
_open_blocks = 0
_silent = False
_undo = ExitStack()


@contextmanager
def quiet_transformers(import_if_needed: bool = True) -> Iterator[None]:
    """Silences transformers and ignores warnings until the last `with` block of all threads ends.
    Unless `import_if_needed`, transformers is silenced only if it is already imported."""
    global _open_blocks, _silent
    with _lock:
        if not _open_blocks:
            _undo.enter_context(warnings.catch_warnings(action="ignore"))
        _open_blocks += 1
        if not _silent and (import_if_needed or "transformers" in sys.modules):
            _silence_transformers()
            _silent = True
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if not _open_blocks:
                _undo.close()
                _silent = False


def _silence_transformers() -> None:
    importlib.import_module("torch")  # which sets levels of its own
    # torchao, where it is installed, reports each GPU kernel that it could not load.
    for name in ("torchao", "torch.utils._pytree", "bitsandbytes"):
        logger = logging.getLogger(name)
        _undo.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
    settings: Any = importlib.import_module("transformers.utils.logging")  # without annotations
    _undo.callback(settings.set_verbosity, settings.get_verbosity())
    if settings.is_progress_bar_enabled():
        _undo.callback(settings.enable_progress_bar)
    settings.set_verbosity_error()
    settings.disable_progress_bar()
