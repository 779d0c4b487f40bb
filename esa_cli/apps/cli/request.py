"""Division of a command line's words into documents and question, and hints of its options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from esa_cli.errors import DiskError, UsageError
from esa_cli.system.text import has_lone_surrogate

EXAMPLE = 'for example: esa ask book.txt "Who is Ahab?"'


def split(
    arguments: Sequence[str], *, library: bool = False, lines: bool = False, example: str = EXAMPLE
) -> tuple[list[str], str]:
    """Documents and question.

    Args:
        library: no document need be given. lines: the questions come on standard input.
        example: the hint.

    Raises:
        UsageError: one of them is missing, or standard input is both.
    """
    if lines:
        if "-" in arguments:
            raise UsageError(
                "standard input (-) must be a document or the questions, got both", EXAMPLE
            )
        if not arguments and not library:
            raise UsageError(
                "a document must be named, got none",
                "for example: esa ask book.txt --stdin < questions.txt",
            )
        return list(arguments), ""
    if not arguments and library:
        raise UsageError("a question must be given, got none", example)
    if not arguments:
        raise UsageError("a document and a question must be given, got neither", example)
    *documents, question = arguments
    if question == "-" or _is_file(question):
        raise UsageError(f"the question is missing: {question} is a document", example)
    if not documents and not library:
        raise UsageError(f"the document is missing, or the question behind {question!r}", example)
    if not question.strip():
        raise UsageError("the question must not be empty", example)
    return documents, question


def check_characters(question: str) -> None:
    """Raises UsageError where a question is not UTF-8."""
    if has_lone_surrogate(question):
        raise UsageError(
            "the question must be UTF-8", "set the terminal to UTF-8 and type it again"
        )


def check_method_alone(method: str | None, parts: Mapping[str, str | None]) -> None:
    """Raises UsageError where options name parts of a method beside a whole one."""
    given = [f"--{part.partition('.')[0]}" for part, value in parts.items() if value is not None]
    if method is not None and given:
        raise UsageError(
            f"--method {method} and {given[0]}: a method has parts of its own",
            "give --method, or the parts",
        )


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
