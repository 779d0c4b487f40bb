"""Words, BM25 of windows, matched words, and names that no document mentions, against loops."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from safetensors.numpy import load, save

from esa_cli.documents.document import Document
from esa_cli.qa.finding.passage_finder import Book, PassageFinder
from esa_cli.qa.finding.spelling import ALIKE, MOST, PART, SHORTEST, SHORTEST_PART, SpellingIndex
from esa_cli.qa.finding.word_search import find_passages_with_words
from esa_cli.qa.finding.words import (
    AROUND,
    WINDOW_WORDS,
    LexicalIndex,
    SentenceWords,
    TextWindow,
    capitals_indicate_names,
    cut_sentence_windows,
    find_sentence_spans,
    find_shared_words,
    list_sentence_words,
    make_lowercase_predicate,
)
from esa_cli.system.text import count_words_of_text, find_content_words

NAMES = ("Anna", "Boris", "Clara", "David", "Emma")
PLACES = ("harbour", "market", "mill", "tower", "orchard", "bridge", "chapel")


def story(sentences: int, seed: int = 0) -> str:
    out = []
    for n in range(sentences):
        name, place = NAMES[(n * 7 + seed) % 5], PLACES[(n * n + seed) % 7]
        out.append(f"{name} walked to the {place} on day {n % 13} with {n % 5} old friends.")
        if n % 6 == 5:
            out.append("\n\n")
    return " ".join(out)


def index_texts(texts: Sequence[str]) -> LexicalIndex:
    return LexicalIndex([list_sentence_words(text) for text in texts])


def bm25(texts: Sequence[str], question: str) -> list[float]:
    """idf * tf / (tf + k1 (1 - b + b |d| / mean |d|)), each word as often as it is asked."""
    documents = [find_content_words(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    out = []
    for words in documents:
        total = 0.0
        for asked in find_content_words(question):
            having = sum(asked in other for other in documents)
            idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            count = words.count(asked)
            total += idf * count / (count + 1.5 * (0.25 + 0.75 * len(words) / mean))
        out.append(total)
    return out


def windows_of(text: str, words: int) -> list[TextWindow]:
    spans = find_sentence_spans(text)
    return cut_sentence_windows(spans, [count_words_of_text(text[a:b]) for a, b in spans], words)


def expected(texts: Sequence[str], question: str) -> list[float]:
    def cut(words: int) -> list[tuple[int, TextWindow]]:
        return [(n, one) for n, text in enumerate(texts) for one in windows_of(text, words)]

    own = cut(WINDOW_WORDS)
    out = bm25([texts[n][one.start : one.end] for n, one in own], question)
    for size, weight in AROUND:
        wide = cut(size)
        scores = bm25([texts[n][one.start : one.end] for n, one in wide], question)
        for at, (number, window) in enumerate(own):
            middle = window.start + window.end
            near = min(
                (i for i, (n, _) in enumerate(wide) if n == number),
                key=lambda i: (abs(wide[i][1].start + wide[i][1].end - middle), -i),
            )
            out[at] += weight * scores[near]
    return out


@pytest.mark.parametrize(
    "question",
    ["Who walked to the harbour?", "Anna Anna mill", "Which friends had Boris on day 11?"],
)
@pytest.mark.parametrize("texts", [[story(90)], [story(40), "", story(60, 3), "Emma slept."]])
def test_scores_are_bm25_of_the_window_and_of_those_around_it(
    texts: list[str], question: str
) -> None:
    index = index_texts(texts)
    want = torch.tensor(expected(texts, question))
    torch.testing.assert_close(index.compute_bm25_scores(question), want, atol=1e-4, rtol=1e-4)
    assert len(index) == len(want) == len(index.documents) == len(index.windows)
    assert index.documents == sorted(index.documents)


def test_a_question_is_compared_as_each_document_is_stemmed() -> None:
    texts = [
        "The houses of the town were sold, and the captain walked home to his ship.",
        "Die Häuser der Stadt wurden verkauft, und der Kapitän ging nicht auf sein Schiff.",
        "Les chevaux de l’amiral étaient fatigués, et il ne savait pas qui les avait vus.",
    ]
    index = index_texts(texts)
    for question, document in (
        ("Which house was sold?", 0), ("das Haus des Kapitäns", 1), ("amiral et cheval", 2),
    ):  # fmt: skip
        assert index.documents[int(index.compute_bm25_scores(question).argmax())] == document
        assert all(index.has_word(word) for word in question.split()[-1:])
    for text, question in zip(texts, ("houses", "Haus", "cheval"), strict=True):
        alone = index_texts([text]).compute_bm25_scores(question)
        assert (alone > 0).all(), "as with others, so alone"
    assert not index.has_word("Starbuck")


TEXTS = [
    "",
    " \n\n ",
    "... --- ...",
    "The whales swam. A whale's Whale was swimming!\n\nIt was not the whale, Mr. Ahab.",
    "ship鲸鱼boats 在海里。 İstanbul's \ud800 ends.\n\n" + "x" * 1500,
]


def of_each_sentence(words: SentenceWords) -> list[list[str]]:
    ends = words.ends.tolist()
    return [[words.vocabulary[one] for one in words.ids[a:b]] for a, b in pairwise(ends)]


@pytest.mark.parametrize("text", TEXTS)
def test_the_words_of_each_sentence_are_stored_and_read(text: str) -> None:
    spans, stored = (
        find_sentence_spans(text),
        SentenceWords.parse_table(list_sentence_words(text).serialise_table()),
    )
    assert list(map(tuple, stored.spans.tolist())) == spans
    assert stored.counts.tolist() == [count_words_of_text(text[a:b]) for a, b in spans]
    assert of_each_sentence(stored) == [find_content_words(text[a:b]) for a, b in spans]
    assert len(set(stored.vocabulary)) == len(stored.vocabulary)


def test_another_version_or_form_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    data = list_sentence_words(TEXTS[3]).serialise_table()
    assert SentenceWords.parse_table(b"") is SentenceWords.parse_table(b"x" * 99) is None
    less = {name: one for name, one in load(data).items() if name != "ends"}
    assert SentenceWords.parse_table(save(less)) is None
    monkeypatch.setattr("esa_cli.qa.finding.words._digest_word_cutting_rules", lambda: "another")
    assert SentenceWords.parse_table(data) is None


@pytest.mark.parametrize(
    ("text", "question", "words"),
    [
        ("He opened the gates; a gateway.", "When do the gates open?", ["opened", "gates"]),
        ("x図書 and abc図", "abc図書", ["図書", "abc"]),
        ("李's gate, 李'图", "李's and 李'图", ["李", "s", "李", "图"]),
        ("Ahab’s ship; AHAB‘S", "Ahab's", ["Ahab’s", "AHAB‘S"]),
        ("Do\u0301lokhov and l’Italie", "Dolokhov in Italie", ["Do\u0301lokhov", "Italie"]),
        ("Er sah die Häuser, aber nicht das Haus.", "Haus", ["Häuser", "Haus"]),
    ],
)
def test_the_words_of_the_question_are_found(text: str, question: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in find_shared_words(text, question)] == words


TEXT = (
    "When it was dark, Captain Ahab stood on the deck of the Pequod and said nothing to Starbuck."
)
SMALL = {"isle", "man", "director", "old"}


@pytest.mark.parametrize(
    ("question", "share"),
    [
        ("Where did Captain Ahab stand?", 0),
        ("What did Ahab’s mate hear from Áhab?", 0),
        ("Where did Captain Nemo stand?", 1),
        ("What did Ahab Bennet say?", 1 / 2),
        ("Nemo, where is he?", 0),
        ("What is it? Nemo?", 0),
        ("Who was the king of the Isle of Man?", 0),
        ("Who was the Director of the USA, or its CEO?", 0),
        ("What did Mr Ahab say to Dr. Starbuck?", 0),
        ("What did agent Q say?", 1),
        ("Who was the envoy of the EU?", 0),
    ],
)
def test_names_that_never_occur(question: str, share: float) -> None:
    assert PassageFinder([book(TEXT)]).rate_unmentioned_names(question, small_word) == share


def book(text: str) -> Book:
    return Book(Document("a", text, "a", "utf-8", 1), None, torch.zeros(0, 2))


def small_word(word: str) -> bool:
    return word.lower() in SMALL


def test_where_nouns_are_capitalised_nothing_is_a_name() -> None:
    german = (
        "Er war früh auf und ging mit der Schwester zu dem alten Haus. Es ist nicht weit, sagte "
        "sie, und sah ihn an. Dann sang sie ein wenig und lief voraus."
    )
    assert capitals_indicate_names([TEXT])
    assert not capitals_indicate_names([german])
    assert (
        PassageFinder([book(german)]).rate_unmentioned_names("Wo stand der Kapitän?", small_word)
        == 0
    )
    assert not PassageFinder([book(german)]).list_names("Wo stand der Kapitän?", small_word)


def test_names_in_a_question() -> None:
    wanted = {
        "How old is Peter Coffin's wife, whom I met on Nantucket?": ["Peter Coffin", "Nantucket"],
        "Ahab went where, and who was the king, or the CEO?": [],
        "HOW OLD IS AHAB?": [],
        "Who spoke to the March Hare on Monday, in March, or in June's last week?": ["March Hare"],
    }
    for question, names in wanted.items():
        assert PassageFinder([book(TEXT)]).list_names(question, small_word) == names, question


class Vocabulary:
    """A tokenizer of whole words, the frequent ones first; others are letters."""

    words = ("a", "holiday", "Will", "Holiday", "will", "bell")

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        ids: list[int] = []
        for word in text.split():
            known = word in self.words
            ids += [self.words.index(word)] if known else [100 + ord(letter) for letter in word]
        return {"input_ids": ids}


def test_words_that_are_written_small_as_a_rule() -> None:
    small = make_lowercase_predicate(Vocabulary())
    words = {"Holiday": True, "Will": False, "Bell": True, "Ahab": False}
    assert {word: small(word) for word in words} == words


@pytest.mark.parametrize(("capitals", "names"), [(0, True), (5, True), (6, False), (20, False)])
def test_capitals_mean_names_up_to_a_quarter_of_the_words(capitals: int, names: bool) -> None:
    words = ["Word" if n < capitals else "word" for n in range(20)]
    assert capitals_indicate_names(["x " + " ".join(words) + "."]) is names
    assert capitals_indicate_names([]) is True


def test_the_best_passages_by_words_have_the_most_of_them() -> None:
    """Against a loop over the windows of random sentences."""
    rng = random.Random(4)
    texts = [
        " ".join(f"{' '.join(rng.choices(PLACES, k=rng.randrange(1, 9)))}." for _ in range(40))
        for _ in range(2)
    ]
    books = [book(text) for text in texts]
    for query in ("mill tower", "harbour mill orchard chapel", "bridge", "mill mill", "zeppelin"):
        passages, most, words = find_passages_with_words(query, books)
        wanted = set(find_content_words(query))
        counts = [
            (len(wanted & set(find_content_words(text[one.start : one.end]))), number, one)
            for number, text in enumerate(texts)
            for one in windows_of(text, WINDOW_WORDS)
        ]
        assert words == len(wanted)
        assert most == max(count for count, *_ in counts)
        best = {texts[n][one.start : one.end] for count, n, one in counts if count == most}
        assert {one.text for one in passages} <= (best if most else set())
        assert bool(passages) is (most > 0)
        assert [one.score for one in passages] == sorted(
            [one.score for one in passages], reverse=True
        )


MISSING = [
    ("The keeper had a heron in 1,803. Anna's knives were in the cafés of Ulm, and she ate.", {
        "What did Queen Victoria's keeper call the herons?": ["Queen", "Victoria"],
        "Who sold the submarine to O’Brien for 17 marks?": ["submarine", "O’Brien", "17"],
        "What is the knife of Ánna, the CAFE or a Café in 1803?": [],
        "What did she eat, and who built or bought it?": [],  # verbs have irregular forms
        "victoria submarine": [],  # perhaps in another language
        "Wer ist die Königin Victoria?": [],
        "Who wrote 灯塔 and Виктория?": ["Виктория"],
    }),
    ("Gregor lag auf dem Rücken, und die Schwester warf nicht die Äpfel in den Blumentopf.", {
        "Wer ist Victoria?": ["Victoria"],
        "Was ist mit dem Apfel und dem Topf, und wer wirft?": [],
        "Where was Queen Victoria in the evening?": [],
    }),
    ("Кто был в доме у Павла? Он не был дома, и мы все это знаем.", {
        "Где был Павел?": [],  # Павла has another stem
        "Где была Виктория?": ["Виктория"],
    }),
    ("El capitán no era de la ciudad, pero su barco estaba en Cádiz.", {
        "¿Quién era el capitán de Cadiz?": [],
        "¿Dónde está Sevilla?": ["Sevilla"],
    }),
    ("林秀是一个寡妇，住在灯塔旁边的村子里。" * 9, {
        "寡妇 是 Victoria 谁?": [],
        "Who is the queen Victoria?": [],
    }),
    ("Він був у місті, а вона не знала, що це було.", {"Хто це був, Вікторія?": []}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "questions"), MISSING)
def test_words_that_no_document_has(text: str, questions: dict[str, list[str]]) -> None:
    index = index_texts([text])
    for question, missing in questions.items():
        assert index.list_missing_words(question) == missing, question
    both = index_texts([text, "Queen Victoria wrote to the queen and the submarine. O'Brien, 17!"])
    for question in questions:
        assert not {"Queen", "Victoria", "submarine"} & set(both.list_missing_words(question))


PROSE = "The gate opens at nine. “Who is there?” he asked.\n\n  It was Mr. Hall. Nobody\nspoke.\n"


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in find_sentence_spans(text)]


def test_sentences_of_all_paragraphs_without_white_space_around_them() -> None:
    cut = "The gate opens at nine. | “Who is there?” he asked. | It was Mr. Hall. | Nobody | spoke."
    assert " | ".join(sentences(PROSE)) == cut


def windows_by_rule(counts: list[int], words: int) -> list[tuple[int, int]]:
    """Sentences [first, last) of each window, from sums alone."""
    out, first = list[tuple[int, int]](), 0
    while True:
        last = first + 1
        while last < len(counts):
            total = sum(counts[first:last])
            if total >= words or (total and total + counts[last] > 1.25 * words):
                break
            last += 1
        out.append((first, last))
        if last == len(counts):
            return out
        half = sum(counts[first:last]) / 2
        middle = next(n for n in range(first, last + 1) if sum(counts[first:n]) >= half)
        first = max(first + 1, middle)


@pytest.mark.parametrize("seed", range(12))
def test_windows_are_those_of_the_rule(seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.choice([0, 1, 2, 3, 5, 8, 20]) for _ in range(rng.randrange(1, 60))]
    spans = [(7 * n, 7 * n + 5) for n in range(len(counts))]
    for words in (1, 4, 8, 12, 16):
        windows = cut_sentence_windows(spans, counts, words)
        assert [(one.first, one.last) for one in windows] == windows_by_rule(counts, words)
        for one in windows:
            assert (one.start, one.end) == (7 * one.first, 7 * (one.last - 1) + 5)
    assert cut_sentence_windows([], [], 60) == []


def pairs(stem: str) -> set[str]:
    edged = f"\n{stem}\n"
    return {edged[at : at + 2] for at in range(len(edged) - 1)}


def by_loop(stems: Sequence[str], word: str) -> list[tuple[int, float]]:
    weights = []
    for number, stem in enumerate(stems):
        one, other = pairs(stem), pairs(word)
        dice = 2 * len(one & other) / (len(one) + len(other))
        part, whole = sorted((stem, word), key=len)
        similar = dice**2 if dice >= ALIKE and stem[0] == word[0] else 0.0
        end = PART * len(part) / len(whole) if len(part) >= SHORTEST_PART else 0.0
        weights.append((number, max(similar, end if whole.endswith(part) else 0.0)))
    best = sorted(weights, key=lambda one: -one[1])[:MOST]
    short = len(word) < SHORTEST or any(letter.isdigit() for letter in word)
    return [] if short else [one for one in best if one[1] > 0]


@pytest.mark.parametrize("letters", ["ab", "abcdefg", "aé中\U00020000x3"])
def test_similar_stems_are_those_of_a_loop(letters: str) -> None:
    dice = random.Random(0)

    def draw(most: int) -> str:
        return "".join(dice.choices(letters, k=dice.randint(1, most)))

    for _ in range(40):
        stems = list(dict.fromkeys(draw(9) for _ in range(dice.randint(0, 60))))
        index = SpellingIndex(stems)
        for word in (draw(12) for _ in range(20)):
            assert index.find_similar_stems(word) == by_loop(stems, word)


GERMAN = """Der Behälter für die Flüssigkeit ist undicht, und das ist nicht gut.

Die Zeitung wurde von der Regierung verboten, aber niemand wußte das."""
ENGLISH = """The government of the island paid for the lamp.

Elizabeth walked to the harbour in the rain.

The keeper's name was Starling, and it was 1871."""


@pytest.mark.parametrize(
    ("text", "question", "sentence"),
    [
        (GERMAN, "Wo ist der Bremsflüssigkeitsbehälter?", 0),
        (GERMAN, "was verbot die regirung", 1),
        (GERMAN, "BEHAELTER", 0),
        (ENGLISH, "goverment", 0),
        (ENGLISH, "Where did Elisabeth go?", 1),
    ],
)
def test_words_with_typing_errors_and_compounds_find_their_sentence(
    text: str, question: str, sentence: int
) -> None:
    texts = [text[start:end] for start, end in find_sentence_spans(text)]
    index = index_texts(texts)
    assert int(index.compute_bm25_scores(question).argmax()) == sentence
    assert index.compute_bm25_scores(question).max() > 0


@pytest.mark.parametrize("question", ["zxcvqq", "Who is Starbuck?", "1872", "Where is Lampedusa?"])
def test_nonsense_other_numbers_and_absent_names_find_nothing(question: str) -> None:
    index = index_texts([ENGLISH])
    assert not index.compute_bm25_scores(question).any()
    assert not any(map(index.has_word, question.split()[-1:]))


def test_a_similar_word_counts_less_than_the_word_and_is_not_had() -> None:
    index = index_texts([ENGLISH])
    exact, similar = map(index.compute_bm25_scores, ("government", "goverment"))
    assert 0 < similar.max() < exact.max()
    assert index.has_word("governments")
    assert not index.has_word("goverment")


def test_single_chinese_characters_count() -> None:
    index = index_texts(["操大笑。", "瑜曰：“吾有一計。”", "山在東。"])
    assert int(index.compute_bm25_scores("周瑜的計策是什麼？").argmax()) == 1
    assert not index.compute_bm25_scores("魚").any()
