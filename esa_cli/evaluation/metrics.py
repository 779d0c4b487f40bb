"""Computes scores of public benchmarks, from 0 to 1, as the benchmarks' official code does.

That code is LongBench's `metrics.py` and `eval.py`, RULER's
`eval/synthetic/constants.py`, InfiniteBench's `src/compute_scores.py`, InfLLM's
`infinitebench_eval.py`, Counting-Stars' `viz.ipynb` and NeedleBench's evaluators in OpenCompass."""

from __future__ import annotations

import importlib
import random
import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from esa_cli.errors import UsageError

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CONTROL = re.compile(r"[\x00-\x1f]")
_LETTERS = "ABCD"
_STARS = re.compile(r"little_[a-z]+[\"']?\s*:\s*\[([^\]]*)")


def import_benchmark_library(module_name: str) -> Any:
    """Imports a module of the extra `bench`. Raises UsageError: the module is missing."""
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        message = f"the benchmark's score needs the package {module_name}, which is not installed"
        raise UsageError(message, "run: pip install 'esa-cli[bench]'") from error


def compute_qa_f1(output: str, gold: str) -> float:
    """Returns the F1 of both texts' words, in lower case, without punctuation and articles."""
    plain = (text.lower().translate(_PUNCTUATION) for text in (output, gold))
    return compute_word_bag_f1(*(_ARTICLE.sub(" ", text).split() for text in plain))


def compute_word_bag_f1(output_words: Sequence[str], gold_words: Sequence[str]) -> float:
    """Returns the F1, which is the harmonic mean of precision and recall, of two bags of words."""
    common = sum((Counter(output_words) & Counter(gold_words)).values())
    return 2 * common / (len(output_words) + len(gold_words)) if common else 0.0


def compute_share_of_right_numbers(output: str, gold: str) -> float:
    """Returns the share of the output's numbers that equal the right number."""
    numbers = re.findall(r"\d+", output)
    return numbers.count(gold) / len(numbers) if numbers else 0.0


def compute_share_of_right_paragraph_numbers(output: str, gold: str) -> float:
    number = re.search(r"Paragraph (\d+)", gold)
    return compute_share_of_right_numbers(output, number[1]) if number else 0.0


def score_named_classes(output: str, gold: str, classes: Sequence[str]) -> float:
    """Returns 1 / n if the output contains n class names, one of them right, and else 0."""
    # As in LongBench's code, names that are a part of the right class name are removed first, but
    # each removal skips the next name.
    named = [name for name in classes if name in output]
    at = 0
    while at < len(named):
        if named[at] != gold and named[at] in gold:
            del named[at]
        at += 1
    return 1 / len(named) if gold in named else 0.0


def compute_code_similarity(output: str, gold: str) -> float:
    """Returns the similarity of the first line of code to the right one, as `fuzzywuzzy` does."""
    lines = output.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(m in line for m in ("`", "#", "//"))), "")
    return round(100 * SequenceMatcher(None, line, gold).ratio()) / 100


def compute_rouge_l(output: str, gold: str) -> float:
    """Returns the ROUGE-L F score by the package `rouge`, or 0 if the package raises an error."""
    rouge = import_benchmark_library("rouge").Rouge(metrics=["rouge-l"])
    try:
        return float(rouge.get_scores(output, gold)[0]["rouge-l"]["f"])
    except (ValueError, RecursionError):  # no words, or more than a thousand in a sentence
        return 0.0


def compute_share_of_found_answers(output: str, answers: Sequence[str]) -> float:
    """Returns the share of the right answers that the output contains in any letter case."""
    text = _CONTROL.sub("\n", output.strip()).lower()
    return sum(answer.lower() in text for answer in answers) / len(answers)


def score_first_integer(output: str, answers: Sequence[str]) -> float:
    """Returns 1 if the first run of digits in the output is the right answer, and else 0."""
    match = re.search("[0-9]+", output)
    return float(match is not None and match[0] == answers[0])


def score_first_number(output: str, answers: Sequence[str]) -> float:
    """Returns 1 if the first number in the output equals the right answer, and else 0."""
    match = re.search(r"\d+(?:\.\d+)?", output)
    return float(match is not None and float(match[0]) == float(answers[0]))


def score_contained_gold_word(output: str, answers: Sequence[str]) -> float:
    """Returns 1 if the right answer is one of the output's words, and else 0."""
    return float(answers[0] in _replace_punctuation(output, "\n:\"'.,?!{}").split())


def _replace_punctuation(text: str, marks: Sequence[str]) -> str:
    for mark in marks:
        text = text.replace(mark, " ")
    return re.sub(" +", " ", text)


def _find_text_after_phrase(text: str, phrases: Sequence[str]) -> str | None:
    """Returns the rest of the text after the first phrase that the text contains, or None."""
    return next((text.partition(phrase)[2] for phrase in phrases if phrase in text), None)


def score_multiple_choice_output(output: str, answers: Sequence[str]) -> float:
    """Returns 1 if the output begins with a right option's letter, or names it as the answer."""
    text = output.strip()
    if not text:
        return 0.0
    if text[0] in _LETTERS:
        return float(text[0] in answers)
    if text in answers:
        return 1.0
    text = _replace_punctuation(text, "\n\"'.,?!{}")
    named = _find_text_after_phrase(text, ("answer is:", "answer:", "answer is", "option is"))
    if named is not None:
        return float(named[1:].startswith(tuple(answers)))  # skips the space
    letter = next((word for word in text.split() if word in _LETTERS), "")
    return float(letter in answers)


def score_code_debug_output(output: str, answers: Sequence[str]) -> float:
    """Scores an output for Code.Debug by InfLLM's rule, which guesses if no option is named.
    `answers` are the name and the option letter of the function with the bug."""
    name, letter = answers
    if output[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    text = _replace_punctuation(output.strip(), ("\n", "`", "'", '"', "-", "*", "Option", "option"))
    is_named = False
    for phrases in (("answer is:", "is:", "answer:"), ("answer is", "error is")):
        named = _find_text_after_phrase(text, phrases)
        if named is None:
            continue
        is_named = True
        if named[1:].startswith((letter, name)):
            return 1.0
        text = named[1:] if named else text
    return 0.0 if is_named else float(random.Random(name).choice(_LETTERS) == letter)


def parse_star_counts(output: str, max_counts: int) -> set[int]:
    """Returns the numbers in the JSON list after `"little_penguin":`, even if it is cut off."""
    match = _STARS.search(output)
    return {int(n) for n in re.findall(r"\d{1,9}", match[1])[:max_counts]} if match else set()


def score_star_counts(
    output: str, answers: Sequence[str], mistaken: Sequence[int] | None = None
) -> float:
    """Returns the mean score, over all right counts of stars, of an output of Counting-Stars. A
    listed count scores 1; in the reasoning task, which has mistaken counts, 0.5 if the mistaken
    number is listed, too. A mistaken number alone scores 0.25."""
    right = [int(answer) for answer in answers]
    listed = parse_star_counts(output, len(right))
    if mistaken is None:
        return sum(count in listed for count in right) / len(right)
    value = {(True, False): 1.0, (True, True): 0.5, (False, True): 0.25, (False, False): 0.0}
    pairs = zip(right, mistaken, strict=True)
    return sum(value[a in listed, b in listed] for a, b in pairs) / len(right)


def compute_share_of_found_keywords(output: str, keywords: Sequence[str]) -> float:
    """Returns the share of keywords that the output contains in the same letter case."""
    return sum(keyword in output for keyword in keywords) / len(keywords)
