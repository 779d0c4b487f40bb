"""Documents read on their own and asked together; one document opened again. Tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from esa_cli.attention.compression import Linear
from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import Turn
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets import preset
from esa_cli.storage.joined_store import (
    JoinedStore,
    PerDocumentMaps,
    PrefilledDocument,
    StoreSlice,
    concatenate,
    text_rows,
)
from esa_cli.storage.memory_store import MemoryStore

TEXT = "The gate opens at nine and the market closes at dusk. " * 30
OTHER = "A grey boat lies at the pier, and nobody knows whose it is. " * 25
QUESTION = "When does the gate open?"
G, D, R = 2, 4, 3


@pytest.fixture
def session(loaded: Any) -> Iterator[Session]:
    with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random")) as session:
        yield session


def store(tokens: int, seed: int, features: bool = True) -> MemoryStore:
    made = MemoryStore(G, D, torch.float32, torch.device("cpu"))
    random = torch.Generator().manual_seed(seed)
    made.append(*(torch.randn(G, tokens, D, generator=random) for _ in range(2)))
    if features:
        made.append_features(torch.randn(tokens, R, generator=random))
    return made


def joined_and_plain(tail: int = 5) -> tuple[JoinedStore, MemoryStore]:
    """Rows [0, 40) and [7, 30) of two stores, and a tail; and the same rows in one store."""
    first, second, last = store(40, 1), store(30, 2), store(tail, 3)
    parts = [StoreSlice(first, 0, 40), StoreSlice(second, 7, 30)]
    joined = JoinedStore(parts, MemoryStore(G, D, torch.float32, torch.device("cpu")))
    plain = MemoryStore(G, D, torch.float32, torch.device("cpu"))
    for one, low, high in [(first, 0, 40), (second, 7, 30), (last, 0, tail)]:
        plain.append(*one.span(low, high))
        for _, features in one.feature_blocks(low, high):
            plain.append_features(features)
    joined.append(*last.span(0, tail))
    joined.append_features(next(last.feature_blocks(0, tail))[1])
    return joined, plain


def test_a_joined_store_is_one_store_of_the_same_rows() -> None:
    joined, plain = joined_and_plain()
    assert len(joined) == len(plain) == 68
    assert joined.reduced == 68
    for start, stop in [
        (0, 68),
        (0, 40),
        (40, 63),
        (39, 41),
        (62, 65),
        (63, 68),
        (20, 20),
        (68, 68),
    ]:
        for mine, theirs in zip(joined.span(start, stop), plain.span(start, stop), strict=True):
            assert torch.equal(mine, theirs), (start, stop)
    for at in ([0, 39, 40, 62, 63, 67], [], [41], [64, 66], list(range(68))):
        rows = torch.tensor(at, dtype=torch.long)
        for mine, theirs in zip(joined.gather(rows), plain.gather(rows), strict=True):
            assert torch.equal(mine, theirs), at


@pytest.mark.parametrize("most", [3, 100])
def test_blocks_cover_the_rows_in_order_and_never_two_documents(most: int) -> None:
    joined, plain = joined_and_plain()
    for start, stop in [(0, 68), (5, 50), (45, 66)]:
        for kind in ("key_blocks", "feature_blocks"):
            at = start
            for begin, block in getattr(joined, kind)(start, stop, most):
                count = block.shape[-2]
                assert begin == at
                assert count <= most
                assert not (begin < 40 < begin + count)
                assert not (begin < 63 < begin + count)
                theirs = torch.cat([b for _, b in getattr(plain, kind)(at, at + count)], -2)
                assert torch.equal(block, theirs)
                at += count
            assert at == stop
        parts = [keys for _, keys in joined.key_blocks(start, stop, most, [1])]
        assert torch.equal(torch.cat(parts, 1), plain.span(start, stop)[0][[1]])


def test_only_the_tail_is_taken_back() -> None:
    joined, _ = joined_and_plain()
    joined.crop(-3)
    assert len(joined) == 65
    with pytest.raises(ValueError, match="at least -2, got -3"):
        joined.crop(-3)


def test_every_document_is_scored_with_its_own_queries() -> None:
    q = torch.randn(2, G * D)
    maps = [Linear(torch.randn(G * D, R), torch.randn(G * D, R)) for _ in range(2)]
    both = PerDocumentMaps([0, 40], maps)
    for at, part in [(0, 0), (39, 0), (40, 1), (90, 1)]:
        assert both.at(at) is maps[part]
    assert torch.equal(both.queries(q), maps[1].queries(q))
    assert maps[0].at(77) is maps[0]


def test_a_later_document_leaves_out_the_head() -> None:
    documents = [
        PrefilledDocument([1, 2, 3, 4], [store(4, 1)], [None], 2),
        PrefilledDocument([1, 5], [store(2, 2)], [None], 1),
    ]
    ids, stores, projections = concatenate(documents)
    assert ids == [1, 2, 3, 4, 5]
    assert len(stores[0]) == 5
    assert projections == [None]
    assert text_rows(documents) == [range(2, 4), range(4, 5)]


def test_an_opened_document_answers_as_when_it_was_read(session: Session) -> None:
    session.read(TEXT)
    answer, held = session.ask(QUESTION).text, session.prefilled_document()
    session.read(OTHER)
    session.open([held])
    assert session.ask(QUESTION).text == answer
    assert session.ask(QUESTION).text == answer
    assert len(held.stores[0]) == len(held.ids)


def test_two_documents_are_asked_together(session: Session) -> None:
    helds = []
    for text in (TEXT, OTHER):
        session.read(text)
        helds.append(session.prefilled_document())
    session.open(helds)
    head = len(session.prompt.head())
    assert session.document_tokens == sum(len(held.ids) for held in helds) - head
    assert session.ask(QUESTION).text == session.ask(QUESTION).text
    seen: set[int] = set()
    session.ask(QUESTION, trace=lambda chunk: seen.update(chunk.far.tolist()))
    ranges = text_rows(helds)
    assert all(any(at in rows for at in seen) for rows in ranges)


def test_no_document_is_refused(session: Session) -> None:
    with pytest.raises(UsageError, match="no document"):
        session.open([])


def test_earlier_turns_come_between_document_and_question(session: Session) -> None:
    session.read(TEXT)
    turns = [Turn("What closes?", "The market."), Turn("When?", "At dusk.")]
    before, ids = session.prompt.history(turns), session.prompt.question(QUESTION, later=True)
    text = session.tokenizer.decode(before + ids)
    assert all(text.count(word) == 1 for turn in turns for word in turn)
    assert text.index("closes") < text.index("The market") < text.index("At dusk")
    low, high = session.prompt.question_span(QUESTION, later=True)
    assert session.tokenizer.decode(ids[low:high]).strip() == QUESTION
    first = session.ask(QUESTION, history=turns)
    assert session.cache.get_seq_length() == session.document_tokens
    assert session.ask(QUESTION, history=turns).text == first.text


def test_turns_beyond_the_window_are_refused(session: Session) -> None:
    session.use(preset.load("tiny-random", ["window.ending=0"]))
    session.read(TEXT)
    long = [Turn("What? " * 2000, "This.")]
    with pytest.raises(UsageError, match="window has room") as caught:
        session.ask(QUESTION, history=long)
    assert "oldest turns" in str(caught.value.hint)
    assert session.ask(QUESTION).text


def test_earlier_turns_stay_in_view_while_the_question_is_read_twice(session: Session) -> None:
    """Only what is behind the document is local here, and none of it is ever selected."""
    both = ["window.ending=0", "selector.name=consensus", "selector.rounds=2", "score.name=vote"]
    session.use(preset.load("tiny-random", both))
    session.read(TEXT)
    turns = [Turn("What closes?", "The market."), Turn("When?", "At dusk.")]
    begins: list[int] = []
    session.ask(
        QUESTION,
        history=turns,
        max_new_tokens=2,
        trace=lambda chunk: begins.append(chunk.start - chunk.local),
    )
    assert set(begins) == {session.document_tokens}
