"""Short passages in four languages, which the default model reads. Without a token that takes the
attention that finds nothing, all states of the model are alike, whatever the question."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from esa_cli import Esa

PASSAGES = {
    "I laid by nine hundred safe, from England.": ("How much did you lay by?", "nine hundred"),
    "My name is John Robinson, he answered.": ("What name did he give?", "John Robinson"),
    "Der Schlüssel liegt bei Frau Müller.": ("Bei wem liegt der Schlüssel?", "Frau Müller"),
    "Dicen que mi madre vendía pimientos en Villamojada.": ("¿Dónde vendía?", "Villamojada"),
    "La clef est chez Mme Vasseur.": ("Où est la clef ?", "chez Mme Vasseur"),
}
OTHER = "Wie viele Schiffe liegen im Hafen?"


@pytest.fixture(scope="module")
def reader() -> Iterator[Esa]:
    with Esa.load(library=None, device="cpu") as made:
        yield made


@pytest.mark.model
@pytest.mark.parametrize("passage", PASSAGES)
def test_a_short_passage_is_read(reader: Esa, passage: str) -> None:
    question, answer = PASSAGES[passage]
    read = reader.spans.passages.read_passages
    (right,), (wrong,) = read(question, [passage]), read(OTHER, [passage])
    assert right.log_odds - wrong.log_odds > 2
    assert answer in passage[right.span.start : right.span.end]
