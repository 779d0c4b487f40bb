"""The errors `esa` raises on purpose, and the exit code each one ends the command with.

    EsaError                what a person can act on; everything else is a bug
    ├── UsageError      2   a question, option or argument that makes no sense
    │   └── LengthError     a question and its answer are too long for the model's window
    │       └── HistoryError    with the turns before it; perhaps not with fewer
    ├── DocumentError   3   a document that cannot be read
    ├── PresetError     4   a preset, or an override of one, that does not hold
    ├── PluginError     4   a selector, score, compressor or position encoding that does not hold
    ├── ModelError      5   a model that is missing, broken or not supported
    └── ResourceError   6   not enough memory or disk for what was asked

Ctrl-C ends with 130. Every message says what was wrong, and `hint` says what to try.
"""

from __future__ import annotations

INTERRUPTED = 130


class EsaError(Exception):
    """Something a person can act on.

    Args:
        message: what was wrong, in one sentence.
        hint: what to try next; empty when the message says it all.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EsaError):
    exit_code = 2


class LengthError(UsageError):
    """What a shorter question, or a wider window, would mend."""


class HistoryError(LengthError):
    """What fewer earlier turns would mend."""


class DocumentError(EsaError):
    exit_code = 3


class PresetError(EsaError):
    exit_code = 4


class PluginError(EsaError):
    exit_code = 4


class ModelError(EsaError):
    exit_code = 5


class ResourceError(EsaError):
    exit_code = 6


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type's name when it says nothing."""
    return (str(error) or type(error).__name__).splitlines()[0]
