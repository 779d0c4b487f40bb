"""Documents prefilled on their own and asked together; one document opened again. Tiny random
model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from esa_cli.errors import UsageError
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.memory_store import locate_document_texts

TEXT = "The gate opens at nine and the market closes at dusk. " * 30
OTHER = "A grey boat lies at the pier, and nobody knows whose it is. " * 25
QUESTION = "When does the gate open?"


@pytest.fixture
def session(loaded: Any) -> Iterator[Session]:
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random")) as session:
        yield session


def test_an_opened_document_answers_as_when_it_was_read(session: Session) -> None:
    with pytest.raises(UsageError, match="no document"):
        session.open([])
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
    head = len(session.prompt.encode_prompt_start())
    assert session.document_tokens == sum(len(held.ids) for held in helds) - head
    assert session.ask(QUESTION).text == session.ask(QUESTION).text
    seen: set[int] = set()
    session.ask(QUESTION, trace=lambda chunk: seen.update(chunk.far.tolist()))
    ranges = locate_document_texts(helds)
    assert all(any(at in rows for at in seen) for rows in ranges)
