"""Reads the inputs of a command: its documents, its question, and the lines of standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import GatheredDocuments, gather_documents, select_files_of_shard
from esa_cli.documents.sources import InputFiles, find_files
from esa_cli.errors import UsageError
from esa_cli.system.progress import ALL_WORK, WorkShard
from esa_cli.system.text import has_lone_surrogate

SAVE_INPUT = "save the text of standard input to a file"
Line = str | UsageError
"""A line of standard input, or the error that makes the line unusable."""


def split_off_question(
    arguments: Sequence[str] | None, command_name: str, *, documents_optional: bool = False
) -> tuple[list[str], str]:
    """Splits arguments into documents and the question, which comes last, or anywhere if it alone
    is no document. Raises UsageError: one of them is missing, or the question has no quotes."""
    *documents, question = arguments or [""]
    others = [one for one in documents if not _is_document(one) and not _looks_like_file(one)]
    swapped = " " in (others or [""])[0] and _looks_like_file(question) and not documents_optional
    if len(others) == 1 and (_is_document(question) or swapped):
        documents = [one for one in [*documents, question] if one != others[0]]
        question = others[0]
    example, wrong = 'book.txt "Who is Ahab?"', ""
    if documents_optional and any(" " in one for one in others) and " " not in question:
        wrong = f"there is no document {question}"
        raise UsageError(wrong, "--library has no value; ESA_LIBRARY=FOLDER names another library")
    if _is_document(question):
        wrong = f"the question is missing after the document {question}"
    elif (
        others
        and others == documents[-len(others) :]
        and (documents_optional or len(others) < len(documents))
    ):
        wrong = f"there is no document {others[0]}; a question of several words needs quotes"
        kept = ["--library"] * documents_optional + documents[: -len(others)]
        example = " ".join([*kept, f'"{" ".join([*others, question])}"'])
    elif not (documents or documents_optional) or not question.strip():
        what = "a question" if documents_optional else "a document and a question"
        wrong = f"{what} must be given, got {question!r}"
    elif has_lone_surrogate(question):
        wrong = "the question must be UTF-8"
    if wrong:
        raise UsageError(wrong, f"for example: esa {command_name} {example}")
    return documents, question


def asks_whole_library(arguments: Sequence[str] | None) -> bool:
    """Whether arguments are only a question, and neither a document nor the name of a file."""
    return arguments is not None and len(arguments) == 1 and not _looks_like_file(arguments[0])


def _is_document(argument: str) -> bool:
    """Whether an argument is standard input, or the path of a file or folder."""
    return argument == "-" or os.path.exists(argument)


def _looks_like_file(argument: str) -> bool:
    """Whether an argument that is no path was meant as one, or is a pattern."""
    return not any(map(str.isspace, argument)) and any(sign in argument for sign in "./\\*")


def read_documents(
    document_names: Sequence[str], reporter: Reporter, shard: WorkShard = ALL_WORK
) -> GatheredDocuments:
    """Reads the documents, or a shard of them, that names, folders and patterns stand for. Raises
    DocumentError. UsageError: there are no documents, or standard input cannot be divided."""
    files = find_files(document_names)
    if shard.count > 1:
        if "-" in document_names:
            raise UsageError("--shard cannot divide standard input (-)", SAVE_INPUT)
        count, files = len(files.paths), select_files_of_shard(files, shard)
        share = f"{len(files.sources):,} of {count:,} files"
        reporter.show_note(f"esa: shard {shard}: {share}", dim=False)
    return read_input_files(files, reporter)


def read_input_files(files: InputFiles, reporter: Reporter) -> GatheredDocuments:
    """Reads files as documents, each text once, and warns of files that are left out."""
    gathered = gather_documents(files).remove_repeated_texts()
    for left_out in gathered.left_out:
        has_name = left_out.files is None or "(" in left_out.why  # someone may miss the file
        say = reporter.warn if has_name else reporter.show_note
        say(f"esa: {left_out.message}")
    return gathered


def read_lines_of_standard_input() -> Iterator[Line]:
    """Yields lines that are not blank as soon as they are complete; errors if not in UTF-8."""
    for number, line in enumerate(getattr(sys.stdin, "buffer", sys.stdin), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except AttributeError:  # a stream of text
            text = line
        except UnicodeDecodeError:
            hint = "convert the questions to UTF-8, for example with iconv"
            yield UsageError(f"line {number} of standard input must be UTF-8", hint)
            continue
        if text.strip():
            yield text.rstrip("\r\n")
