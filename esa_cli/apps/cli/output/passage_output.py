"""Lays out passages for the screen: the place on one line, and below it the text, wrapped."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import make_printable_line, strip_control_chars
from esa_cli.documents.document import is_table_row
from esa_cli.documents.readers.reader_registry import BUILT_IN, choose_reader
from esa_cli.qa.answering.reply import Quotation, locate_quotations
from esa_cli.qa.finding.passage import Passage

if TYPE_CHECKING:
    from rich.text import Text

MAX_WIDTH, PIPE_WIDTH = 100, 160
"""Columns of the text on a terminal, since long lines are hard to read, and in a file or pipe."""
MAX_LINES = 8
"""Lines of a passage's text on a terminal, unless all are wanted or more are quoted."""
MARK = "bold underline"
_NOT_WRAPPED = 200
"""All line breaks have a meaning in a text that has a longer line, as it was not wrapped."""
_FULL = 0.75
"""The share of the longest line that a line must have if only the width ended it."""
_TOKEN = re.compile(r"\s+|\S+")
_CODE = re.compile(
    r"\A(?:(?!^ {0,3}(?:```|~~~)).)*^ {0,3}(?:```|~~~)$(?=\n\n|\Z)"  # the text begins with code
    r"|^ {0,3}(```|~~~)[^`\n]*$.*?(?:^ {0,3}\1[^\n]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_ITEM = re.compile(r"[-*+•#|]+\s|\(?\w{1,2}[.)]\s|[A-Z][\w-]*:\s")
"""Matches what begins a line of its own: an item of a list, or a field such as `To: Bob`."""
_MAIL_HEAD = re.compile(r"(?:(?:From|To|Cc|Date|Subject): .*\n)+")


def print_passages(
    passages: Sequence[tuple[int, Passage]], quotations: Sequence[Quotation], console: Any, *,
    has_numbers: bool = False, is_whole: bool = False,
) -> None:  # fmt: skip
    """Prints passages, each after an empty line: quotations are bold on a terminal, and »marked«
    elsewhere, with numbers if `has_numbers`. On a terminal long ones are cut unless `is_whole`."""
    from rich.text import Text

    for number, passage in passages:
        place = make_printable_line(passage.describe_place())
        style = f"cyan{make_link_style(passage.source)}"
        heading = Text(f"[{number}] {place}" if has_numbers else place, style)
        body = format_passage_text(passage, quotations, "" if console.is_terminal else "»«")
        max_lines = MAX_LINES if console.is_terminal and not is_whole else None
        console.print()
        print_wrapped_text(console, heading, 2)
        print_wrapped_text(console, body, 4, max_lines)


def make_link_style(path: str) -> str:
    """Returns the style of rich that links to a file, after a space; "" if there is no file."""
    return f" link {Path(path).absolute().as_uri()}" if os.path.exists(path) else ""


def print_wrapped_text(console: Any, text: Text, indent: int, max_lines: int | None = None) -> None:
    """Prints a text on a rich console, wrapped at words and with `indent` spaces before lines."""
    columns = max(40, shutil.get_terminal_size().columns)
    width = min(MAX_WIDTH, columns) if console.is_terminal else PIPE_WIDTH
    for line in wrap_text(text, width - indent, console, max_lines):
        console.print(" " * indent * bool(line), line, sep="", soft_wrap=True)


def wrap_text(text: Text, width: int, console: Any, max_lines: int | None = None) -> list[Text]:
    """Wraps a text at words to lines of at most `width` columns. If there are more lines than
    `max_lines`, all with a mark and the nearest lines are returned, with … where text is cut."""
    lines = [*text.wrap(console, width - 2 if max_lines else width)]
    for line in lines:
        line.rstrip()
    if max_lines is None or len(lines) <= max_lines:
        return lines
    marked = [n for n, line in enumerate(lines) if any(span.style == MARK for span in line.spans)]
    begin, end = (marked[0], marked[-1] + 1) if marked else (0, 0)
    max_lines = max(max_lines, end - begin)
    first = max(0, end - max_lines, min(begin - 2, len(lines) - max_lines))
    shown = lines[first : first + max_lines]
    if first:
        shown[0] = type(text)("… ") + shown[0]
    if first + max_lines < len(lines):
        shown[-1].append(" …")
    return shown


def format_passage_text(
    passage: Passage, quotations: Sequence[Quotation] = (), marks: str = ""
) -> Text:
    """Formats the text of a passage with quotations in bold, and between two `marks` if given.
    Lines of code and tables are kept; other texts are wrapped anew, the head of a mail as one."""
    from rich.text import Text

    words, margin = passage.text, passage.margin if passage.has_lines else 0
    out = Text(" " * (passage.indent - margin) * passage.has_lines)
    last = len(words.rstrip())
    quoted = [(a, min(b, last)) for a, b in locate_quotations(passage, quotations)]
    kept_lines = _find_meaningful_lines(passage)
    longest = max(map(len, words.splitlines()), default=0)
    is_mail = choose_reader(b"", passage.source) is BUILT_IN["mail"]
    head = _MAIL_HEAD.match(words) if is_mail else None
    for token in _TOKEN.finditer(words):
        start, end, piece = token.start(), token.end(), token[0]
        if piece.isspace() and (start == 0 or end == len(words)):
            continue
        if piece.isspace():
            keeps_lines = any(a <= start < b for a, b in kept_lines)
            piece = _choose_white_space(words, start, end, longest, keeps_lines, passage.start == 0)
            if margin and "\n" in piece:
                piece = "\n" + piece[1 + margin :]
            if head and end < head.end() and "\n" in piece:
                piece = "; "
            is_marked = any(first < start and end < last for first, last in quoted)
            out.append(piece, MARK if is_marked else None)
            continue
        edges = sorted({start, end, *(at for one in quoted for at in one if start < at < end)})
        for a, b in pairwise(edges):
            text, style = strip_control_chars(words[a:b]), None
            for first, last in quoted:
                if first <= a and b <= last:
                    text = marks[:1] * (a == first) + text + marks[1:] * (b == last)
                    style = MARK
            out.append(text, style)
    return out


def _find_meaningful_lines(passage: Passage) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of lines of code or rows of a table in a passage."""
    if choose_reader(b"", passage.source) is BUILT_IN["markdown"]:
        return [(code.start() - 1, code.end() + 1) for code in _CODE.finditer(passage.text)]
    return [(0, len(passage.text))] * passage.has_lines


def _choose_white_space(
    text: str, start: int, end: int, longest: int, keeps_lines: bool, begins_document: bool
) -> str:
    """Returns the white space to print for `text[start:end]`: a line break, unless only the width
    of the page ended the line, and for lines of code also the indentation."""
    space = text[start:end].expandtabs(4)
    if keeps_lines:
        return "\n" + space.rpartition("\n")[2] if "\n" in space else space
    if space.count("\n") != 1:
        return "\n" if "\n" in space else " "
    line_start = text.rfind("\n", 0, start) + 1
    next_word = _TOKEN.match(text, end)
    length = start - line_start + 1 + len(next_word[0] if next_word else "")
    # The first line of a later passage may be the end of a longer line.
    is_short = (begins_document or line_start > 0) and length < _FULL * longest
    ends_line = ">" in (text[line_start], text[end]) or is_table_row(text[line_start:start])
    if longest > _NOT_WRAPPED or is_short or ends_line or _ITEM.match(text, end):
        return "\n"
    return " "
