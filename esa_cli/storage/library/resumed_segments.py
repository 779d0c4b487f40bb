"""Finds the segments from which an interrupted ingest resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from esa_cli.errors import LibraryError
from esa_cli.storage.library.document_files import NO_FIT, read_fit
from esa_cli.storage.library.library_paths import LibraryPaths
from esa_cli.storage.library.row_layout import Layout
from esa_cli.storage.library.segment import Segment


@dataclass(frozen=True)
class ResumedSegments:
    """First segments of a document, and the fit of their reduced keys."""

    segments: list[Segment] = field(default_factory=list)
    fit: str = NO_FIT
    projections: list[Any] | None = None


def resumed_segments(
    paths: LibraryPaths, key: str, prefixes: Sequence[str], layout: Layout, tokens: int
) -> ResumedSegments:
    """The longest run of whole first segments on disk, every byte of it checked.

    Args:
        key: the document's. prefixes: names of all its segments, without that of the fit.
        tokens: of the whole document.
    """
    best = ResumedSegments()
    whole = prefixes[: tokens // layout.segment]
    first = paths.segments.glob(f"{prefixes[0]}-*.seg")
    for fit in sorted(path.stem.partition("-")[2] for path in first):
        try:
            projections = read_fit(paths, fit, key)
        except LibraryError:
            continue
        found = list(_run(paths, key, [f"{name}-{fit}" for name in whole], layout))
        if len(found) > len(best.segments):
            best = ResumedSegments(found, fit, projections)
    return best


def _run(paths: LibraryPaths, key: str, names: Sequence[str], layout: Layout) -> Iterator[Segment]:
    """The undamaged whole segments from the beginning on; a short last one is not resumed."""
    for name in names:
        try:
            segment = Segment(paths.segment(name), layout, layout.segment, key)
            segment.check()
        except LibraryError:
            return
        yield segment
