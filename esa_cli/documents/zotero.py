"""Gives the files that Zotero stores the titles and links of their items.

Zotero stores an attached file in a folder of its own, `storage/KEY/`; an export with files has it
in `files/NUMBER/`. Only exports in BibTeX or BibLaTeX name the files of an item."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from esa_cli.documents.readers.text_builder import Mark

_FOLDERS = re.compile(r"storage/(?![0-9]{8}$)[2-9A-NP-Z]{8}|files/[0-9]+")
_STORED = re.compile(r"(storage|files)[/\\]+([0-9A-Z]+)[/\\]")
_ENTRY = re.compile(r"^@\w+\{", re.MULTILINE)
_FIELD = re.compile(r"^\s*(title|file)\s*=\s*[{\"](.*)[}\"],?\s*$", re.MULTILINE | re.IGNORECASE)
_MAX_EXPORT = 1 << 28
"""The maximum size of an export in bytes."""


def name_zotero_item(path: str, marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Returns the marks of a file's text with the title and link of the item in Zotero that has the
    file; the same marks if the file is not one that Zotero stores."""
    folder = Path(os.path.abspath(path)).parent
    key = f"{folder.parent.name}/{folder.name}"
    if not _FOLDERS.fullmatch(key):
        return marks
    title = None
    for export in sorted(folder.parent.parent.glob("*.bib")):
        try:
            title = title or _read_titles(export, export.stat().st_mtime_ns).get(key)
        except OSError:
            continue  # the file is read without the title
    marks = marks if marks and not marks[0].start else (Mark(0), *marks)
    return tuple(
        mark._replace(title=title or mark.title, link=_make_link(key, path, mark.page))
        for mark in marks
    )


def _make_link(key: str, path: str, page: int | None) -> str | None:
    """Returns a link that opens a page of a PDF in Zotero, or selects another file there."""
    if not key.startswith("storage/"):
        return None
    item = f"library/items/{key.removeprefix('storage/')}"
    is_page = page is not None and path.lower().endswith(".pdf")
    return f"zotero://open-pdf/{item}?page={page}" if is_page else f"zotero://select/{item}"


@lru_cache(maxsize=4)
def _read_titles(export: Path, changed_ns: int) -> dict[str, str]:
    """Returns titles with citekeys by the folders of the items' files, such as `storage/ABCD2345`,
    from an export in which each field has a line of its own. `changed_ns` is the file's time."""
    if export.stat().st_size > _MAX_EXPORT:
        return {}
    titles = {}
    for entry in _ENTRY.split(export.read_text("utf-8", "replace"))[1:]:
        citekey, _, fields = entry.partition(",")
        found = {name.lower(): value for name, value in _FIELD.findall(fields)}
        title = " ".join(re.sub(r"[{}]|\\(?=[&%$#_])", "", found.get("title", "")).split())
        for kind, folder in _STORED.findall(found.get("file", "")):
            titles[f"{kind}/{folder}"] = f"{title} (@{citekey.strip()})".strip()
    return titles
