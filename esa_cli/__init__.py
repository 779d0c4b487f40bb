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
    from esa_cli.qa.answering.reply import Reply, Turn
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.api import Esa
    from esa_cli.qa.collecting import CollectedPlace, Collection
    from esa_cli.qa.finding.books import Book
    from esa_cli.qa.finding.passage import Passage
    from esa_cli.qa.presets.preset import load as load_preset
    from esa_cli.storage.library import Library

_PLACES = {
    "Book": "qa.finding.books",
    "CollectedPlace": "qa.collecting",
    "Collection": "qa.collecting",
    "Document": "documents.document",
    "Esa": "qa.api",
    "Library": "storage.library",
    "Method": "attention.method",
    "Passage": "qa.finding.passage",
    "Reply": "qa.answering.reply",
    "Session": "qa.answering.session",
    "Turn": "qa.answering.reply",
    "Window": "attention.window",
    "attach": "models.attachment.attach",
    "load_preset": "qa.presets.preset",
    "read_document": "documents.document",
}
"""Public name -> the module that has it."""
__all__ = [
    "Book",
    "CollectedPlace",
    "Collection",
    "Document",
    "Esa",
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

if not TYPE_CHECKING:  # or a type checker would take any misspelled name for one of these

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        attribute = "load" if name == "load_preset" else name
        value = getattr(import_module(f"esa_cli.{_PLACES[name]}"), attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
