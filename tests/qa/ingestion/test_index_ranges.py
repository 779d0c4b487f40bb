"""Token indexes in ranges: the same bytes as by one process. Tiny random model."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli.documents.document import Document
from esa_cli.errors import ModelError
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.reduced_keys import index_layout
from esa_cli.qa.finding.token_encoder import TokenEncoder
from esa_cli.qa.ingestion import index_ingest, index_ranges
from esa_cli.qa.ingestion.index_ranges import RangedIndex, TokenRange
from esa_cli.qa.ingestion.tokenised_document import TokenisedDocument
from esa_cli.qa.presets import preset
from esa_cli.storage.library import Entry, Library
from esa_cli.storage.library.entry_writer import Writer

TEXT = "The gate opens at nine, and the keeper has the only key to it. " * 120
SEGMENT, PIECE, DIM = 256, 64, 6
NOTE = Document("note.txt", TEXT, "/notes/note.txt", "utf-8", len(TEXT))


@pytest.fixture
def esa(loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Esa]:
    """Reads into the library `here`."""
    for module in ("esa_cli.qa.finding.token_encoder", "esa_cli.qa.ingestion.index_ranges"):
        monkeypatch.setattr(f"{module}.SEGMENT_TOKENS", 32)
    monkeypatch.setattr("esa_cli.qa.finding.token_encoder.CONTEXT_TOKENS", 8)
    monkeypatch.setattr(index_ingest, "PIECE", PIECE)
    monkeypatch.setattr(index_ranges, "RANGE_SEGMENTS", 2)
    monkeypatch.setattr("esa_cli.qa.finding.reduced_keys.SEGMENT", SEGMENT)
    made = TokenEncoder.new(
        loaded.model, loaded.tokenizer, layers=2, first=1, rank=2, dim=DIM, seed=1
    )
    made.save(tmp_path / "finder", "random:llama")
    chosen = preset.load("tiny-random", ["answer.from=text", f"answer.finder={tmp_path}/finder"])
    with Esa(loaded, chosen, library=Library(tmp_path / "here")) as one:
        yield one


def files(library: Library) -> dict[str, bytes]:
    """All that differs from run to run left out: the manifest has a date."""
    found = (
        path for path in library.root.rglob("*") if path.suffix in (".seg", ".text", ".tokens")
    )
    return {path.name: path.read_bytes() for path in found}


def begun(esa: Esa, library: Library, text: TokenisedDocument) -> Any:
    assert esa.documents.index is not None
    identity = esa.documents.index.identity
    key = library.key(identity, text.document.text)
    return library.write(key, identity, text.ids, index_layout(DIM))


def test_in_any_order_and_resumed_the_bytes_are_those_of_one_process(
    esa: Esa, tmp_path: Path
) -> None:
    entry = esa.ingest(NOTE).entry
    assert entry is not None
    index, there = esa.documents.index, Library(tmp_path / "there")
    text = TokenisedDocument.of(NOTE, esa.session.tokenizer)
    assert index is not None
    assert len(text.ids) > 6 * SEGMENT
    assert len(text.ids) % SEGMENT, "the last segment is a short one"
    with begun(esa, there, text) as writer:
        assert isinstance(writer, Writer)
        whole = RangedIndex(writer, text, esa.preset)
        parts = list(whole.ranges())
        assert [start for start, _ in parts] == [*range(0, len(text.ids), 2 * SEGMENT)]
        first, second, third, *_ = parts
        for start, part in (third, first):  # the second is never done
            whole.add(start, index.records(part))
        assert writer.done == 2 * SEGMENT
    assert there.entries() == []
    with begun(esa, there, text) as writer:
        again = RangedIndex(writer, text, esa.preset)
        parts = list(again.ranges())
        assert parts[0] == second
        random.Random(3).shuffle(parts)
        for start, part in parts:
            assert not again.complete
            again.add(start, pickle.loads(pickle.dumps(index.records(part))))
        assert again.complete
        made = again.finish()
    assert isinstance(made, Entry)
    assert made.segments == entry.segments
    assert (made.key, made.tokens, made.provenance) == (entry.key, entry.tokens, entry.provenance)
    assert files(there) == files(Library(tmp_path / "here"))
    assert there.verify(made) == []


def test_workers_must_compute_alike(esa: Esa) -> None:
    assert esa.documents.index is not None
    with pytest.raises(ModelError, match="must have the same model in the same dtype"):
        esa.documents.index.records(TokenRange([1, 2, 3], 0, "another one"))


def test_records_of_another_shape_are_refused(esa: Esa, tmp_path: Path) -> None:
    text = TokenisedDocument.of(NOTE, esa.session.tokenizer)
    with begun(esa, Library(tmp_path / "there"), text) as writer:
        for records in (
            torch.zeros(SEGMENT, DIM, dtype=torch.uint8),
            torch.zeros(SEGMENT, DIM + 1),
        ):
            with pytest.raises(ValueError, match="rows or reduced keys must be"):
                RangedIndex(writer, text, esa.preset).add(0, records)
