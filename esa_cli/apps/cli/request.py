"""Division of a command line's words into documents and question, and hints of its options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from esa_cli.errors import DiskError, UsageError
from esa_cli.system.text import has_lone_surrogate


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
