"""Page numbers of a Word document, from the marks of the program that saved it.

A docx has no pages of its own. Its program may have marked where its pages began; sections say
where numbering restarts, so that the numbers are those printed on the pages. There are no marks
where a page ends between two rows of a table; the table of contents corrects the count there. An
author's page breaks are used only if there are as many as the program's own count of pages says.
Otherwise there are no page numbers.
"""

from __future__ import annotations

from typing import Any

from esa_cli.documents.readers.docx_styles import W, value

_SHOWN = frozenset(f"{W}{tag}" for tag in ("t", "drawing", "pict", "object", "sym"))


class Pages:
    """The current page while a document is walked through."""

    def __init__(self, root: Any, counted: str | None) -> None:
        """`counted`: how many pages the program counted that saved the document."""
        self._sections = list(root.iter(f"{W}sectPr"))
        self._section = 0
        self._bare = True  # nothing stands on the page yet
        self._marked = root.find(f".//{W}lastRenderedPageBreak") is not None
        self._contents = _contents(root)
        known = self._marked or counted == str(self._breaks(root) + 1)
        self.number: int | None = (self._first() or 1) if known else None

    def _breaks(self, root: Any) -> int:
        """Page breaks that the author made."""
        by_hand: int = sum(b.get(f"{W}type") == "page" for b in root.iter(f"{W}br"))
        by_hand += sum(1 for _ in root.iter(f"{W}pageBreakBefore"))
        return by_hand + sum(_kind(section) != "continuous" for section in self._sections[1:])

    def shows(self, tag: str) -> None:
        """An element is shown: the next mark is a page break of its own."""
        if tag in _SHOWN:
            self._bare = False

    def marked(self) -> None:
        """A page began here in the program that saved the document."""
        if self._marked and not self._bare:
            self._turn()

    def by_hand(self) -> None:
        """The author's page break."""
        self._turn()

    def heading(self, paragraph: Any) -> None:
        """A heading; the table of contents may give it a later page."""
        if self.number is None:
            return
        for bookmark in paragraph.iter(f"{W}bookmarkStart"):
            listed = self._contents.get(bookmark.get(f"{W}name", ""), 0)
            self.number = max(self.number, listed)

    def section(self) -> None:
        """The end of a section; the next one says how it begins."""
        self._section += 1
        kind = _kind(self._sections[self._section])
        if self.number is None:
            return
        if kind != "continuous":
            self._turn()
        start = self._first()
        if start is not None:
            self.number = start
        elif kind == f"{'even' if self.number % 2 else 'odd'}Page":
            self.number += 1  # an empty page, printed without text

    def _first(self) -> int | None:
        if self._section >= len(self._sections):
            return None
        number = self._sections[self._section].find(f"{W}pgNumType")
        start = None if number is None else number.get(f"{W}start")
        return int(start) if isinstance(start, str) and start.isdecimal() else None

    def _turn(self) -> None:
        if self.number is not None:
            self.number += 1
            self._bare = True


def _contents(root: Any) -> dict[str, int]:
    """Page by the bookmark that an entry of the table of contents leads to."""
    pages = {}
    for link in root.iter(f"{W}hyperlink"):
        anchor = link.get(f"{W}anchor", "")
        words = [text.text or "" for text in link.iter(f"{W}t")]
        if anchor.startswith("_Toc") and words and words[-1].isdecimal():
            pages[anchor] = int(words[-1])
    return pages


def _kind(section: Any) -> str:
    return value(section, "type") or "nextPage"


def begins_with_mark(paragraph: Any) -> bool:
    """True if a page's mark stands before everything the paragraph shows."""
    for element in paragraph.iter():
        if element.tag in _SHOWN:
            return False
        if element.tag == f"{W}lastRenderedPageBreak":
            return True
    return False
