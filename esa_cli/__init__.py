"""esa: answers questions about documents many times longer than a language model's context.

Importing `esa_cli` does not import torch or transformers; each name is imported when first used."""

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
    from esa_cli.qa.finding.passage import Passage
    from esa_cli.qa.finding.passage_finder import Book
    from esa_cli.qa.presets.preset import load_preset
    from esa_cli.storage.library import Library

__all__ = [
    "Book", "CollectedPlace", "Collection", "Document", "Esa", "Library", "Method", "Passage",
    "Reply", "Session", "Turn", "Window", "__version__", "attach", "load_preset", "read_document",
]  # fmt: skip
_MODULES = {
    "attention.method": ("Method",),
    "attention.window": ("Window",),
    "documents.document": ("Document", "read_document"),
    "models.attachment.attach": ("attach",),
    "qa.answering.reply": ("Reply", "Turn"),
    "qa.answering.session": ("Session",),
    "qa.api": ("Esa",),
    "qa.collecting": ("CollectedPlace", "Collection"),
    "qa.finding.passage_finder": ("Book",),
    "qa.finding.passage": ("Passage",),
    "qa.presets.preset": ("load_preset",),
    "storage.library": ("Library",),
}
"""The public names of each module."""

if not TYPE_CHECKING:  # or a type checker would take any misspelled name for one of these

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f"esa_cli.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
