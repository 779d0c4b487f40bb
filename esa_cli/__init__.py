"""esa: answers questions about documents many times longer than a language model's context.

Importing this package imports neither torch nor transformers. The names below are looked up when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.attention.method import Method
    from esa_cli.attention.window import Window
    from esa_cli.documents.document import Document, read_document
    from esa_cli.models.attachment.attach import attach
    from esa_cli.qa.answering.reply import Evidence, Reply, Turn
    from esa_cli.qa.answering.session import Answer, Session
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book
    from esa_cli.qa.collecting.collection import CollectedPlace, Collection
    from esa_cli.qa.finding.passage_finder import Passage
    from esa_cli.qa.presets.preset import load as load_preset
    from esa_cli.storage.library import Library

__all__ = [
    "Answer",
    "Book",
    "CollectedPlace",
    "Collection",
    "Document",
    "Esa",
    "Evidence",
    "Library",
    "Method",
    "Passage",
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
    "Answer": ("esa_cli.qa.answering.session", "Answer"),
    "Book": ("esa_cli.qa.books", "Book"),
    "CollectedPlace": ("esa_cli.qa.collecting.collection", "CollectedPlace"),
    "Collection": ("esa_cli.qa.collecting.collection", "Collection"),
    "Document": ("esa_cli.documents.document", "Document"),
    "Esa": ("esa_cli.qa.api", "Esa"),
    "Evidence": ("esa_cli.qa.answering.reply", "Evidence"),
    "Library": ("esa_cli.storage.library", "Library"),
    "Method": ("esa_cli.attention.method", "Method"),
    "Passage": ("esa_cli.qa.finding.passage_finder", "Passage"),
    "Reply": ("esa_cli.qa.answering.reply", "Reply"),
    "Session": ("esa_cli.qa.answering.session", "Session"),
    "Turn": ("esa_cli.qa.answering.reply", "Turn"),
    "Window": ("esa_cli.attention.window", "Window"),
    "attach": ("esa_cli.models.attachment.attach", "attach"),
    "load_preset": ("esa_cli.qa.presets.preset", "load"),
    "read_document": ("esa_cli.documents.document", "read_document"),
}
"""Public name -> the module it lives in, and its name there."""

if not TYPE_CHECKING:  # or a type checker would take any misspelled name for one of these

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _PLACES[name]
        value = getattr(import_module(module), attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
