"""esa: answers questions about documents many times longer than a language model's context.

Importing this package imports neither torch nor transformers. The names below are looked up when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import Esa
    from .book import Book
    from .document import Document, read_document
    from .library import Library
    from .method import Method, Window
    from .preset import load as load_preset
    from .reply import Evidence, Reply, Turn
    from .seam import attach
    from .session import Answer, Session

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "Book",
    "Document",
    "Esa",
    "Evidence",
    "Library",
    "Method",
    "Reply",
    "Session",
    "Turn",
    "Window",
    "__version__",
    "attach",
    "load_preset",
    "read_document",
]

_PLACES = {
    "Answer": ("session", "Answer"),
    "Book": ("book", "Book"),
    "Document": ("document", "Document"),
    "Esa": ("api", "Esa"),
    "Evidence": ("reply", "Evidence"),
    "Library": ("library", "Library"),
    "Method": ("method", "Method"),
    "Reply": ("reply", "Reply"),
    "Session": ("session", "Session"),
    "Turn": ("reply", "Turn"),
    "Window": ("method", "Window"),
    "attach": ("seam", "attach"),
    "load_preset": ("preset", "load"),
    "read_document": ("document", "read_document"),
}
"""Public name -> the module it lives in, and its name there."""

if not TYPE_CHECKING:  # or a type checker would take any misspelled name for one of these

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _PLACES[name]
        value = getattr(import_module(f".{module}", __name__), attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
