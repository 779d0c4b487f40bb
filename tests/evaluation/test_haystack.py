"""The text around the facts, and how facts are planted in it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from task_requests import CHRONICLE, words

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks import chronicle_task, task_sample


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
    return min(abs((at + 1) / total - depth) for at in task_sample.find_sentence_ends(text))


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
