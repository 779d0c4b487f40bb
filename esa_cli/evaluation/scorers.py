"""Scores of InfiniteBench, Counting-Stars and NeedleBench, each 0 to 1.

Held to: InfiniteBench's `src/compute_scores.py`, InfLLM's `infinitebench_eval.py` for Code.Debug,
Counting-Stars' `viz.ipynb`, NeedleBench's evaluators in OpenCompass (the benchmark's version 1).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

_LETTERS = "ABCD"


def _spaced(text: str, marks: Sequence[str]) -> str:
    """With a space for each mark, and single spaces."""
    for mark in marks:
        text = text.replace(mark, " ")
    return re.sub(" +", " ", text)


def first_integer(output: str, gold: str) -> float:
    """PassKey and Number: the first run of digits is the answer, digit by digit."""
    found = re.search("[0-9]+", output)
    return float(found is not None and found[0] == gold)


def first_number(output: str, gold: str) -> float:
    """Math.Find: the first number has the answer's value."""
    found = re.search(r"\d+(?:\.\d+)?", output)
    return float(found is not None and float(found[0]) == float(gold))


def is_number(gold: str) -> bool:
    """Whether `first_number` can compare with it."""
    try:
        return math.isfinite(float(gold))
    except ValueError:
        return False


def word(output: str, gold: str) -> float:
    """Retrieve.KV: the answer is one of the words."""
    return float(gold in _spaced(output, "\n:\"'.,?!{}").split())


def _behind(text: str, phrases: Sequence[str]) -> str | None:
    """What stands behind the first of the phrases that occurs; None without one."""
    for phrase in phrases:
        _, found, rest = text.partition(phrase)
        if found:
            return rest
    return None


def choice(output: str, answers: Sequence[str]) -> float:
    """En.MC: the first letter if it is one of A to D, else what is called the answer.

    Args:
        answers: the right option's text and its letter.
    """
    text = output.strip()
    if not text:
        return 0.0
    if text[0] in _LETTERS:
        return float(text[0] in answers)
    if text in answers:
        return 1.0
    text = _spaced(text, "\n\"'.,?!{}")
    named = _behind(text, ("answer is:", "answer:", "answer is", "option is"))
    if named is not None:
        return float(named[1:].startswith(tuple(answers)))  # behind a space
    letter = next((one for one in text.split() if one in _LETTERS), "")
    return float(letter in answers)


def code_debug(output: str, answers: Sequence[str]) -> float:
    """Code.Debug, by InfLLM's rule: an option `B.` or `B:`, or what is called the answer.

    Where it finds neither it guesses a letter, seeded with the function's name. So an empty answer
    is right once in four, where InfiniteBench's own rule gives 0. The paper has 22.59 (89 of 394)
    for models that score 0 in all other tasks; so it has guesses.

    Args:
        answers: the function's name and its letter.
    """
    name, letter = answers
    if output[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    text = _spaced(output.strip(), ("\n", "`", "'", '"', "-", "*", "Option", "option"))
    called = False
    for phrases in (("answer is:", "is:", "answer:"), ("answer is", "error is")):
        named = _behind(text, phrases)
        if named is None:
            continue
        called = True
        if named[1:].startswith((letter, name)):
            return 1.0
        text = named[1:] if named else text
    return 0.0 if called else float(random.Random(name).choice(_LETTERS) == letter)


def stars(output: str, most: int) -> set[int]:
    """Counting-Stars: the numbers of the first list in the output, the first `most` of them.

    Args:
        output: with what the prompt began of it. The list need not be closed.
    """
    behind = output.partition("little_penguin")[2] or output
    listed = behind.partition("]")[0]
    return {int(number) for number in re.findall(r"\d{1,9}", listed)[:most]}


def searching(said: set[int], right: Sequence[int]) -> float:
    """The share of the counts that were said."""
    return sum(count in said for count in right) / len(right)


def reasoning(said: set[int], right: Sequence[int], mistaken: Sequence[int]) -> float:
    """Each count gives 1 without its mistaken twin, 0.5 with it; the twin alone gives 0.25."""
    value = {(True, False): 1.0, (True, True): 0.5, (False, True): 0.25, (False, False): 0.0}
    pairs = zip(right, mistaken, strict=True)
    return sum(value[a in said, r in said] for a, r in pairs) / len(right)


def needle(output: str, keyword: str, sentence: str) -> float:
    """NeedleBench S-RT: 1 with the keyword, else a fifth of the likeness to the needle."""
    if keyword in output:
        return 1.0
    said, right = "".join(output.split()), "".join(sentence.split())
    longer = max(len(said), len(right))
    return 0.2 * (1 - _edits(said, right) / longer) if longer else 0.2


def _edits(one: str, other: str) -> int:
    """Insertions, deletions and replacements between two texts."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        corner, row[0] = row[0], i
        for j, second in enumerate(other, start=1):
            change = corner + (letter != second)
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, change)
    return row[-1]


def needles(output: str, keywords: Sequence[str]) -> float:
    """NeedleBench M-RT: the share of the keywords in the output, letter case counting."""
    return sum(keyword in output for keyword in keywords) / len(keywords)


def needle_words(output: str, answer: str) -> float:
    """NeedleBench M-RS: the share of the answer's words in the output, letter case aside."""
    words, said = answer.lower().split(), output.lower()
    return sum(one in said for one in words) / len(words) if words else 0.0
