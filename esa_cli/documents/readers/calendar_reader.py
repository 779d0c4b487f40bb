"""Reads calendars (ics) and contacts (vcf): a paragraph for each entry, a line for each property.

Folded lines are joined, and days and times have ISO format."""

from __future__ import annotations

import re

from esa_cli.documents.readers.plain_text import decode_text_with_lf
from esa_cli.documents.readers.text_builder import ExtractedText

_FOLD = re.compile(r"\n[ \t]")
_PROPERTY = re.compile(r'([\w.-]+)(?:;(?:"[^"]*"|[^":])*)?:(.*)')
_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)\d\d(Z?))?")
_ESCAPE = re.compile(r"\\([\\;,nN])")
_NAMES = {"DTSTART": "Start", "DTEND": "End", "FN": "Name", "ORG": "Organisation"}


def read_calendar(data: bytes, name: str) -> ExtractedText:
    """Reads a calendar or contacts; lines that are no properties stay as they are."""
    text, encoding = decode_text_with_lf(data, name)
    lines = map(_format_property, _FOLD.sub("", text).splitlines())
    return ExtractedText("\n".join(lines).strip() + "\n", encoding=encoding)


def _format_property(line: str) -> str:
    """Returns a property as `Start: 2026-12-24 18:00`, and the bounds of an entry as no text."""
    found = _PROPERTY.fullmatch(line)
    if found is None or found[1] in ("BEGIN", "END"):
        return "" if found else line
    value = _ESCAPE.sub(lambda sign: " " if sign[1] in "nN" else sign[1], found[2])
    if time := _TIME.fullmatch(value):
        year, month, day, hour, minute, zone = time.groups("")
        value = f"{year}-{month}-{day}" + (f" {hour}:{minute}" + " UTC" * bool(zone)) * bool(hour)
    return f"{_NAMES.get(found[1], found[1].capitalize())}: {value}"
