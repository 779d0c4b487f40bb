"""The limits that all readers keep, so that a stranger's small file cannot take hours or gigabytes.

Each can be raised by an environment variable, which the message of a refusal names. Bytes, elements
and attributes are counted before a library sees them. Seconds and memory bound the process that
reads what is at risk; see `reading_process`.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from esa_cli.documents.text_builder import label
from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.machine import parse_size

UNPACKED, PART, MEMORY = "ESA_READ_BYTES", "ESA_READ_PART", "ESA_READ_MEMORY"
ELEMENTS, ATTRIBUTES, SECONDS = "ESA_READ_ELEMENTS", "ESA_READ_ATTRIBUTES", "ESA_READ_SECONDS"
NAMES = (UNPACKED, PART, ELEMENTS, ATTRIBUTES, SECONDS, MEMORY)


MOST = 1 << 53
"""The highest that a limit can be."""
_TAG = re.compile(r"<[A-Za-z][^<>]*+")


class ReadingLimits(NamedTuple):
    """Limits of reading one document.

    Args:
        unpacked: bytes that a packed document may unpack to.
        part: bytes of one XML or HTML part of it, or of a PDF's content stream; the tree of a part
            takes 8 to 40 times its size.
        elements: XML or HTML elements of a part. attributes: those of one HTML tag, for which the
            parser takes time quadratic in them.
        seconds, memory: of the process that reads it; seconds of processor time.
    """

    unpacked: int = 1 << 30
    part: int = 1 << 26
    elements: int = 5_000_000
    attributes: int = 10_000
    seconds: int = 120
    memory: int = 1 << 32


def reading_limits() -> ReadingLimits:
    """The limits now. Raises UsageError: an environment variable is no size or number."""
    given = (_number(name, usual) for name, usual in zip(NAMES, ReadingLimits(), strict=True))
    return ReadingLimits(*given)


def _number(name: str, usual: int) -> int:
    text = os.environ.get(name, "").strip()
    number = parse_size(text, name) if text else usual
    if not 1 <= number <= MOST:
        raise UsageError(
            f"{name} must be from 1 to {MOST:,}, got {text}", "leave it out for the default"
        )
    return number


def limit_error(document: str, what: str, limit: str, variable: str) -> DocumentError:
    """The error for a document that exceeds a limit.

    Args:
        what: what is limited, as "its part a.xml". limit: as "unpack to at most 64 MiB".
        variable: the environment variable that raises it.
    """
    subject = f"{label(document)}: {what}" if what else label(document)
    return DocumentError(
        f"{subject} must {limit}, got more",
        f"split it and ask about the parts, or, if you trust it, raise the limit: set {variable}",
    )


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.4g} MiB"


def check_elements(found: int, document: str, part: str = "") -> None:
    """Raises DocumentError when a part has more elements than it may."""
    most = reading_limits().elements
    if found > most:
        what = f"its part {part}" if part else ""
        raise limit_error(document, what, f"have at most {most:,} elements", ELEMENTS)


def check_html(text: str, document: str) -> None:
    """Raises DocumentError when a page has more elements than it may, or a tag more attributes;
    where `<` and `>` in their values hide these, `reading_process` bounds the time."""
    check_elements(text.count("<") - text.count("</"), document)
    most = reading_limits().attributes
    for found in _TAG.finditer(text):
        if found.end() - found.start() > 2 * most and len(found[0].split(None, most + 1)) > most:
            limit = f"have at most {most:,} attributes"
            raise limit_error(document, "a tag", limit, ATTRIBUTES)
