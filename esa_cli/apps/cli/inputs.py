"""Inputs of a command: documents and question of its words, files, questions from a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import DiskError, UsageError
from esa_cli.system.text import has_lone_surrogate
from esa_cli.system.work_shard import WorkShard

if TYPE_CHECKING:
    from esa_cli.documents.document import Document, GatheredDocuments, SourceFiles
    from esa_cli.qa.api import Esa

Line = str | UsageError
"""A question, or why a line is not one."""


def split(
    arguments: Sequence[str], *, library: bool = False, verb: str = "ask"
) -> tuple[list[str], str]:
    """Documents and question; `-` as the question of `ask`: they come on standard input.

    Args:
        library: no document need be given.

    Raises:
        UsageError: one of them is missing, or not UTF-8, or standard input is both.
    """
    example = f'for example: esa {verb} book.txt "Who is Ahab?"'
    if not arguments:
        what = "a question" if library else "a document and a question"
        raise UsageError(f"{what} must be given, got none", example)
    *documents, question = arguments
    if question == "-" and "-" in documents:
        raise UsageError("standard input (-) must be a document or questions, got both", example)
    if _is_file(question) or (question == "-" and verb != "ask"):
        raise UsageError(f"the question is missing: {question} is a document", example)
    if not documents and not library:
        raise UsageError(f"got only {question!r}: name a document and a question", example)
    if not question.strip():
        raise UsageError("the question must not be empty", example)
    if has_lone_surrogate(question):
        raise UsageError(
            "the question must be UTF-8", "set the terminal to UTF-8 and type it again"
        )
    return documents, question


def _is_file(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long for a path, as questions may be
        return False


@contextmanager
def no_keep_hint(keep: bool | None) -> Iterator[None]:
    """Adds --no-keep to the hint where the library's disk has no space; `keep`: the option."""
    try:
        yield
    except DiskError as error:
        if keep is False:
            raise
        raise DiskError(error.message, f"{error.hint}; --no-keep stores nothing") from error


def check(documents: Sequence[str], *, questions_on_stdin: bool) -> None:
    """Refuses, before a model is loaded, document names that cannot work.

    Raises:
        UsageError: no document, or standard input as a document where the questions come from it.
    """
    if not documents:
        raise UsageError(
            "a document must be named, got none", "name one, for example: esa chat book.txt"
        )
    if documents.count("-") > 1:
        raise UsageError("standard input (-) must be named once, got more", "leave the others out")
    if "-" in documents and questions_on_stdin:
        raise UsageError(
            "standard input (-) must be a document or the questions, got both",
            "save the document to a file, and name that",
        )


def read(
    names: Sequence[str], reporter: Reporter, shard: WorkShard | None = None
) -> GatheredDocuments:
    """The documents that names, folders and patterns mean, each text once; reports the rest.

    Args:
        shard: reads the files of this shard only.

    Raises:
        UsageError: standard input has no shards. UsageError, DocumentError: as `document.gather`.
    """
    from esa_cli.documents.document import shard_of, source_files

    files = source_files(names)
    if shard is not None and not shard.whole:
        if "-" in names:
            raise UsageError("standard input (-) has no shards", "save it to a file, and name that")
        count, files = len(files.paths), shard_of(files, shard)
        reporter.note(f"esa: shard {shard}: {len(files.sources):,} of {count:,} files", dim=False)
    return read_files(files, reporter)


def read_files(files: SourceFiles, reporter: Reporter) -> GatheredDocuments:
    """As `read`, of files."""
    from esa_cli.documents.document import gather

    gathered = gather(files).without_copies()
    for left_out in gathered.left_out:
        reporter.warn(f"esa: {left_out.line}")
    return gathered


def ingest_or_open(asker: Esa, documents: Sequence[Document], reporter: Reporter) -> list[Any]:
    """A book for each document. Ctrl-C ends the reading: the rest is asked by its words alone,
    where answers can do without. Raises DocumentError, ResourceError."""
    books: list[Any] = []
    try:
        for document in documents:
            books.append(asker.ingest(document))
    except KeyboardInterrupt:
        if not asker.answers_unread:
            raise
        reporter.settle()
        books += [asker.open(document) for document in documents[len(books) :]]
        reporter.warn("esa: stopped reading; what has not been read is found by its words alone")
    return books


def numbered_lines(stream: IO[Any]) -> Iterator[tuple[int, Line]]:
    """Number and text of every line that is not blank, without waiting for the next; an error in
    place of a text that is not UTF-8, so that the lines after it are still asked."""
    for number, line in enumerate(getattr(stream, "buffer", stream), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except AttributeError:
            text = line
        except UnicodeDecodeError:
            hint = "convert the questions first, as with iconv"
            yield number, UsageError(f"line {number} must be UTF-8", hint)
            continue
        if text.strip():
            yield number, text.rstrip("\r\n")
