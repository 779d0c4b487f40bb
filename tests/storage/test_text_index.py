"""Lexical search over texts, compared with BM25 in plain loops."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from esa_cli.storage.library import Catalogue, Library
from esa_cli.storage.library.catalogue import PASSAGE_WORDS, WHOLE_TEXT_WEIGHT
from esa_cli.system.text import digest_text, find_content_words

WORDS = [f"{a}{b}" for a in ("ba", "ko", "mi", "tu", "zen") for b in ("lag", "rond", "fip", "dor")]


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    with Library(tmp_path / "library").open_catalogue() as made:
        yield made


def add(catalogue: Catalogue, *texts: str) -> list[str]:
    digests = [digest_text(text) for text in texts]
    with catalogue.run_transaction():
        for text, digest in zip(texts, digests, strict=True):
            catalogue.texts.add_text(text, digest)
    return digests


def some_texts(count: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    weights = [1 / (1 + at) for at in range(len(WORDS))]
    return [
        " ".join(draw.choices(WORDS, weights, k=draw.choice((20, 200, 700)))) for _ in range(count)
    ]


def plain_scores(texts: list[str], question: str) -> dict[str, float]:
    """BM25 as FTS5 defines it (k1 = 1.2, b = 0.75), by loops over words and passages."""
    passages: list[tuple[str, list[str]]] = []
    for text in texts:
        words = find_content_words(text)
        passages += [
            (digest_text(text), words[at : at + PASSAGE_WORDS])
            for at in range(0, len(words), PASSAGE_WORDS)
        ]
    count = len(passages)
    mean = sum(len(words) for _, words in passages) / count
    best: dict[str, float] = {}
    single: dict[tuple[str, str], float] = {}
    for digest, words in passages:
        total = 0.0
        for word in dict.fromkeys(find_content_words(question)):
            having = sum(word in others for _, others in passages)
            idf = max(math.log((count - having + 0.5) / (having + 0.5)), 1e-6) if having else 0.0
            times = words.count(word)
            score = idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * len(words) / mean))
            total += score
            single[digest, word] = max(single.get((digest, word), 0.0), score)
        best[digest] = max(best.get(digest, 0.0), total)
    for (digest, _), score in single.items():
        best[digest] += WHOLE_TEXT_WEIGHT * score
    return {digest: score for digest, score in best.items() if score > 0}


def test_scores_are_those_of_plain_loops(catalogue: Catalogue) -> None:
    texts = some_texts(40)
    add(catalogue, *texts)
    for question in ("zendor mifip", "balag", " ".join(WORDS[5:12]), "zendor zendor"):
        found = catalogue.texts.rank_texts(question)
        assert found == pytest.approx(plain_scores(texts, question))
        assert [*found.values()] == sorted(found.values(), reverse=True)


def test_what_is_removed_leaves_nothing(catalogue: Catalogue, tmp_path: Path) -> None:
    texts, others = some_texts(12), some_texts(12, seed=2)
    add(catalogue, *texts, *others)
    with catalogue.run_transaction():
        for text in others:
            catalogue.texts.remove_text(digest_text(text))
        catalogue.texts.remove_text(digest_text("was never there"))
    found = catalogue.texts.rank_texts("zendor mifip")
    assert found == pytest.approx(plain_scores(texts, "zendor mifip"))
    catalogue.texts.compact_catalogue_file()
    assert catalogue.texts.rank_texts("zendor mifip") == found


def test_words_of_any_script(catalogue: Catalogue) -> None:
    texts = ["O'Neil’s harp's strings", "東京の天気は晴れ", "ÄRGER über Öl", "\ud800 half", "..."]
    made = add(catalogue, *texts)
    for question, at in (
        ("harps of O'Neil's", 0), ("京の天", 1), ("ärger", 2), ("halves half", 3),
    ):  # fmt: skip
        assert [*catalogue.texts.rank_texts(question)] == [made[at]]
    for empty in ("", "the", "...", 'x" OR harp', "NEAR(harp)*"):
        catalogue.texts.rank_texts(empty)
    assert not catalogue.texts.rank_texts("of the")


def test_one_index_of_texts_in_many_languages(catalogue: Catalogue) -> None:
    texts = [
        "The houses of the town were sold, and Dólokhov’s brother was at home.",
        "Die Häuser der Stadt wurden verkauft, und der Kapitän ging nicht auf sein Schiff.",
        "Les chevaux de l’amiral étaient fatigués, et il ne savait pas qui les avait vus.",
        "Он спрятал серебряные ложки в сундуке, и это было тайной.",
    ]
    made = add(catalogue, *texts)
    for question, at in (
        ("Whose house?", 0), ("Dolokhov", 0), ("Haus", 1), ("ein cheval", 2), ("Amiral", 2),
        ("где серебряная ложка", 3),
    ):  # fmt: skip
        assert next(iter(catalogue.texts.rank_texts(question))) == made[at], question
    assert not catalogue.texts.rank_texts("of the, der und, et les, и это")
