"""Context managers that make transformers silent, and quicker to import and load.

They change process-wide settings (log level, progress bars, warnings, the garbage collector) while
they are open: other threads see the change too.
"""

from __future__ import annotations

import gc
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
def quiet_transformers() -> Iterator[None]:
    """Lets transformers log errors only and show no progress bar; restores both settings."""
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
