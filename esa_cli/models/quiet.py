"""Keeps transformers quiet, and quick to import, while esa loads a model.

It changes process-wide settings (log level, progress bars, warnings, the garbage collector) only
inside its context managers, and does not know of other threads that rely on them meanwhile.
"""

from __future__ import annotations

import functools
import gc
import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from esa_cli.models.progress import Progress


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


@contextmanager
def gguf_tensors_counted(progress: Progress) -> Iterator[None]:
    """The tensors that transformers reads from a GGUF file inside are reported as the stage
    "convert", in place of the bar transformers draws whatever its settings are."""
    module: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    gguf: Any = importlib.import_module("gguf")
    reader = gguf.GGUFReader
    bar = getattr(module, "tqdm", None)

    def counted(items: Sequence[Any], **_: Any) -> Iterator[Any]:
        for done, item in enumerate(items):
            progress("convert", done, len(items))
            yield item

    module.tqdm = counted
    # transformers parses the whole head, seconds each time, for the configuration, for the class
    # and for the weights.
    gguf.GGUFReader = functools.lru_cache(maxsize=1)(reader)
    try:
        yield
    finally:
        module.tqdm = bar
        gguf.GGUFReader = reader
