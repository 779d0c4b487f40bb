"""Styles and lists of a Word document: levels of headings, and the numbers before them.

Word computes the numbers of headings and lists when it shows a document; they are not in its text.
Here they are counted the same way: each paragraph increases its level's counter and resets those
of the levels below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
BULLET = "-"
_LEVELS = 9
_DEEPEST = 64  # styles that stand on each other
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"),
    (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip


def value(element: Any, path: str) -> str | None:
    """The `val` of what stands below an element at `path`, as `pPr/numPr/ilvl`."""
    found = (
        None if element is None else element.find("/".join(W + step for step in path.split("/")))
    )
    return None if found is None else found.get(f"{W}val")


@dataclass(frozen=True)
class ParagraphStyle:
    """A paragraph's style: heading level, and list of its number."""

    heading: bool = False
    number: str | None = None  # of its list
    level: str | None = None
    contents: bool = False  # a line of a table of contents


def styles(root: Any) -> dict[str, ParagraphStyle]:
    """Every paragraph style by its id; what it does not say, it has from the one it stands on."""
    elements = {s.get(f"{W}styleId", ""): s for s in root.iterfind(f"{W}style")}
    return {name: _style(name, elements) for name in elements}


def _style(name: str, elements: dict[str, Any]) -> ParagraphStyle:
    outline = number = level = None
    contents = (value(elements[name], "name") or "").lower().startswith("toc ")
    for _ in range(_DEEPEST):
        element = elements.get(name)
        if element is None:
            break
        called = (value(element, "name") or "").lower()
        by_name = re.fullmatch(r"heading ([1-9])", called)
        outline = outline or value(element, "pPr/outlineLvl") or (by_name and by_name[1])
        number = number or value(element, "pPr/numPr/numId")
        level = level or value(element, "pPr/numPr/ilvl")
        name = value(element, "basedOn") or ""
    return ParagraphStyle(outline is not None and outline != "9", number, level, contents)


def whole(text: str | None) -> int:
    """A level, 0 where the file says something else."""
    return min(int(text), _LEVELS - 1) if text and text.isdecimal() else 0


@dataclass(frozen=True)
class _WordLevel:
    start: int
    kind: str
    text: str
    style: str | None = None


@dataclass
class WordLists:
    """The lists of a document, and how far each has counted."""

    _of_list: dict[str, str] = field(default_factory=dict)
    _levels: dict[str, dict[int, _WordLevel]] = field(default_factory=dict)
    _counts: dict[str, list[int | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Any) -> WordLists:
        """From numbering.xml."""
        lists = cls()
        for number in root.iterfind(f"{W}num"):
            abstract = value(number, "abstractNumId")
            if abstract is not None:
                lists._of_list[number.get(f"{W}numId", "")] = abstract
        shared: dict[str | None, str] = {}
        links: dict[str, str] = {}
        for element in root.iterfind(f"{W}abstractNum"):
            name = element.get(f"{W}abstractNumId", "")
            levels = {whole(x.get(f"{W}ilvl")): _level(x) for x in element.iterfind(f"{W}lvl")}
            lists._levels[name] = levels
            shared[value(element, "styleLink")] = name
            links[name] = value(element, "numStyleLink") or ""
        for number, name in lists._of_list.items():
            lists._of_list[number] = shared.get(links.get(name), name)
        return lists

    def next(self, number: str, level: int | None, style: str) -> str:
        """The number or bullet before the next paragraph of a list; empty for no list.

        Args:
            level: as the paragraph or its style says; None takes the level that names its style.
        """
        abstract = self._of_list.get(number, "")
        levels = self._levels.get(abstract, {})
        if level is None:
            level = next((n for n, known in levels.items() if known.style == style), 0)
        here = levels.get(level)
        if here is None:
            return ""
        if here.kind == "bullet":
            return BULLET
        counts = self._counts.setdefault(abstract, [None] * _LEVELS)
        now = counts[level]
        counts[level] = here.start if now is None else now + 1
        counts[level + 1 :] = [None] * (_LEVELS - level - 1)

        def shown(found: re.Match[str]) -> str:
            of = int(found[1]) - 1
            other = levels.get(of, _WordLevel(1, "decimal", ""))
            count = counts[of]
            return number_text(other.start if count is None else count, other.kind)

        return "" if here.kind == "none" else re.sub(r"%([1-9])", shown, here.text)


def _level(element: Any) -> _WordLevel:
    start = value(element, "start") or ""
    return _WordLevel(
        int(start) if start.isdecimal() else 1,
        value(element, "numFmt") or "decimal",
        value(element, "lvlText") or "",
        value(element, "pStyle"),
    )


def number_text(count: int, kind: str) -> str:
    """A number as a list of this kind shows it."""
    if kind in ("lowerLetter", "upperLetter") and count > 0:
        letter = chr(ord("a") + (count - 1) % 26) * min(1 + (count - 1) // 26, _LEVELS)
        return letter.upper() if kind == "upperLetter" else letter
    if kind in ("lowerRoman", "upperRoman") and 0 < count < 4000:
        out, left = "", count
        for size, sign in _ROMAN:
            out += sign * (left // size)
            left %= size
        return out.upper() if kind == "upperRoman" else out
    return str(count)
