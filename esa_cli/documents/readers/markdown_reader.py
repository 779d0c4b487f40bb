"""Reads Markdown, and what notes of Obsidian and Zotero add to it: front matter and wiki links."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import partial

from esa_cli.documents.readers.heading_cells import format_rows
from esa_cli.documents.readers.plain_text import decode_text_with_lf
from esa_cli.documents.readers.text_builder import ExtractedText, Mark

_HEADING_LINE = re.compile(
    r"^ {0,3}(?:(?P<fence>```+(?=[^`\n]*$)|~~~+).*"
    r"|(?P<hashes>#{1,6})[ \t]+(?P<title>.*)|(?P<line>=+|-+)[ \t]*$)",
    re.MULTILINE,
)
"""A line that may be a heading, underline the one above it, or fence code."""
_NO_TITLE = re.compile(r"\s*$|\s*[-*+>|#] ?|\s*\d+[.)] | {4}|\t")
_FRONT_MATTER = re.compile(r"(?ms)(---|\+\+\+)\n(.{0,65536}?)^(?:\1|\.\.\.)[ \t]*(?:\n|\Z)")
_LINKS = ("url", "link", "links", "uri", "source", "zotero")
_LINK = re.compile(r"(?:https?|zotero)://\S+")
_TAGS = (
    "a|b|br|center|code|details|div|em|figcaption|figure|font|h[1-6]|hr|i|iframe|img|kbd|li|ol|p"
    "|picture|pre|small|source|span|strong|sub|summary|sup|table|tbody|td|th|thead|tr|u|ul|video"
)
_MARKUP = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,}|\A\+{3})(?s:.*?)(?:^ {0,3}(?P=fence)|\Z)|`[^`\n]*`"
    r"|(?P<embeds>!?)\[\[(?P<note>[^\[\]|\n]*)(?:\|(?P<alias>[^\[\]|\n]*))?\]\](?!\()"
    r"|!?\[(?P<linked>(?:[^\[\]\n]|\[[^\[\]\n]*\])*)\]\((?:[^()\n]|\([^()\n]*\))*\)"
    r"|\*\*(?P<strong>[^\s*](?:[^*\n]*[^\s*])?)\*\*"
    r"|(?<![\w*\\])\*(?P<italic>[^\s*.,;)](?:[^*\n]*[^\s*])?)\*(?![\w*])"
    rf"|(?P<tag><!--(?s:.{{0,2000}}?)-->|</?(?:{_TAGS})(?:\s[^<>]*)?/?>)",
    re.MULTILINE | re.IGNORECASE,
)
"""Code and TOML, which stay as they are, or a link, words in bold type or italics, or a tag."""
_TABLE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})(?s:.*?)(?:^ {0,3}(?P=fence)|\Z)"
    r"|^(?=[^\n|]*\|)(?P<names>[^\n]+)\n(?=[ \t|:]*-)(?P<rule>[ \t|:-]+)\n"
    r"(?P<rows>(?:(?=[^\n|]*\|)[^\n]*(?:\n|\Z))+)",
    re.MULTILINE,
)
"""Code, or a table: the names of its columns, a rule, and rows."""


def read_markdown(data: bytes, name: str) -> ExtractedText:
    """Reads Markdown; headings are chapters. Links, bold type and italics become their words, and
    tags of HTML go, for a quotation is read without them. Rows of tables name their columns. The
    front matter becomes a heading with the title and a row. All lines stay where they were."""
    text, encoding = decode_text_with_lf(data, name)
    text = _MARKUP.sub(_replace_markup, text)
    front, title, link = _FRONT_MATTER.match(text), None, None
    if front and (fields := _parse_fields(*front.groups())):
        head, title, link = _format_fields(fields, text[front.end() :])
        text = head + "\n" * (front[0].count("\n") - head.count("\n")) + text[front.end() :]
    text = _TABLE.sub(_name_cells, text)
    marks = [*find_headings(text)]
    if title or link:
        marks = marks if marks and not marks[0].start else [Mark(0), *marks]
        marks = [mark._replace(title=title, link=link) for mark in marks]
    return ExtractedText(text, tuple(marks), encoding=encoding)


def _replace_markup(found: re.Match[str]) -> str:
    """Returns the words of a link, bold type, italics, `[[note]]` and `[[note|words]]`, the name of
    what `![[name]]` shows, and the line ends of a tag; code stays as it is."""
    if found["tag"]:
        return "\n" * found[0].count("\n") or " " * (found[0][:3].lower() == "<br")
    if found["note"] is not None:
        return found["note"] if found["embeds"] else found["alias"] or found["note"].rstrip("\\")
    words = (found[name] for name in ("linked", "strong", "italic") if found[name] is not None)
    return next((_MARKUP.sub(_replace_markup, one) for one in words), found[0])


def _name_cells(found: re.Match[str]) -> str:
    """Returns a table's rows with the column's name before each value, below two empty lines."""
    if found["fence"]:
        return found[0]
    lines = (found["names"], found["rule"], *found["rows"].split("\n"))
    names, rule, *rows = map(_split_cells, lines)
    if len(names) != len(rule):
        return found[0]
    width = max(map(len, (names, *rows)))
    names, *rows = ([*row, *[""] * (width - len(row))] for row in (names, *rows))
    return "\n\n" + format_rows([names, *rows])


def _split_cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip())
    inner = cells[not cells[0] : len(cells) - (len(cells) > 1 and not cells[-1])]
    return [cell.strip().replace("\\|", "|") for cell in inner]


def _parse_fields(mark: str, front_matter: str) -> dict[str, list[str]]:
    """Returns the texts of each field by the field's name in small letters; nothing if the front
    matter is no YAML or, between the marks `+++`, no TOML. Fields of fields are left out."""
    import yaml

    try:
        load = tomllib.loads if mark == "+++" else partial(yaml.load, Loader=yaml.BaseLoader)
        fields = load(front_matter)  # the values of YAML are all texts
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    out = {}
    for name, value in fields.items() if isinstance(fields, dict) else ():
        values = value if isinstance(value, list) else [value]
        plain = [one for one in values if not isinstance(one, dict | list)]
        texts = [" ".join(str(one).split()) for one in plain]
        out[str(name).casefold()] = [*filter(None, texts)]
    return out


def _format_fields(fields: dict[str, list[str]], below: str) -> tuple[str, str | None, str | None]:
    """Returns the text for a front matter, with a heading unless the text `below` begins with it;
    the title, with the citekey; and the link of the note's subject."""
    title, citekey = (next(iter(fields.get(name, ())), None) for name in ("title", "citekey"))
    links = [text for name in _LINKS for text in fields.get(name, ())]
    links += [text for texts in fields.values() for text in texts if text.startswith("zotero:")]
    is_below = title == next(find_headings(below), Mark(0)).chapter
    heading = f"# {title}\n\n" if title and not is_below else ""
    cells = [(name, ", ".join(texts)) for name, texts in fields.items() if texts]
    row = "; ".join(f"{name}: {cell}" for name, cell in cells if name != "title")
    shown = f"{title or ''} (@{citekey.lstrip('@')})".strip() if citekey else title
    return heading + row, shown, next(filter(_LINK.fullmatch, links), None)


def find_headings(markdown: str) -> Iterator[Mark]:
    """Yields every heading of a Markdown text, with its words and level."""
    settings = _FRONT_MATTER.match(markdown)
    fence, after = "", settings.end() if settings else 0
    for found in _HEADING_LINE.finditer(markdown, after):
        if fence:
            line = found[0].strip()
            if line.startswith(fence) and not line.strip(fence[0]):
                fence, after = "", found.end() + 1
        elif found["fence"]:
            fence = found["fence"]
        elif found["line"]:
            # Below a list, a quotation or a blank line, such a line is a rule, not an underline.
            start = markdown.rfind("\n", after, max(after, found.start() - 1)) + 1 or after
            above = markdown[start : max(start, found.start() - 1)]
            if not _NO_TITLE.match(above):
                yield Mark(start, chapter=above.strip(), level=1 if found["line"][0] == "=" else 2)
            after = found.end() + 1
        elif title := _strip_closing_hashes(found["title"]):
            yield Mark(found.start(), chapter=title, level=len(found["hashes"]))
            after = found.end() + 1


def _strip_closing_hashes(heading: str) -> str:
    """Returns a heading's words without the # characters that may close the heading."""
    heading = heading.strip(" \t")
    words = heading.rstrip("#")
    return words.rstrip(" \t") if words[-1:] in ("", " ", "\t") else heading
