"""Gives the files in Zotero's folder `storage/KEY/` the titles and links of their items.

Of the exports of Zotero, only those in BibTeX or BibLaTeX name the files of an item."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from esa_cli.documents.readers.text_builder import Mark

_STORED = re.compile(r"\bstorage[/\\]+((?!\d{8})[2-9A-NP-Z]{8})[/\\]")
_FIELD = re.compile(r"(?im)^[ \t]*(title|file)[ \t]*=[ \t]*[{\"](.*)[}\"],?[ \t]*$")


def name_zotero_item(path: str, marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Returns the marks of a file's text with the title and link of the item in Zotero that has the
    file; the same marks if the file is not one that Zotero stores."""
    if not (found := _STORED.search(os.path.abspath(path))):
        return marks
    title, key = None, found[1]
    with suppress(OSError):  # without the title, the file is read all the same
        exports = sorted(Path(found.string[: found.start()]).glob("*.bib"))
        titles = (_read_titles(one, one.stat().st_mtime_ns).get(key) for one in exports)
        title = next(filter(None, titles), None)
    is_pdf = path.lower().endswith(".pdf")
    link = f"zotero://{'open-pdf' if is_pdf else 'select'}/library/items/{key}"
    marks = marks if marks and not marks[0].start else (Mark(0), *marks)
    return tuple(
        mark._replace(title=title or mark.title, link=link + f"?page={mark.page}" * is_pdf)
        for mark in marks
    )


@lru_cache(maxsize=4)
def _read_titles(export: Path, changed_ns: int) -> dict[str, str]:
    """Returns titles with citekeys by the keys of the items' files, from an export in which each
    field has a line of its own. `changed_ns` is the time of the export's last change."""
    titles = {}
    for entry in re.split(r"(?m)^@\w+\{", export.read_text("utf-8", "replace"))[1:]:
        citekey, _, fields = entry.partition(",")
        found = {name.lower(): value for name, value in _FIELD.findall(fields)}
        title = " ".join(re.sub(r"[{}]|\\(?=[&%$#_])", "", found.get("title", "")).split())
        for key in _STORED.findall(found.get("file", "")):
            titles[key] = f"{title} (@{citekey.strip()})".strip()
    return titles
