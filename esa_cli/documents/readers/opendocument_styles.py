"""Styles of an OpenDocument text: numbers of headings and lists, new pages, raised characters.

Numbers are not in the file; they are counted as office programs do: each paragraph increases its
level's counter and resets those of the levels below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from esa_cli.documents.readers.docx_styles import BULLET, number_text

OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_FO = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"
OUTLINE = "\0"
"""The name under which the numbers of headings are counted."""
_LEVELS = 10
_DEEPEST = 64  # styles that stand on each other
_KINDS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}


def whole(text: str | None, most: int = _LEVELS) -> int:
    """A number from 1 to `most`; 1 where the file says something else."""
    return max(1, min(int(text), most)) if text and text.isdecimal() and len(text) < 9 else 1


@dataclass(frozen=True)
class _ListLevel:
    """How one level of a list is numbered; without a kind it has a bullet, or nothing."""

    kind: str = ""
    before: str = ""
    behind: str = ""
    shown: int = 1
    start: int = 1
    bullet: bool = False


@dataclass
class ListStyles:
    """How lists are numbered, and how far each has counted."""

    _levels: dict[str, dict[int, _ListLevel]] = field(default_factory=dict)
    _counts: dict[str, list[int | None]] = field(default_factory=dict)

    def add(self, name: str, style: Any) -> None:
        """A list style, or the one for headings."""
        self._levels[name] = {whole(e.get(f"{TEXT}level")): _level(e) for e in style}

    def __contains__(self, name: str) -> bool:
        return name in self._levels

    def begin(self, name: str) -> None:
        """A list that does not go on with the one before."""
        self._counts.pop(name, None)

    def next(self, name: str, level: int, start: str | None = None) -> str:
        """What stands before the next paragraph of a list; empty where nothing does.

        Args:
            level: from 1. start: the number that this paragraph says it has.
        """
        if name not in self._levels:
            return "" if name == OUTLINE else BULLET
        levels = self._levels[name]
        here = levels.get(level)
        if here is None or here.bullet:
            return BULLET if here else ""
        counts = self._counts.setdefault(name, [None] * (_LEVELS + 1))
        now = counts[level]
        counts[level] = whole(start, 1 << 20) if start else here.start if now is None else now + 1
        counts[level + 1 :] = [None] * (_LEVELS - level)
        if not here.kind:
            return ""
        numbers = []
        for of in range(max(1, level - here.shown + 1), level + 1):
            other = levels.get(of, _ListLevel("1"))
            count = counts[of]
            if other.kind:
                number = other.start if count is None else count
                numbers.append(number_text(number, _KINDS.get(other.kind, "decimal")))
        return f"{here.before}{'.'.join(numbers)}{here.behind}".strip()


def _level(element: Any) -> _ListLevel:
    return _ListLevel(
        element.get(f"{STYLE}num-format") or "",
        element.get(f"{STYLE}num-prefix") or "",
        element.get(f"{STYLE}num-suffix") or "",
        whole(element.get(f"{TEXT}display-levels")),
        whole(element.get(f"{TEXT}start-value"), 1 << 20),
        element.tag in (f"{TEXT}list-level-style-bullet", f"{TEXT}list-level-style-image"),
    )


class OpenDocumentStyles:
    """The styles of a document, those of its own paragraphs and those they stand on."""

    def __init__(self, *roots: Any) -> None:
        self.lists = ListStyles()
        self._styles: dict[tuple[str, str], Any] = {}
        for root in roots:
            for style in root.iter(f"{STYLE}style", f"{TEXT}list-style", f"{TEXT}outline-style"):
                name = style.get(f"{STYLE}name", "")
                if style.tag == f"{STYLE}style":
                    self._styles[style.get(f"{STYLE}family", ""), name] = style
                else:
                    self.lists.add(OUTLINE if style.tag == f"{TEXT}outline-style" else name, style)

    def new_page(self, family: str, name: str) -> str | None:
        """The number that a paragraph or table gives the page it begins, "" for the next one; None
        where it begins none."""
        for style in self._and_below(family, name):
            properties = style.find(f"{STYLE}{family}-properties")
            found = {} if properties is None else properties.attrib
            breaks = found.get(f"{_FO}break-before")
            if breaks == "page" or style.get(f"{STYLE}master-page-name"):
                number: str = found.get(f"{STYLE}page-number", "")
                return number if number.isdecimal() and len(number) < 9 else ""
            if breaks is not None:
                return None
        return None

    def raised(self, name: str) -> bool:
        """Whether characters of this style are raised above the line."""
        for style in self._and_below("text", name):
            for properties in style.iterfind(f"{STYLE}text-properties"):
                place = properties.get(f"{STYLE}text-position")
                if place:
                    return str(place).startswith("super") or str(place)[0] in "123456789"
        return False

    def list_of(self, name: str) -> str | None:
        """The list that a paragraph's style puts it in."""
        for style in self._and_below("paragraph", name):
            said: str | None = style.get(f"{STYLE}list-style-name")
            if said is not None:
                return said
        return None

    def _and_below(self, family: str, name: str) -> Iterator[Any]:
        for _ in range(_DEEPEST):
            style = self._styles.get((family, name))
            if style is None:
                return
            yield style
            name = style.get(f"{STYLE}parent-style-name", "")


class ParagraphNumbers:
    """What stands before paragraphs, from the lists and items that are open around them."""

    def __init__(self, styles: OpenDocumentStyles) -> None:
        self._styles = styles
        self._open: list[str] = []  # the styles of the lists around
        self._item = False  # its first paragraph is to come
        self._start: str | None = None

    @property
    def depth(self) -> int:
        """How many lists are around."""
        return len(self._open)

    def open_list(self, element: Any) -> None:
        name = element.get(f"{TEXT}style-name") or (self._open[-1] if self._open else "")
        goes_on = element.get(f"{TEXT}continue-numbering") == "true"
        if not self._open and not goes_on and element.get(f"{TEXT}continue-list") is None:
            self._styles.lists.begin(name)
        self._open.append(name)

    def close_list(self) -> None:
        self._open.pop()
        self._item = False

    def item(self, element: Any) -> None:
        self._item = element.tag == f"{TEXT}list-item"
        self._start = element.get(f"{TEXT}start-value")

    def of(self, paragraph: Any, *, heading: bool) -> str:
        """What stands before this paragraph, the first of an item or a heading; else nothing."""
        of = self._styles.list_of(paragraph.get(f"{TEXT}style-name", ""))
        lists = self._styles.lists
        if self._item:
            self._item = False
            around = self._open[-1] if self._open else ""
            return lists.next(around or of or "", max(1, self.depth), self._start)
        if not heading or of == "" or paragraph.get(f"{TEXT}is-list-header") == "true":
            return ""
        level, start = paragraph.get(f"{TEXT}outline-level"), paragraph.get(f"{TEXT}start-value")
        return lists.next(of if of and of in lists else OUTLINE, whole(level), start)
