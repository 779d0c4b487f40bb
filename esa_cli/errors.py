"""The errors that `esa` raises on purpose, and the exit codes of its commands.

The message of an error says what is wrong, its hint what to try. Any other exception is a bug."""

from __future__ import annotations

NOT_FOUND = 1
"""The exit code where nothing is found, as for grep, or where the user declines a removal."""
USAGE = 2
PARTIAL = 7
"""The exit code of a finished command that failed for some of the questions or documents."""
BUG = 70
"""The exit code after an exception that is not an EsaError, as in sysexits.h."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
PIPE_CLOSED = 141
"""Exit code after writing to a closed pipe, as a shell reports it."""
NOT_BLAMED = (KeyboardInterrupt, GeneratorExit)
"""Exceptions that are never blamed on a plugin, as they come from outside of its code."""


class EsaError(Exception):
    """An error whose cause the user can remove; the hint says how, or is empty."""

    exit_code = BUG

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EsaError):
    """A question, an option or an argument of a command is invalid."""

    exit_code = USAGE


class LengthError(UsageError):
    """A question with its answer is longer than the model's context window."""


class HistoryError(LengthError):
    """A question with its history is longer than the model's context window."""


class DocumentError(EsaError):
    """A document cannot be read, or an output file cannot be written."""

    exit_code = 3


class LibraryError(DocumentError):
    """The library, or a document stored in the library, cannot be used."""


class LibraryFileVersionError(LibraryError):
    """A file of the library was written by another version of esa, and is not damaged."""


class ArchiveFileError(LibraryError):
    """An archive file of `esa library copy` cannot be read."""


class UnreadableError(LibraryError):
    """The operating system cannot read a file of the library, although it may be undamaged."""


class PresetError(EsaError):
    """A preset, or a changed setting of a preset, is invalid."""

    exit_code = 4


class PluginError(EsaError):
    """A selector, score, compressor, position encoding or reader of a plugin is invalid."""

    exit_code = 4


class ModelError(EsaError):
    """A model is missing, damaged or not supported."""

    exit_code = 5


class ReaderError(ModelError):
    """The server of the model that writes answers cannot be reached, or returns no answer."""


class ResourceError(EsaError):
    """Memory or disk space is too small, or a cluster of machines has too few GPUs."""

    exit_code = 6


class DiskError(ResourceError):
    """The disk that holds the library is full."""


def get_first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the error's type if the message is empty."""
    return (str(error) or type(error).__name__).splitlines()[0]
