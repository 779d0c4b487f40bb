"""Inputs of a command: documents and question of its arguments, questions of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.system.progress import ALL_WORK, WorkShard
from esa_cli.system.text import has_lone_surrogate

if TYPE_CHECKING:
    from esa_cli.documents.document import GatheredDocuments, SourceFiles

Line = str | UsageError
"""A question, or why a line is not one."""


def split_arguments(
    arguments: Sequence[str], *, library: bool = False, verb: str = "ask"
) -> tuple[list[str], str]:
    """Divides arguments into documents and the question; with `library` no document need be given.
    Raises UsageError: a document or the question is missing, or the question is not UTF-8."""
    *documents, question = arguments or [""]
    wrong = ""
    if _is_file(question) or question == "-":
        wrong = f"the question is missing: {question} is a document"
    elif not (documents or library) or not question.strip():
        what = "a question" if library else "a document and a question"
        wrong = f"{what} must be given, got {question!r}"
    elif has_lone_surrogate(question):
        wrong = "the question must be UTF-8"
    if wrong:
        raise UsageError(wrong, f'for example: esa {verb} book.txt "Who is Ahab?"')
    return documents, question


def _is_file(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long for a path, as questions may be
        return False


def read_documents(
    names: Sequence[str], reporter: Reporter, shard: WorkShard = ALL_WORK
) -> GatheredDocuments:
    """Reads the documents of names, folders and patterns, or those of one shard, each text once;
    reports what is left out.

    Raises:
        UsageError: standard input has no shards. UsageError, DocumentError: as `document.gather`.
    """
    from esa_cli.documents.document import shard_of, source_files

    files = source_files(names)
    if not shard.whole:
        if "-" in names:
            raise UsageError("standard input (-) has no shards", "save it to a file, and name that")
        count, files = len(files.paths), shard_of(files, shard)
        reporter.note(f"esa: shard {shard}: {len(files.sources):,} of {count:,} files", dim=False)
    return read_files(files, reporter)


def read_files(files: SourceFiles, reporter: Reporter) -> GatheredDocuments:
    """Reads files, each text once, and reports those that are left out."""
    from esa_cli.documents.document import gather

    gathered = gather(files).without_copies()
    for left_out in gathered.left_out:
        reporter.warn(f"esa: {left_out.line}")
    return gathered


def number_lines(stream: IO[Any]) -> Iterator[tuple[int, Line]]:
    """Yields the number and text of each line of a stream that is not blank, without waiting for
    the next. A line that is not UTF-8 becomes an error, and the other lines are still read."""
    for number, line in enumerate(getattr(stream, "buffer", stream), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except AttributeError:  # a stream of text
            text = line
        except UnicodeDecodeError:
            hint = "convert the questions first, as with iconv"
            yield number, UsageError(f"line {number} must be UTF-8", hint)
            continue
        if text.strip():
            yield number, text.rstrip("\r\n")
