"""Gives the files that Zotero stores the titles and links of their items.

Zotero stores an attached file in a folder of its own, `storage/KEY/`; an export with files has it
in `files/NUMBER/`. Only exports in BibTeX or BibLaTeX name the files of an item."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from esa_cli.documents.readers.text_builder import Mark

_FOLDERS = re.compile(r"storage/(?![0-9]{8}$)[2-9A-NP-Z]{8}|files/[0-9]+")
_STORED = re.compile(r"(storage|files)[/\\]+([0-9A-Z]+)[/\\]")
_ENTRY = re.compile(r"^@\w+\{", re.MULTILINE)
_FIELD = re.compile(r"^\s*(title|file)\s*=\s*[{\"](.*)[}\"],?\s*$", re.MULTILINE | re.IGNORECASE)


def name_zotero_item(path: str, marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Returns the marks of a file's text with the title and link of the item in Zotero that has the
    file; the same marks if the file is not one that Zotero stores."""
    folder = Path(os.path.abspath(path)).parent
    key = f"{folder.parent.name}/{folder.name}"
    if not _FOLDERS.fullmatch(key):
        return marks
    title, (kind, _, item) = None, key.partition("/")
    with suppress(OSError):  # without the title, the file is read all the same
        exports = sorted(folder.parent.parent.glob("*.bib"))
        titles = (_read_titles(one, one.stat().st_mtime_ns).get(key) for one in exports)
        title = next(filter(None, titles), None)
    is_pdf = path.lower().endswith(".pdf")
    link = f"zotero://{'open-pdf' if is_pdf else 'select'}/library/items/{item}"
    marks = marks if marks and not marks[0].start else (Mark(0), *marks)
    return tuple(
        mark._replace(
            title=title or mark.title,
            link=link + f"?page={mark.page}" * is_pdf if kind == "storage" else None,
        )
        for mark in marks
    )


@lru_cache(maxsize=4)
def _read_titles(export: Path, changed_ns: int) -> dict[str, str]:
    """Returns titles with citekeys by the folders of the items' files, such as `storage/ABCD2345`,
    from an export in which each field has a line of its own. `changed_ns` is the file's time."""
    titles = {}
    for entry in _ENTRY.split(export.read_text("utf-8", "replace"))[1:]:
        citekey, _, fields = entry.partition(",")
        found = {name.lower(): value for name, value in _FIELD.findall(fields)}
        title = " ".join(re.sub(r"[{}]|\\(?=[&%$#_])", "", found.get("title", "")).split())
        for kind, folder in _STORED.findall(found.get("file", "")):
            titles[f"{kind}/{folder}"] = f"{title} (@{citekey.strip()})".strip()
    return titles
