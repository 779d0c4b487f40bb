"""Plain text and source code, as they are; Markdown too, with its headings for chapters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from esa_cli.documents.readers.encoding import decode
from esa_cli.documents.readers.reader_registry import PLAIN, Reader, register
from esa_cli.documents.readers.text_builder import ExtractedText, Mark

_TELLING = re.compile(
    r"^ {0,3}(?:(?P<fence>```+|~~~+).*|#{1,6}[ \t]+(?P<title>.*)|(?P<line>=+|-+)[ \t]*$)",
    re.MULTILINE,
)
"""A line that may be a heading, underline the one above it, or fence code."""
_NO_TITLE = re.compile(r"\s*$|\s*[-*+>|#] ?|\s*\d+[.)] | {4}|\t")
_SETTINGS_END = re.compile(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)


def plain_text(data: bytes, name: str) -> tuple[str, str]:
    """The text with \\n line endings, and its encoding. Raises DocumentError."""
    text, encoding = decode(data, name)
    return text.replace("\r\n", "\n").replace("\r", "\n"), encoding


@register(PLAIN)
class TextReader(Reader):
    what = "text"
    suffixes = (
        ".txt", ".text", ".log", ".py", ".js", ".ts", ".jsx", ".tsx", ".vue", ".php", ".jinja",
        ".css", ".xml", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".c", ".h", ".cpp",
        ".hpp", ".rs", ".go", ".java", ".kt", ".rb", ".sh", ".sql", ".tex", ".rst", ".svelte",
    )  # fmt: skip
    binary = False

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = plain_text(data, name)
        return ExtractedText(text, encoding=encoding)


@register("markdown")
class MarkdownReader(Reader):
    what = "Markdown"
    suffixes = (".md", ".markdown", ".mdown", ".mkd")
    binary = False

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = plain_text(data, name)
        marks = tuple(Mark(start, chapter=title) for start, title in headings(text))
        return ExtractedText(text, marks, encoding=encoding)


def headings(text: str) -> Iterator[tuple[int, str]]:
    """The start of every heading of a Markdown text, and its words."""
    settings = _SETTINGS_END.search(text, 4) if text.startswith("---\n") else None
    fence, after = "", settings.end() + 1 if settings else 0
    for found in _TELLING.finditer(text, after):
        if fence:
            line = found[0].strip()
            if line.startswith(fence) and not line.strip(fence[0]):
                fence, after = "", found.end() + 1
        elif found["fence"]:
            fence = found["fence"]
        elif found["line"]:
            # Of a line above it that is no text of its own, it is no underline.
            start = text.rfind("\n", after, max(after, found.start() - 1)) + 1 or after
            above = text[start : max(start, found.start() - 1)]
            if not _NO_TITLE.match(above):
                yield start, above.strip()
            after = found.end() + 1
        elif title := _without_closing(found["title"]):
            yield found.start(), title
            after = found.end() + 1


def _without_closing(title: str) -> str:
    """A heading's words without the signs # that may close it."""
    title = title.strip(" \t")
    words = title.rstrip("#")
    return words.rstrip(" \t") if words[-1:] in ("", " ", "\t") else title
