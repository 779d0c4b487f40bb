"""Self-tests' tasks: facts at their places, lengths kept, everything determined by the seed."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from python_file import module_of
from task_requests import CHRONICLE, NAMES, pieces, samples, words

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks import TASKS, chronicle_task, task_sample
from esa_cli.evaluation.tasks import chronicle_task as chronicle
from esa_cli.evaluation.tasks.task_sample import Haystack, TaskQuestion


@pytest.mark.parametrize("name", NAMES)
def test_facts_stand_where_they_are_said_to(name: str) -> None:
    for sample in samples(name):
        assert sample.facts
        for fact in sample.facts:
            assert sample.text[fact.start : fact.end] == fact.text
            assert sample.text.count(fact.text) == 1
            assert fact.depth == fact.start / len(sample.text)
        spans = sorted((fact.start, fact.end) for fact in sample.facts)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("size", [words, pieces])
@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_kept(name: str, size: Any) -> None:
    length = 9000 if size is words else 1500
    for sample in samples(name, length, count_tokens=size, samples=4):
        assert abs(size(sample.text) - length) <= max(60, 0.02 * length)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_complete_and_determined_by_the_seed(name: str) -> None:
    first = samples(name)
    assert samples(name, haystack=Haystack.from_chronicle(3)) == first
    other = samples(name, seed=2)
    assert [sample.facts for sample in other] != [sample.facts for sample in first]
    assert sum(len(sample.questions) for sample in first) == 6, "as many as asked for"
    assert len(first) <= 2, "one document where it has room"
    score = TASKS[name].score
    for index, sample in enumerate(first):
        assert (sample.test, sample.length, sample.index) == (name, 3000, index)
        assert sample.after is None or sample.after.count("{question}") == 1
        assert len({question.key for question in sample.questions}) == len(sample.questions)
        for question in sample.questions:
            facts = " ".join(sample.facts[at].text for at in question.facts)
            there = [answer for answer in question.answers if answer in facts]
            # A needle has several names for one answer; elsewhere every answer is looked for.
            assert there == list(question.answers) if name != "needle" else there
            assert not any(answer in question.text for answer in question.answers)
            said = question.answers[:1] if name == "needle" else question.answers
            assert score(question, f"{question.prime} {', '.join(said)}.") == 1
            assert score(question, question.prime) == score(question, "") == 0


def test_a_haystack_is_cut_to_length_at_a_sentence() -> None:
    for n in (500, 777, 5000):
        parts = CHRONICLE.take_first_paragraphs(words, n)
        assert abs(words("\n\n".join(parts)) - n) <= 30
        assert parts[-1][-1] in ".!?'"
        assert parts[0] == "# The Chronicle of the Vale of Ennick"
        assert not parts[-1].startswith("#")
    assert parts[:40] == list(islice(chronicle_task.generate_chronicle_paragraphs(3), 40))


def test_nothing_is_repeated_when_the_text_is_too_short(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_text("One two three.\n\nFour five.\n")
    haystack = task_sample.Haystack.from_files(str(file))
    assert haystack.take_first_paragraphs(words, 5) == ["One two three.", "Four five."]
    with pytest.raises(UsageError, match=r"short\.txt, must have 6 tokens, got 5"):
        haystack.take_first_paragraphs(words, 6)


def nearest_by_loop(text: str, sentence: str, depth: float) -> float:
    """How near to its depth a sentence can stand, all places tried."""
    total = len(text) + len(sentence) + 1
    return min(abs((at + 1) / total - depth) for at in task_sample.find_prose_sentence_ends(text))


def test_a_fact_stands_at_the_place_nearest_to_its_depth() -> None:
    text = "\n\n".join(CHRONICLE.take_first_paragraphs(words, 1000))
    for depth in (i / 19 for i in range(20)):
        _, (fact,) = task_sample.plant_sentences(text, ["A fact."], [depth])
        assert abs(fact.depth - depth) == pytest.approx(nearest_by_loop(text, "A fact.", depth))


def test_a_text_without_sentences_takes_facts_behind_lines_or_words() -> None:
    out, _ = task_sample.plant_sentences("one two\nthree four\nfive six", ["F."], [0.6])
    assert out == "one two\nthree four F.\nfive six"
    out, _ = task_sample.plant_sentences("one two three four", ["F."], [0.6])
    assert out == "one two three F. four"
    out, _ = task_sample.plant_sentences("第一句。第二句。第三句。", ["F."], [0.3])
    assert out == "第一句。 F. 第二句。第三句。"
    with pytest.raises(UsageError, match="3 planted sentences do not fit"):
        task_sample.plant_sentences("one two", ["F."] * 3, task_sample.choose_even_depths(3))


DIGESTS = {
    "needle": "6a954cec670738b2", "needles": "615535ddffbb7254", "stars": "b069e1b7d46b4c5f",
    "passkey": "80b73bfff11044db", "number": "9e52a690d86564ec", "kv": "b44f90cf7eb74826",
    "niah": "e74bdef5a24cc109",
}  # fmt: skip
"""Digests of each task's cases, whose words were compared with those of the benchmark."""


@pytest.mark.parametrize("name", NAMES)
def test_cases_stay_as_they_are(name: str) -> None:
    made = [asdict(sample) for sample in samples(name)]
    text = json.dumps(made, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize(
    ("name", "answers", "output", "score"),
    [
        # copper lantern, or 412; whole words
        ("needle", ("copper lantern", "412"), "It is the Copper Lantern.", 1),
        ("needle", ("copper lantern", "412"), "copper lanterns, 4123, a lantern of copper", 0),
        ("needles", ("Dream Lamp", "Iron Rose", "Owl"), "Dream Lamp、Owl", 2 / 3),
        ("needles", ("Dream Lamp", "Iron Rose", "Owl"), "dream lamp, The Iron Roses", 1 / 3),
        # the first run of digits
        ("passkey", ("08335",), "The pass key is 08335. Remember 12", 1),
        ("number", ("08335",), "Gate 2: 08335", 0),
        ("kv", ("4f2a-91",), "{key: '4f2a-91'}", 1),
        ("kv", ("4f2a-91",), "4f2a-917", 0),
        ("niah", ("1234567", "7654321", "Ab", "9"), "1234567, and aB, and 7654", 0.5),
        # Only the first four count, and 42 once.
        ("stars", ("15", "117", "42", "29"), '"little_penguin": [15, 42, 42, 7, 29]}', 0.5),
        ("stars", ("15", "117", "42", "29"), "15, 117, 42, 29", 0),
    ],
)
def test_scores(name: str, answers: tuple[str, ...], output: str, score: float) -> None:
    question = TaskQuestion("k", "?", answers, (0,), 9)
    assert TASKS[name].score(question, output) == pytest.approx(score)


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


command = module_of(EXAMPLES / "make_chronicle.py", "make_chronicle")
QUESTIONS: list[dict[str, Any]] = [
    json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()
]


@pytest.fixture(scope="module")
def text() -> str:
    return (EXAMPLES / "chronicle.md").read_bytes().decode("utf-8")


def without_facts(text: str) -> str:
    for question in QUESTIONS:
        text = text.replace(question["fact"], "")
    return text


def has_phrase(phrase: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE) is not None


def repeated_sentences(text: str) -> list[str]:
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    counts = Counter(re.split(r"(?<=[.!?])['\s]+", prose))
    return [sentence for sentence, count in counts.items() if sentence and count > 1]


def test_committed_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    out, questions = tmp_path / "chronicle.md", tmp_path / "questions.jsonl"
    command.main(["--out", str(out), "--questions", str(questions)])
    assert out.read_bytes() == (EXAMPLES / "chronicle.md").read_bytes()
    assert questions.read_bytes() == (EXAMPLES / "questions.jsonl").read_bytes()


def test_facts_are_in_the_text_and_answer_their_questions(text: str) -> None:
    assert len(QUESTIONS) == 48
    for question in QUESTIONS:
        assert set(question) == {"id", "question", "answers", "fact", "depth"}
        assert text.count(question["fact"]) == 1
        assert round(text.index(question["fact"]) / len(text), 3) == question["depth"]
        assert has_phrase(question["answers"][0], question["fact"])
        assert not any(has_phrase(answer, question["question"]) for answer in question["answers"])
    depths = [0.0, *sorted(question["depth"] for question in QUESTIONS), 1.0]
    assert max(b - a for a, b in pairwise(depths)) < 0.04
    for key in ("id", "question", "fact"):
        assert len({question[key] for question in QUESTIONS}) == 48
    assert len({question["answers"][0].lower() for question in QUESTIONS}) == 48


@pytest.mark.parametrize("words", [12_000, 60_000])
def test_another_length_and_seed_keep_the_facts_at_their_depths(words: int) -> None:
    text = chronicle.build_chronicle(words, 3)
    with pytest.raises(ValueError, match="at least"):
        chronicle.build_chronicle(100, 3)
    assert words <= len(text.split()) < 1.1 * words
    assert len(repeated_sentences(text)) <= 3
    background = without_facts(text)
    for question in QUESTIONS:
        assert text.count(question["fact"]) == 1
        assert text.index(question["fact"]) / len(text) == pytest.approx(
            question["depth"], abs=0.02
        )
        assert not any(has_phrase(answer, background) for answer in question["answers"])
