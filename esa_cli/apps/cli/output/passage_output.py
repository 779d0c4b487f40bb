"""Output of passages that were found: with the question's words highlighted, file names, JSON."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from esa_cli.apps.cli.output.answer_output import asked_documents
from esa_cli.apps.cli.output.terminal import NARROW, clean, make_console, one_line
from esa_cli.documents.document import LeftOut
from esa_cli.documents.text_builder import first_names
from esa_cli.qa.answering.reply import Passage
from esa_cli.qa.books import Book, place_books
from esa_cli.qa.finding.words import matched_words
from esa_cli.qa.presets.preset import Preset

MATCH = "bold red"
"""As grep has it."""


@dataclass(frozen=True)
class FileMatch:
    """A document with passages: its name and path, the best score, and how many passages."""

    document: str
    source: str
    score: float
    passages: int


def files_of(passages: Sequence[Passage]) -> list[FileMatch]:
    """The documents of passages that are ordered best first, in their order."""
    counts = Counter(one.document for one in passages)
    best = {one.document: one for one in reversed(passages)}
    return [
        FileMatch(name, best[name].source, best[name].score, count)
        for name, count in counts.items()
    ]


@dataclass(frozen=True)
class FoundPassages:
    """The result of one `esa find`.

    Args:
        passages: best first. searched: as `BestBooks.searched`. loaded: whether the model was.
        timing: seconds.
    """

    passages: Sequence[Passage]
    books: Sequence[Book]
    left_out: Sequence[LeftOut]
    searched: int
    preset: Preset
    loaded: bool
    timing: Mapping[str, float]

    @property
    def unread(self) -> str:
        """A note on the documents that were found by their words alone where they could be read for
        finding; empty: there is none."""
        names = [book.document.name for book in self.books if not book.read]
        if not names or not self.preset.answer.has_index:
            return ""
        which, them = first_names(names), "it" if len(names) == 1 else "them"
        return f"not read, searched by words alone: {which}; --read first reads {them}"

    def in_document_order(self) -> list[Passage]:
        """The passages in the order of the documents and of their places there."""
        at = {book.document.name: number for number, book in enumerate(place_books(self.books))}
        return sorted(self.passages, key=lambda one: (at[one.document], one.start))

    def as_dict(
        self, passages: Sequence[Passage], files: Sequence[FileMatch] | None = None
    ) -> dict[str, Any]:
        """The JSON object of `esa find --json`, with `files` in place of passages if there are."""
        shown: dict[str, Any] = {"passages": [_as_json(one) for one in passages]}
        if files is not None:
            shown = {"files": [_as_json(one) for one in files]}
        documents = asked_documents(self.books)
        for one in documents:
            del one["tokens"]  # not counted where there is no tokenizer
        searched = {"searched": self.searched} if self.searched else {}
        return {
            **shown,
            "read": all(book.read for book in self.books),
            "documents": documents,
            **searched,
            "left_out": [one.as_dict() for one in self.left_out],
            "model": self.preset.model if self.loaded else None,
            "preset": self.preset.name,
            "timing": {name: round(seconds, 3) for name, seconds in self.timing.items()},
        }


def print_passages(passages: Sequence[Passage], question: str) -> None:
    """Each passage below its file and line, which are a link on a terminal."""
    from rich.text import Text

    for number, passage in enumerate(passages):
        if number:
            print()
        body = Text(clean(passage.text.strip()))
        for start, end in matched_words(body.plain, question):
            body.stylize(MATCH, start, end)
        _print_indented(_heading(passage), body)


def print_files(files: Sequence[FileMatch]) -> None:
    """The path of each document."""
    for one in files:
        print(one_line(_file(one)))


def _print_indented(heading: Any, text: Any) -> None:
    """A line, and below it a text, indented, on standard output; both of rich. On a terminal with
    their styles and links, the text wrapped; in a pipe as they are.
    """
    console = make_console(sys.stdout)
    if not console.is_terminal:
        print(heading.plain, *(f"  {line}".rstrip() for line in text.plain.split("\n")), sep="\n")
        return
    console.print(heading, soft_wrap=True)
    for line in text.wrap(console, max(console.width - 2, NARROW)):
        line.rstrip()
        console.print("  ", line, sep="", soft_wrap=True)


def _as_json(found: Passage | FileMatch) -> dict[str, Any]:
    if isinstance(found, Passage):
        return found.as_found()
    return {**asdict(found), "score": round(found.score, 3)}


def _heading(passage: Passage) -> Any:
    from rich.style import Style
    from rich.text import Text

    file = passage.source
    link = Path(os.path.abspath(file)).as_uri() if os.path.isfile(file) else None
    place = f"{one_line(_file(passage))}:{passage.line}"
    details = [] if passage.page is None else [f"page {passage.page}"]
    details += [one_line(passage.chapter)] if passage.chapter else []
    details += [f"characters {passage.start}-{passage.end}", f"score {passage.score:.1f}"]
    return Text.assemble((place, Style(bold=True, link=link)), ("  " + ", ".join(details), "dim"))


def _file(found: Passage | FileMatch) -> str:
    """The document's path; its name where it is from standard input."""
    return found.document if found.source == "-" else found.source
