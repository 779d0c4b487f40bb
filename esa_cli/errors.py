"""The errors that `esa` raises on purpose, and the exit codes of its commands.

A message says what is wrong, and its hint what to try. Any other exception is a bug.
"""

from __future__ import annotations

NOT_FOUND = 1
"""Exit code where nothing is found, as of grep, or where the user declines a removal."""
USAGE = 2
PARTIAL = 7
"""Exit code of a finished command that has an error in place of some answers or documents."""
BUG = 70
"""Exit code after an exception that is not an EsaError, as of sysexits.h."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
PIPE_CLOSED = 141
"""Exit code after writing to a closed pipe, as a shell reports it."""
NOT_BLAMED = (KeyboardInterrupt, GeneratorExit)
"""Exceptions that come from outside, whatever code of a plugin runs."""


class EsaError(Exception):
    """An error that the user can act on. `hint` may be empty."""

    exit_code = BUG

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EsaError):
    """A question, option or argument makes no sense."""

    exit_code = USAGE


class LengthError(UsageError):
    """A question and its answer exceed the model's window."""


class HistoryError(LengthError):
    """Question, answer and earlier turns exceed the model's window; fewer turns may fit."""


class DocumentError(EsaError):
    """A document cannot be read, or an output file written."""

    exit_code = 3


class LibraryError(DocumentError):
    """The library, or a document stored in it, cannot be used."""


class ForeignVersionError(LibraryError):
    """The file was written by another version of esa, and shows no damage."""


class ArchiveFileError(LibraryError):
    """An archive of `esa library copy` cannot be read."""


class UnreadableError(LibraryError):
    """The system refuses to read the file; its contents may be intact."""


class PresetError(EsaError):
    """A preset, or an override of one, is invalid."""

    exit_code = 4


class PluginError(EsaError):
    """A plugin is invalid: a selector, score, compressor, position encoding or reader."""

    exit_code = 4


class ModelError(EsaError):
    """A model is missing, broken or not supported."""

    exit_code = 5


class ReaderError(ModelError):
    """The server of another model that words answers cannot be reached, or gives none."""


class ResourceError(EsaError):
    """There is not enough memory, disk space or machines."""

    exit_code = 6


class DiskError(ResourceError):
    """There is no space on the library's disk."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; without a message the name of its type."""
    return (str(error) or type(error).__name__).splitlines()[0]
