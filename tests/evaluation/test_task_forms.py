"""Each task's own prompt, facts and score, held to the benchmark it names."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

import pytest
from task_requests import NAMES, samples

from esa_cli.evaluation.tasks import TASKS
from esa_cli.evaluation.tasks.task_sample import TaskQuestion

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
