"""Self-tests' tasks: facts at their places, lengths kept, everything determined by the seed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from task_requests import NAMES, pieces, samples, words

from esa_cli.evaluation.tasks import TASKS
from esa_cli.evaluation.tasks.task_sample import Haystack


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
