"""Plain text and source code, as they are; Markdown too, with its headings for chapters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from esa_cli.documents.encoding import decode
from esa_cli.documents.readers.reader_registry import PLAIN, register
from esa_cli.documents.text_builder import ExtractedText, Mark, label, path_in_hint

_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_NO_TITLE = re.compile(r"\s*$|\s*[-*+>|#] ?|\s*\d+[.)] | {4}|\t")


def plain_text(data: bytes, name: str) -> tuple[str, str]:
    """The text with \\n line endings, and its encoding. Raises DocumentError."""
    text, encoding = decode(data, label(name), path_in_hint(name))
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text, encoding


@register(PLAIN)
class TextReader:
    """Plain text and source code, for which there is no other reader."""

    what: ClassVar[str] = "text"
    suffixes: ClassVar[tuple[str, ...]] = (
        ".txt", ".text", ".log", ".py", ".js", ".ts", ".jsx", ".tsx", ".vue", ".php", ".jinja",
        ".css", ".xml", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".c", ".h", ".cpp",
        ".hpp", ".rs", ".go", ".java", ".kt", ".rb", ".sh", ".sql", ".tex", ".rst", ".svelte",
    )  # fmt: skip
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        return False

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = plain_text(data, name)
        return ExtractedText(text, encoding=encoding)


@register("markdown")
class MarkdownReader:
    """Markdown as it is; its headings are chapters."""

    what: ClassVar[str] = "Markdown"
    suffixes: ClassVar[tuple[str, ...]] = (".md", ".markdown", ".mdown", ".mkd")
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        return False

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = plain_text(data, name)
        marks = tuple(Mark(start, chapter=title) for start, title in headings(text))
        return ExtractedText(text, marks, encoding=encoding)


def headings(text: str) -> Iterator[tuple[int, str]]:
    """The start of every heading of a Markdown text, and its words."""
    start, fence, before = 0, "", (0, "")
    front = text.startswith("---\n")  # settings between two such lines are no headings
    for number, line in enumerate(text.split("\n")):
        opened = _FENCE.match(line)
        if front:
            front = number == 0 or line.rstrip() not in ("---", "...")
        elif fence:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif opened:
            fence = opened[1]
        elif (found := _HEADING.fullmatch(line)) and found[1]:
            yield start, found[1]
        elif before[1] and _UNDERLINE.fullmatch(line):
            yield before[0], before[1].strip()
        inside = front or fence or line.startswith("---") or _NO_TITLE.match(line)
        before = (start, "" if inside else line)
        start += len(line) + 1
