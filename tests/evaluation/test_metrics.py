"""Scores of public benchmarks, each worked out by hand; the arithmetic stands beside it."""

from __future__ import annotations

import pytest

from esa_cli.evaluation import metrics


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-7)  # ROUGE adds 1e-8 to a denominator


@pytest.mark.parametrize(
    ("output", "gold", "score"),
    [
        # said: cat sat on mat; right: cat on mat. 3 in common: 2 * 3/4 * 1 / (3/4 + 1) = 6/7
        ("The cat sat on a mat.", "cat on the MAT", 6 / 7),
        # bags: one yes in common of two said: 2 * 1/2 * 1 / (1/2 + 1) = 2/3
        ("yes, yes", "Yes.", 2 / 3),
        ("U.S.", "us", 1.0),
        # nothing is left of either
        ("the", "", 0.0),
    ],
)
def test_qa_f1(output: str, gold: str, score: float) -> None:
    assert metrics.compute_qa_f1(output, gold) == near(score)


def test_count_is_the_share_of_right_numbers() -> None:
    assert metrics.compute_share_of_right_numbers("3 or 12, I say 3", "3") == 2 / 3
    assert metrics.compute_share_of_right_numbers("13", "3") == 0
    assert metrics.compute_share_of_right_numbers("none", "3") == 0


def test_classification() -> None:
    names = ("Date", "Speed", "person", "Title of a person")
    assert metrics.score_named_classes("Date or Speed", "Date", names) == 1 / 2
    assert metrics.score_named_classes("Speed", "Date", names) == 0
    # `person` is named as well, but as a part of the right name
    assert metrics.score_named_classes("Title of a person", "Title of a person", names) == 1
    # a, b and `a b c` are named; taking a out of the list spares b: one of two is right
    assert metrics.score_named_classes("a b c", "a b c", ("a", "b", "a b c")) == 1 / 2


@pytest.mark.parametrize(
    ("output", "gold", "score"),
    [
        # the first line that is no fence and no comment is `x = 1`: 2 * 4 letters of 5 + 5
        ("\n```python\n# note\n// note\nx = 1\ny = 3", "x = 2", 0.8),
        # 2 * 2 of 2 + 4 is 66.67 per cent, in whole per cent 67
        ("ab", "abcd", 0.67),
        # difflib takes the longest block, PP, and nothing lies right of it in both: 2 * 2 of 20.
        # The longest common subsequence, abcd, would give 0.4.
        ("a1b2c3d4PP", "PPa5b6c7d8", 0.2),
        ("# only a comment", "x", 0.0),
        # indentation counts: 2 * 1 of 1 + 5
        ("x", "    x", 0.33),
    ],
)
def test_code_similarity(output: str, gold: str, score: float) -> None:
    assert metrics.compute_code_similarity(output, gold) == near(score)


@pytest.mark.parametrize(
    ("output", "gold", "score"),
    [
        # the, sat: 2 of 3 and 2 of 3
        ("the cat sat", "the dog sat", 2 / 3),
        # a c of one sentence and b d of the other: all four words are common
        ("a c. b d", "a b c d", 1.0),
        # distinct words: 1 of 1 said, 1 of 2 right: 2 * 1 * 1/2 / (3/2)
        ("a a a", "a b", 2 / 3),
        # the line break behind the full stop is a word of its own: 1 of 2, 1 of 1
        ("a.\n", "a", 2 / 3),
        # of `y x` and `x y` the common word is y, not x; so x is never common: 1 of 2, 1 of 2
        ("y x. y", "x y", 1 / 2),
        # order counts within a sentence: b c, or c d; not all
        ("c d b", "b c d", 2 / 3),
        ("", "a", 0.0),
    ],
)
def test_rouge_l(output: str, gold: str, score: float) -> None:
    assert metrics.compute_rouge_l(output, gold) == near(score)


def test_first_integer_is_compared_digit_by_digit() -> None:
    assert metrics.score_first_integer("The pass key is 08335, I think; 1.", ["08335"]) == 1
    assert metrics.score_first_integer("8335", ["08335"]) == 0
    assert metrics.score_first_integer("12 08335", ["08335"]) == 0
    assert metrics.score_first_integer("", ["08335"]) == 0


def test_first_number_is_compared_by_value() -> None:
    assert metrics.score_first_number("It is 98.", "98") == 1
    assert metrics.score_first_number("98.0", "98") == 1
    assert metrics.score_first_number("98.5", "98") == 0
    assert metrics.score_first_number("97, or 98", "98") == 0
    assert metrics.score_first_number("many", "98") == 0


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ("B. the cook", True),
        # it begins with B
        ("Because of A", True),
        ("the cook", True),
        ("The answer is: B", True),
        ("The answer is the cook.", True),
        # what is called the answer comes before any letter
        ("The answer is C, not B", False),
        ("I would say C or B", False),
        ("  ", False),
    ],
)
def test_choice(output: str, right: bool) -> None:
    assert metrics.score_multiple_choice_output(output, ("the cook", "B")) == right


@pytest.mark.parametrize(
    ("output", "right"),
    [("B. func_a", True), ("**The error is** `func_a`", True), ("The answer is C", False)],
)
def test_code_debug(output: str, right: bool) -> None:
    assert metrics.score_code_debug_output(output, ("func_a", "B")) == right


def test_stars_are_the_numbers_of_the_list() -> None:
    prime = '```json\n{"little_penguin": ['
    assert metrics.parse_star_counts(f"{prime}15, 117, 42]}}\n```\nThree.", 32) == {15, 117, 42}
    assert metrics.parse_star_counts(f"{prime}15, 117, 42]}}", 2) == {15, 117}
    assert metrics.parse_star_counts(f"{prime}3, 4]}}\n[9]", 32) == {3, 4}
    assert metrics.parse_star_counts(f"{prime}15, 117", 32) == {15, 117}
    assert metrics.parse_star_counts(f"{prime}none", 32) == set()
    assert metrics.parse_star_counts("15, 117", 32) == set()


def test_reasoning_pays_less_with_the_mistake() -> None:
    # 1: right alone, 1. 2 with 6: 0.5. 3 without, 7 said: 0.25. 4: neither, 0. Of four.
    assert metrics.score_star_counts("little_p: [1, 2, 6, 7]", "1234", (5, 6, 7, 8)) == 1.75 / 4
