"""Keeps transformers quiet, and quick to import, while esa loads a model.

It changes process-wide settings (log level, progress bars, warnings, the garbage collector) only
inside its context managers, and does not know of other threads that rely on them meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage collection inside. Importing torch and transformers makes so many objects that
    collecting during it costs a quarter of the time and frees nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Only errors from transformers and no progress bars inside; settings are restored after."""
    # Through Any: these functions of transformers carry no annotations.
    logging: Any = importlib.import_module("transformers.utils.logging")

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def stderr_swallowed() -> contextlib.AbstractContextManager[object]:
    """For the one bar that transformers draws whatever its settings are: reading a GGUF file."""
    return contextlib.redirect_stderr(io.StringIO())
