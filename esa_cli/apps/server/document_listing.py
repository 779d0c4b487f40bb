"""The list of documents that a request may name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.documents.sources import find_any
from esa_cli.errors import DiskError, DocumentError, LibraryError
from esa_cli.system.text import has_lone_surrogate

MOST_LISTED = 2000
"""Files of the allowed folders that are listed."""


def list_documents(documents: AllowedDocuments) -> dict[str, Any]:
    """The body of the list: `data`, the documents of the command line first; `left_out`, in words.

    Reads the beginning of every file in the allowed folders. A file is listed once, however it may
    be named.
    """
    left_out: list[str] = []
    data = [
        _listed(documents.id(number), book.document.name, book.document.bytes, "given")
        for number, book in enumerate(documents.fixed)
    ]
    listed = {Path(b.document.source).resolve() for b in documents.fixed if b.document.stamp}
    refused = Counter[str]()
    for path in allowed_files(documents, left_out):
        if (why := _refuse(documents, path, listed)) is not None:
            refused[why] += 1
            continue
        listed.add(path)
        data.append(_listed(documents.id(path), path.name, path.stat().st_size, "file"))
    data += _stored(documents, listed, left_out)
    left_out += [f"{why}: {count:,}" for why, count in refused.items() if why]
    return {"object": "list", "data": data, "left_out": left_out}


def _listed(id: str, name: str, nbytes: int, kind: str) -> dict[str, Any]:
    return {"id": id, "object": "document", "name": name, "bytes": nbytes, "kind": kind}


def _stored(
    documents: AllowedDocuments, listed: Container[Path], left_out: list[str]
) -> list[dict[str, Any]]:
    """Those of the library, if requests may name them: `stored`, or `synced` where only their words
    are."""
    if documents.stored is None:
        return []
    try:
        texts = documents.stored.texts()
    except (LibraryError, DiskError):
        left_out.append("the library cannot be used")
        return []
    return [
        _listed(id, one.text.name, one.text.bytes, "stored" if one.text.entries else "synced")
        for id, one in texts.items()
        if not one.text.path or Path(one.text.path).resolve() not in listed
    ]


def allowed_files(documents: AllowedDocuments, left_out: list[str]) -> Iterator[Path]:
    """The readable files below the allowed folders, each where its links lead to."""
    for folder in documents.allowed:
        try:
            found = find_any(str(folder))
        except DocumentError as error:
            left_out.append(f"{error.message}; {error.hint}".replace(str(folder), folder.name))
            continue
        left_out += [one.line.replace(str(folder), folder.name) for one in found.rest(str(folder))]
        yield from (Path(path).resolve() for path in found.files)


_COPY = ""
_NOT_UTF8 = "files whose names are not UTF-8"
_SAME_NAME = "files of a name that another allowed folder has"


def _refuse(documents: AllowedDocuments, path: Path, listed: set[Path]) -> str | None:
    """Why a file is not listed, in words; None: it is. A copy needs none."""
    if path in listed or not path.is_file():
        return _COPY
    if has_lone_surrogate(str(path)):
        return _NOT_UTF8
    if len(listed) >= MOST_LISTED:
        return f"files beyond the first {MOST_LISTED:,}, which can be named all the same"
    return None if not Path(documents.id(path)).is_absolute() else _SAME_NAME
