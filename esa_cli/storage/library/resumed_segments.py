"""Finds the segments from which an interrupted ingest resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esa_cli.errors import LibraryError
from esa_cli.storage.library.formats.document_files import NO_FIT, read_fit
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.row_layout import Layout
from esa_cli.storage.library.formats.segment import Segment
from esa_cli.storage.library.formats.state_file import State, read_unfinished


@dataclass(frozen=True)
class ResumedSegments:
    """First segments of a document, the fit of their reduced keys, and the states behind them."""

    segments: list[Segment] = field(default_factory=list)
    fit: str = NO_FIT
    projections: list[Any] | None = None
    states: list[State] = field(default_factory=list)


def resumed_segments(
    paths: LibraryPaths, key: str, prefixes: Sequence[str], layout: Layout, tokens: int
) -> ResumedSegments:
    """The longest run of whole first segments on disk, every byte of it checked. Where layers of
    the model keep states, all segments up to the one behind which they were stored, or none.

    Args:
        key: the document's. prefixes: names of all its segments, without that of the fit.
        tokens: of the whole document.
    """
    best, states = ResumedSegments(), list[State]()
    whole, fewest = prefixes[: tokens // layout.segment], 1
    if layout.states:
        try:
            kept = read_unfinished(paths.document(key, "states"), layout, key)
            whole = prefixes[: prefixes.index(kept.segment) + 1]
        except (LibraryError, ValueError):
            return best
        states, fewest = kept.states, len(whole)
    first = paths.segments.glob(f"{prefixes[0]}-*.seg")
    for fit in sorted(path.stem.partition("-")[2] for path in first):
        try:
            projections = read_fit(paths, fit, key)
        except LibraryError:
            continue
        names = [f"{name}-{fit}" for name in whole]
        found = list(_run(paths, key, names, layout, tokens))
        if len(found) >= fewest and len(found) > len(best.segments):
            best = ResumedSegments(found, fit, projections, states)
    return best


def _run(
    paths: LibraryPaths, key: str, names: Sequence[str], layout: Layout, tokens: int
) -> Iterator[Segment]:
    """The undamaged segments from the beginning on, of a document of so many tokens."""
    for index, name in enumerate(names):
        size = min(layout.segment, tokens - index * layout.segment)
        segment = undamaged_segment(paths.segment(name), layout, size, key)
        if segment is None:
            return
        yield segment


def undamaged_segment(path: Path, layout: Layout, tokens: int, key: str) -> Segment | None:
    """The segment in a file, every byte of it checked; None where it is missing or damaged."""
    try:
        segment = Segment(path, layout, tokens, key)
        segment.check()
    except LibraryError:
        return None
    return segment
