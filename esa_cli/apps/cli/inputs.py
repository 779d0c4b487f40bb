"""Inputs of a command: documents and question of its words, files, questions from a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.system.progress import WorkShard
from esa_cli.system.text import has_lone_surrogate

if TYPE_CHECKING:
    from esa_cli.documents.document import GatheredDocuments, SourceFiles

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
    *documents, question = arguments or [""]
    wrong = ""
    if question == "-" and "-" in documents:
        wrong = "standard input (-) must be a document or questions, got both"
    elif _is_file(question) or (question == "-" and verb != "ask"):
        wrong = f"the question is missing: {question} is a document"
    elif not arguments or not (documents or library):
        what = "a question" if library else "a document and a question"
        wrong = f"{what} must be given, got {question!r}" if arguments else f"{what} must be given"
    elif not question.strip():
        wrong = "the question must not be empty"
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
