"""Votes from an index of the voting heads' keys: the formula, the rows' own votes, storing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli.documents.document import Document
from esa_cli.errors import PresetError
from esa_cli.methods.consensus import Consensus, ConsensusTurn
from esa_cli.qa.answering.reply import Turn
from esa_cli.qa.answering.session import Session
from esa_cli.qa.api import Esa
from esa_cli.qa.books import Book
from esa_cli.qa.finding import head_encoder, index_votes
from esa_cli.qa.finding.load_encoder import index_sizes
from esa_cli.qa.ingestion import index_ingest
from esa_cli.qa.ingestion.ingest_events import IngestEvents
from esa_cli.qa.passage_search import PassageSearch
from esa_cli.qa.planning.plan import Planner
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.resolved_preset import resolve
from esa_cli.storage.library import Library

TEXT = "The gate opens at nine, and the keeper has the only key. " * 3
OTHER = "A grey boat lies at the pier, and nobody knows whose it is. " * 2
QUESTION = "When does the gate open?"
HEADS = [[1, 2], [0, 1], [1, 3], [1, 0]]
SETTINGS = [
    "answer.from=text", "answer.votes=1.0", "selector={name: consensus, rounds: 2, passage: 16}",
    "position={name: contiguous, distance: 64}", "reading=local",
]  # fmt: skip


def chosen(*more: str, heads: object = HEADS, contrast: bool = True) -> preset.Preset:
    score = f"score={{name: vote, contrast: {str(contrast).lower()}, heads: {heads}}}"
    return preset.load("tiny-random", [score, *SETTINGS, *more])


def note(text: str) -> Document:
    return Document("note.txt", text, "/note.txt", "utf-8", len(text))


def votes(asker: Esa, *books: Book) -> list[torch.Tensor]:
    found = asker._search.votes(QUESTION, asker.placed(books))
    return [one for one in found if one is not None]


@pytest.mark.parametrize("contrast", [True, False])
def test_they_are_those_of_a_plain_loop(
    loaded: Any, monkeypatch: pytest.MonkeyPatch, contrast: bool
) -> None:
    monkeypatch.setattr(index_votes, "TILE", 7)
    with Esa(loaded, chosen(contrast=contrast)) as asker:
        books = [asker.ingest(note(text)) for text in (TEXT, OTHER)]
        found = votes(asker, *books)
        assert [one.shape[0] for one in found] == [one.tokens for one in books]
        asked = asker.documents.index.encoder.question(QUESTION)  # type: ignore[union-attr]
    keys = torch.cat([one.index.rows(0, one.tokens) for one in books if one.index])
    kept = {
        pair: keys[:, 16 * at : 16 * at + 16] for at, pair in enumerate([(0, 0), (1, 0), (1, 1)])
    }
    first, last = (at - asked.start for at in asked.question)
    want = torch.zeros(keys.shape[0])
    for trace in asked.traces:
        queries = trace.queries[:, asked.start :]
        at = torch.full((queries.shape[1],), 64)
        queries = trace.rope.rotate(queries, at)
        each = torch.zeros(queries.shape[1], keys.shape[0])
        for layer, head in HEADS:
            if layer == trace.layer:
                logits = trace.scale * queries[head] @ kept[layer, head // 2].T
                each += logits.softmax(dim=1)
        own, others = each[first:last].amax(0), torch.cat((each[:first], each[last:])).amax(0)
        want += (own - others).clamp(min=0) if contrast else each.amax(0)
    torch.testing.assert_close(torch.cat(found), want, atol=1e-6, rtol=1e-4)
    assert want.max() > 0


def test_they_are_those_of_the_rows_of_one_segment(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveyed: list[ConsensusTurn] = []
    after = Consensus.after_survey

    def seen(self: Consensus, turn: ConsensusTurn | None) -> ConsensusTurn:
        surveyed.append(after(self, turn))
        return surveyed[-1]

    monkeypatch.setattr(Consensus, "after_survey", seen)
    with Esa(loaded, chosen()) as asker:
        book = asker.ingest(note(TEXT))
        [found] = votes(asker, book)
        start = len(asker.session.prompt.head())
    window = "window={initial: %d, selected: 32, local: 8, chunk: 64, ending: 0, dense: %d}"
    with Session(loaded.model, loaded.tokenizer, chosen(window % (start, 400))) as session:
        session.read(TEXT)
        keys, _ = session.cache.memory(1).store.span(start, session.document_tokens)
        assert book.index is not None
        kept = book.index.rows(0, book.tokens).view(-1, 3, 16)
        torch.testing.assert_close(kept[:, 1:].transpose(0, 1), keys, atol=0.02, rtol=0)
        session.use(chosen(window % (start, 0)))
        session.ask(QUESTION, max_new_tokens=1)
    assert surveyed[0].surveyed is not None
    want = surveyed[0].surveyed.scores
    assert want.shape == found.shape
    assert want.max() > 1e-4
    torch.testing.assert_close(found, want, atol=2e-4, rtol=0)


class Stop(IngestEvents):
    def progress(self, done: int, total: int) -> None:
        raise KeyboardInterrupt


def test_they_are_stored_and_go_on_where_they_stopped(
    loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_encoder, "SEGMENT_TOKENS", 32)
    monkeypatch.setattr(head_encoder, "CONTEXT_TOKENS", 8)
    monkeypatch.setattr(index_ingest, "PIECE", 64)
    monkeypatch.setattr("esa_cli.qa.finding.reduced_keys.SEGMENT", 64)
    text, library, heads = TEXT * 3, Library(tmp_path), chosen(heads=[[0, 1], [0, 3]])
    with Esa(loaded, heads) as asker:
        book = asker.ingest(note(text))
        want = book.index
        assert want is not None
    with (
        Esa(loaded, heads, library=library, events=Stop()) as asker,
        pytest.raises(KeyboardInterrupt),
    ):
        asker.ingest(note(text))
    calls: list[int] = []
    handles = [
        layer.register_forward_pre_hook(lambda *given, at=at: calls.append(at))
        for at, layer in enumerate(loaded.model.base_model.layers)
    ]
    with Esa(loaded, heads, library=library) as asker:
        stored = asker.ingest(note(text))
        assert stored.index is not None
        assert torch.equal(stored.index.records, want.records)
        assert set(calls) == {0}, "no later layer has a voting head"
        [entry] = library.entries()
        planner = Planner(
            resolve(heads), loaded.model.config.to_dict(), dtype=torch.float32, device="cpu",
            index=index_sizes(heads),
        )  # fmt: skip
        assert planner.plan(stored.tokens).reduced_keys == want.nbytes == stored.index.nbytes
        assert library.size_of(stored.tokens, want.layout) == library.size_of(
            entry.tokens, entry.layout
        )
        assert asker.ingest(note(text)).read_s == 0
        assert asker.ask(QUESTION, [stored]).read
    for handle in handles:
        handle.remove()
    with Esa(loaded, chosen(), library=library) as asker:
        assert asker.find(note(text)) is None, "it is of other heads"


def test_a_segment_sees_what_is_just_before_it(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_encoder, "CONTEXT_TOKENS", 8)
    ids = loaded.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    with Esa(loaded, chosen()) as asker:
        encoder: Any = asker.documents.index and asker.documents.index.encoder
        monkeypatch.setattr(head_encoder, "SEGMENT_TOKENS", 32)
        found = encoder.encode(ids, 32, 64)
        monkeypatch.setattr(head_encoder, "SEGMENT_TOKENS", 40)
        torch.testing.assert_close(found, encoder.encode(ids[24:64], 0, 40)[8:])


def test_an_elliptic_question_is_voted_for_with_the_one_before(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = PassageSearch.votes

    def votes(search: PassageSearch, question: str, books: Any) -> list[torch.Tensor | None]:
        asked.append(question)
        return real(search, question, books)

    monkeypatch.setattr(PassageSearch, "votes", votes)
    with Esa(loaded, chosen()) as asker:
        asker.ask("When?", [asker.ingest(note(TEXT))], history=[Turn(QUESTION, "At nine.")])
    assert asked == [f"{QUESTION} When?"]


def test_refusals(loaded: Any) -> None:
    for wrong in (chosen(heads=[]), preset.load("tiny-random", SETTINGS[:2])):
        with pytest.raises(PresetError, match="needs the heads that vote"):
            index_sizes(wrong)
        with pytest.raises(PresetError, match="needs the heads that vote"):
            Esa(loaded, wrong)
    with pytest.raises(PresetError, match="votes must be 0 where there is an answer"):
        index_sizes(chosen("answer.finder=smollm2-135m"))
