"""Each task's own prompt, facts and score, held to the benchmark it names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

import pytest
from task_requests import CHRONICLE, FORMS, prompt, samples, words

from esa_cli.evaluation.tasks import TASKS, TaskQuestion
from esa_cli.evaluation.tasks.key_tasks import NOISE
from esa_cli.evaluation.tasks.needle_tasks import sprinkle

DIGESTS = {
    ("needle", False): "c465c945d6d06565",
    ("needle", True): "c56867cae860d957",
    ("needles", False): "5dc0720c9324de3b",
    ("needles", True): "97f71dbf0dcdb9db",
    ("stars", False): "ab4310a6468509cf",
    ("stars", True): "cac9c79b545b73fd",
    ("passkey", False): "be1cbc2135e39605",
    ("passkey", True): "a4602237a3adfdb9",
    ("number", False): "56505971e8c8e23d",
    ("number", True): "e126235a1266772f",
    ("kv", False): "723422e603f87f25",
    ("kv", True): "7ad995cca4645b77",
    ("niah", False): "bf4adb3b33733811",
    ("niah", True): "42682e986a7d6a47",
}
"""Of the cases of each task and form. Their prompts, questions and facts were held to the words of
the benchmark that the task names; published rows were measured with them."""


@pytest.mark.parametrize(("name", "exact"), FORMS)
def test_cases_stay_as_they_are(name: str, exact: bool) -> None:
    made = [asdict(sample) for sample in samples(name, exact=exact)]
    text = json.dumps(made, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name, exact]


@pytest.mark.parametrize("name", ["needles", "stars"])
def test_questions_that_share_a_document_share_no_facts(name: str) -> None:
    """And each has facts in both halves, so that no question is only about what is near."""
    (sample,) = samples(name, 9000, samples=8)
    counts = [3, 4, 5, 3, 4, 5, 3, 4] if name == "needles" else [8] * 8
    assert [len(question.facts) for question in sample.questions] == counts
    asked = [at for question in sample.questions for at in question.facts]
    assert sorted(asked) == list(range(len(sample.facts)))
    answers = [answer for question in sample.questions for answer in question.answers]
    assert len(set(answers)) == len(answers)
    for question in sample.questions:
        depths = [sample.facts[at].depth for at in question.facts]
        assert depths == sorted(depths)
        assert depths[0] < 0.35
        assert depths[-1] > 0.65


def sprinkled_by_loop(text: str, count: int, stars: Sequence[str]) -> str:
    """The construction word for word: split anew for every star."""
    text = " ".join(text.replace("\n", " ").split(" ")[:count])
    step = count // len(stars)
    for i, star in enumerate(stars):
        at = (i + 1) * step + i * len(star.split(" "))
        text = " ".join(text.split(" ")[:at]) + star + " ".join(text.split(" ")[at:])
    return text


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


@pytest.mark.parametrize(("count", "m"), [(100, 8), (1000, 32), (33, 32), (500, 1)])
def test_stars_match_loops(count: int, m: int) -> None:
    text = "\n\n".join(CHRONICLE.cut(words, 2000))
    stars = [f"\nThe little penguin counted {i + 100} ★\n" for i in range(m)]
    out, facts = sprinkle(text, count, stars)
    assert out == sprinkled_by_loop(text, count, stars)
    assert [out[fact.start : fact.end] for fact in facts] == [star.strip() for star in stars]


@pytest.mark.parametrize(
    ("name", "memorize", "what", "digits"),
    [
        ("passkey", "Find it and memorize them.", "pass key", 5),
        ("number", "Find it.", "sequence of digits", 10),
    ],
)
def test_hidden_keys(name: str, memorize: str, what: str, digits: int) -> None:
    noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. "
    noise += "There and back again.\n"
    assert words(noise) == 19
    (shared,) = samples(name, samples=34)
    assert {len(question.answers[0]) for question in shared.questions} == {digits}
    repeated = sum(a == b for q in shared.questions for a, b in pairwise(q.answers[0]))
    assert (repeated > 60) is (name == "number"), "ten digits come in runs"
    got = samples(name, 1000, exact=True, samples=3)
    # 1000 words less the key's sentences leave whole lines of noise, in 58 equal steps of depth.
    for sample, share in zip(got, (0, 0.5, 1), strict=True):
        (question,) = sample.questions
        key = question.answers[0]
        assert re.fullmatch(rf"\d{{{digits}}}", key)
        fact = f"The {what} is {key}. Remember it. {key} is the {what}."
        lines = (1000 - words(fact)) // 19
        ahead = round(share * lines)
        assert sample.text == noise * ahead + fact + "\n" + noise * (lines - ahead)
        assert prompt(sample) == (
            "There is an important info hidden inside a lot of irrelevant text. "
            f"{memorize} I will quiz you about the important information there.\n\n"
            f"{sample.text}\n\nWhat is the {what}?"
        )
    assert noise == NOISE
    (alone,) = samples(name, 1000, exact=True, samples=1)
    assert alone.facts[0].start == got[1].facts[0].start, "in the middle, not where all see it"
    # The second of four is a third of the way, at the nearest of 58 steps.
    second = samples(name, 10_000, exact=True, samples=4)[1]
    lines = (10_000 - words(second.facts[0].text)) // 19
    assert second.facts[0].start == len(noise) * round(19 / 58 * lines)
