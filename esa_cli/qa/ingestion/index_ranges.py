"""A long document's token index in ranges, which several processes compute and one stores.

What the encoder makes of a segment depends on that segment and the tokens just before it, so ranges
of whole segments of the library, encoded in the same pieces, give the bytes that one process would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from esa_cli.qa.finding.segments import SEGMENT_TOKENS
from esa_cli.qa.ingestion.index_archive import finish_index
from esa_cli.qa.ingestion.tokenised_document import TokenisedDocument
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import Entry
from esa_cli.storage.library.entry_writer import Writer

RANGE_SEGMENTS = 4
"""Segments of the library in a range: seconds of work, so that little is done twice."""


class TokenRange(NamedTuple):
    """Tokens of a document that are encoded together.

    Args:
        ids: theirs, behind those before them. before: number of the latter: a segment of the
            encoder, which has what the first ones see; 0 at the document's beginning.
        identity: of the index that they are for.
    """

    ids: Sequence[int]
    before: int
    identity: str


class RangedIndex:
    """A token index that is written in order, in whatever order its ranges come.

    Args:
        writer: of the library; what it has is not read again. preset: for the provenance.
    """

    def __init__(self, writer: Writer, text: TokenisedDocument, preset: Preset) -> None:
        self._writer, self._text, self._preset = writer, text, preset
        self._early: dict[int, Tensor] = {}

    @property
    def complete(self) -> bool:
        """Whether all ranges are written."""
        return self._writer.done == len(self._text.ids)

    def ranges(self) -> Iterator[tuple[int, TokenRange]]:
        """The ranges that lack, each with its first token's place."""
        ids, step = self._text.ids, RANGE_SEGMENTS * self._writer.layout.segment
        for start in range(self._writer.done, len(ids), step):
            before = min(start, SEGMENT_TOKENS)
            yield (
                start,
                TokenRange(ids[start - before : start + step], before, self._writer.identity),
            )

    def add(self, start: int, records: Tensor) -> None:
        """Takes the records (n, row_bytes) of the range that begins at `start`; writes them when
        all before it are written. Raises ResourceError: the disk is full."""
        self._early[start], size = records, self._writer.layout.segment
        while (found := self._early.pop(self._writer.done, None)) is not None:
            for at in range(0, found.shape[0], size):
                self._writer.write_records(found[at : at + size])

    def finish(self) -> Entry:
        """The document, when all is written. Raises ResourceError: the disk is full."""
        return finish_index(self._writer, self._text, self._preset)
