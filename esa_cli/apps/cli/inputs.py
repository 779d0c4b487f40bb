"""Reads the inputs of a command: its documents, its question, and the lines of standard input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.system.progress import ALL_WORK, WorkShard
from esa_cli.system.text import has_lone_surrogate

if TYPE_CHECKING:
    from esa_cli.documents.document import GatheredDocuments, InputFiles

SAVE_INPUT = "save the text of standard input to a file"
Line = str | UsageError
"""A line of standard input, or the error that makes the line unusable."""


def split_off_question(
    arguments: Sequence[str] | None, command_name: str, *, documents_optional: bool = False
) -> tuple[list[str], str]:
    """Splits arguments into documents and the question, which comes last. Raises UsageError: the
    question is missing, or, unless `documents_optional`, the document."""
    *documents, question = arguments or [""]
    wrong = ""
    if _is_existing_path(question) or question == "-":
        wrong = f"the question is missing after the document {question}"
    elif not (documents or documents_optional) or not question.strip():
        what = "a question" if documents_optional else "a document and a question"
        wrong = f"{what} must be given, got {question!r}"
    elif has_lone_surrogate(question):
        wrong = "the question must be UTF-8"
    if wrong:
        raise UsageError(wrong, f'for example: esa {command_name} book.txt "Who is Ahab?"')
    return documents, question


def _is_existing_path(argument: str) -> bool:
    try:
        return bool(argument) and Path(argument).exists()
    except (OSError, ValueError):  # a question may be too long for a path
        return False


def read_documents(
    document_names: Sequence[str], reporter: Reporter, shard: WorkShard = ALL_WORK
) -> GatheredDocuments:
    """Reads the documents that file names, folders and patterns stand for, and warns of files that
    are left out. With a `shard` only this part of the documents is read.

    Raises:
        UsageError: standard input cannot be divided into shards, or there are no documents.
        DocumentError: a named document cannot be read."""
    from esa_cli.documents.document import find_files, select_files_of_shard

    files = find_files(document_names)
    if not shard.is_whole_list:
        if "-" in document_names:
            raise UsageError("--shard cannot divide standard input (-)", SAVE_INPUT)
        count, files = len(files.paths), select_files_of_shard(files, shard)
        share = f"{len(files.sources):,} of {count:,} files"
        reporter.show_note(f"esa: shard {shard}: {share}", dim=False)
    return read_input_files(files, reporter)


def read_input_files(files: InputFiles, reporter: Reporter) -> GatheredDocuments:
    """Reads files as documents, each text once, and warns of files that are left out."""
    from esa_cli.documents.document import gather_documents

    gathered = gather_documents(files).remove_repeated_texts()
    for left_out in gathered.left_out:
        has_name = left_out.files is None or "(" in left_out.why  # someone may miss the file
        say = reporter.warn if has_name else reporter.show_note
        say(f"esa: {left_out.message}")
    return gathered


def read_numbered_lines(stream: IO[Any]) -> Iterator[tuple[int, Line]]:
    """Yields the number and text of each line that is not blank, as soon as the line is complete. A
    line that is not UTF-8 gives an error instead of a text."""
    for number, line in enumerate(getattr(stream, "buffer", stream), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except AttributeError:  # a stream of text
            text = line
        except UnicodeDecodeError:
            hint = "convert the questions to UTF-8, for example with iconv"
            yield number, UsageError(f"line {number} of standard input must be UTF-8", hint)
            continue
        if text.strip():
            yield number, text.rstrip("\r\n")
