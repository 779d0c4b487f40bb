"""Token indexes: computed, stored, found again, resumed, damaged. Tiny random model."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch
from finder_encoder import new_finder, save_finder
from forked import child, ended, killed, taken

from esa_cli.documents.document import Document
from esa_cli.errors import LibraryError
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.finder import ReducedKeys, TokenEncoder, make_index_layout
from esa_cli.qa.finding.passage_finder import Book, add_token_ranges
from esa_cli.qa.ingestion import ingest as index_ingest
from esa_cli.qa.ingestion.ingest import IngestEvents
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library
from esa_cli.storage.library.disk import pack_checksummed_file

TEXT = "The gate opens at nine, and the keeper has the only key. " * 30
DIM = 6
SEGMENT, PIECE = 256, 64
"""Tokens of a segment in the library and of a piece, so that short documents have several."""


def made_finder(loaded: Any, folder: Path, seed: int, dim: int = DIM) -> Path:
    made = new_finder(loaded.model, loaded.tokenizer, layers=2, first=1, rank=2, dim=dim, seed=seed)
    folder.mkdir(parents=True)
    save_finder(made, folder, "random:llama")
    return folder


@pytest.fixture(scope="module")
def finder(loaded: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_finder(loaded, tmp_path_factory.mktemp("finders") / "one", 1)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esa_cli.qa.finding.finder.SEGMENT_TOKENS", 32)
    monkeypatch.setattr("esa_cli.qa.finding.finder.CONTEXT_TOKENS", 8)
    monkeypatch.setattr(TokenEncoder, "piece", PIECE)
    monkeypatch.setattr("esa_cli.qa.finding.finder.SEGMENT", SEGMENT)


def note(text: str = TEXT, name: str = "note.txt") -> Document:
    return Document(name, text, f"/notes/{name}", "utf-8", len(text))


class Seen(IngestEvents):
    """Notes what it is told; `stop`: raises when so many tokens are done."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.told = stop, list[Any]()

    def report_stored_document(self, book: Book) -> None:
        self.told.append("found")

    def announce_ingest(self, document: Document, tokens: int, stored_bytes: int | None) -> None:
        self.told.append(("started", tokens, stored_bytes))

    def report_ingest_progress(self, done: int, total: int) -> None:
        self.told.append(done)
        if self.stop is not None and done >= self.stop:
            raise KeyboardInterrupt

    def report_ingest_end(self) -> None:
        self.told.append("finished")


def esa(loaded: Any, library: Library | None, finder: Path, *more: str, **options: Any) -> Esa:
    given = ["answer.from=text", f"answer.finder={finder}", *more]
    return Esa(loaded, load_preset("tiny-random", given), library=library, **options)


def at_once(loaded: Any, finder: Path, text: str = TEXT) -> torch.Tensor:
    """The reduced keys, computed in one call."""
    encoder = TokenEncoder.load(finder, loaded.model, loaded.tokenizer)
    ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    return encoder.encode_document(ids, 0, len(ids))


def index_of(book: Book) -> torch.Tensor:
    return book.index.decode_keys(0, book.index.shape[0])


def rounded(keys: torch.Tensor) -> torch.Tensor:
    """Reduced keys (n, R) as they would be read from the library."""
    return ReducedKeys.encode(keys, make_index_layout(keys.shape[1])).decode_keys(0, keys.shape[0])


def test_an_index_is_stored_found_and_opened_as_it_is_computed(
    loaded: Any, library: Library, finder: Path
) -> None:
    seen = Seen()
    with esa(loaded, library, finder, events=seen) as one:
        made = one.ingest(note())
        assert one.find(note()) is not None
    tokens = made.tokens
    size = library.estimate_document_size(tokens, make_index_layout(DIM))
    assert seen.told[0] == ("started", tokens, size)
    assert seen.told[1:-2] == [*range(PIECE, tokens, PIECE), tokens]
    assert seen.told[-2:] == ["finished", "found"]
    assert (made.prefilled, made.spans.shape) == (None, (tokens, 2))
    assert tokens == made.entry.tokens > 2 * SEGMENT
    assert (made.entry.head, made.entry.layout) == (0, make_index_layout(DIM))
    assert abs(made.entry.nbytes - size) < size / 2
    want = at_once(loaded, finder)
    torch.testing.assert_close(index_of(made), want, atol=0.01, rtol=0)
    torch.testing.assert_close(index_of(made), rounded(want), atol=1e-5, rtol=0.02)
    with esa(loaded, library, finder, keep=False) as two:
        for found in (two.find(note()), two.ingest(note()), two.stored(made.entry)):
            assert found.read_s == 0
            assert found.document == note()
            assert torch.equal(index_of(found), index_of(made))
            assert torch.equal(found.spans, made.spans)
            [placed] = add_token_ranges([found])
            assert placed.index is found.index
    assert library.verify(made.entry) == []


def test_in_memory_it_is_the_same_and_nothing_is_written(
    loaded: Any, library: Library, finder: Path, tmp_path: Path
) -> None:
    with esa(loaded, library, finder) as one:
        stored = index_of(one.ingest(note()))
    none = Library(tmp_path / "none")
    for kept in (none, None):
        with esa(loaded, kept, finder, keep=False) as one:
            book = one.ingest(note())
            assert book.entry is None
            assert torch.equal(index_of(book), stored)
            assert book.read_s > 0
            assert one.documents.count_tokens_in_memory() == book.tokens
    assert not none.root.exists()
    with esa(loaded, none, finder, keep=False) as one:
        assert one.ingest(note(), keep=True).entry is not None
        assert not one.documents.keep, "for this document alone"
    with esa(loaded, library, finder) as one:
        assert one.ingest(Document("b", "Other.", "b", "", 6), keep=False).entry is None


@pytest.mark.parametrize("stop", [PIECE, SEGMENT, SEGMENT + PIECE, 2 * SEGMENT])
def test_an_interrupted_one_goes_on(
    loaded: Any, library: Library, finder: Path, tmp_path: Path, stop: int
) -> None:
    with esa(loaded, library, finder, events=Seen(stop)) as one, pytest.raises(KeyboardInterrupt):
        one.ingest(note())
    assert library.entries() == []
    seen = Seen()
    with esa(loaded, library, finder, events=seen) as two:
        book = two.ingest(note())
    assert seen.told[1] == stop // SEGMENT * SEGMENT + PIECE
    with esa(loaded, Library(tmp_path / "whole"), finder) as three:
        assert torch.equal(index_of(three.ingest(note())), index_of(book))


@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="no fork")
def test_a_killed_one_goes_on(loaded: Any, finder: Path, tmp_path: Path) -> None:
    def work(root: Path) -> None:
        with esa(loaded, Library(root), finder) as one:
            one.ingest(note(TEXT * 4))

    needs, cut = taken(partial(work, tmp_path / "whole")), 0
    for n in range(12):
        cut += killed(partial(work, tmp_path / "killed"), needs * (n + 1) / 16)
    assert cut, "the kills came too late to mean anything"
    assert ended(child(partial(work, tmp_path / "killed"))) == 0
    [whole], [entry] = (Library(tmp_path / name).entries() for name in ("whole", "killed"))
    assert entry.segments == whole.segments
    for name in entry.segments:
        files = [tmp_path / root / "segments" / f"{name}.seg" for root in ("whole", "killed")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_flipped_byte_is_named(loaded: Any, library: Library, finder: Path) -> None:
    with esa(loaded, library, finder) as one:
        entry = one.ingest(note()).entry
        path = library.root / "segments" / f"{entry.segments[1]}.seg"
        data = bytearray(path.read_bytes())
        data[entry.layout.locate_layers(SEGMENT)[0].start + 7] ^= 4
        path.write_bytes(data)
        for use in (one.find, one.ingest, one.open):
            with pytest.raises(LibraryError, match=f"{path.name} is damaged") as caught:
                use(note())
            assert f"esa library rm {entry.id}" in caught.value.hint
        with pytest.raises(LibraryError, match=path.name):
            one.stored(entry)
        assert [path.name in error.message for error in library.verify(entry)] == [True]


def test_the_words_are_stored_beside_the_index(
    loaded: Any, library: Library, finder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with esa(loaded, library, finder) as one:
        made = one.ingest(note())
    path = library.root / "documents" / f"{made.entry.key}.words"
    stored = path.read_bytes()

    def opened(**options: Any) -> None:
        with esa(loaded, library, finder, **options) as two:
            found: Any = two.find(note())
        assert found.words.ids.tolist() == made.words.ids.tolist()  # type: ignore[union-attr]

    with monkeypatch.context() as patch:
        patch.setattr(index_ingest, "list_sentence_words", None)  # the stored words are used
        opened()
    foreign = pack_checksummed_file("words", b"0" * 40 + b"\n" + made.words.serialise_table())[0]
    for damaged in (b"", stored[:-1] + bytes([stored[-1] ^ 1]), foreign, None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        assert library.verify(made.entry) == [], "it is repaired, so nothing is to be removed"
        opened(keep=False)
        assert not path.exists() or path.read_bytes() == damaged, "nothing is kept"
        with filelock.FileLock(library.root / "locks" / f"{made.entry.key}.lock"):
            opened()
        assert not path.exists() or path.read_bytes() == damaged, "another process is at it"
        opened()
        assert path.read_bytes() == stored
    with monkeypatch.context() as patch:
        patch.setattr("esa_cli.qa.finding.words._digest_word_cutting_rules", lambda: "later")
        opened()
        assert path.read_bytes() != stored
    library.remove(made.entry)
    assert not path.exists()
    library.store_word_index(made.entry, b"")
    assert not path.exists(), "there is no such document"
