"""The scores of the public benchmarks, from 0 to 1, computed as by the benchmarks' official code.

The official code is LongBench's `metrics.py` and `eval.py`, RULER's `eval/synthetic/constants.py`,
InfiniteBench's `src/compute_scores.py`, InfLLM's `infinitebench_eval.py` for Code.Debug,
Counting-Stars' `viz.ipynb`, and NeedleBench's evaluators in OpenCompass.
"""

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
_SIGNS = str.maketrans(dict.fromkeys(string.punctuation + "“”‘’—–", " "))
_CONTROL = re.compile(r"[\x00-\x1f]")
_LETTERS = "ABCD"
_STARS = re.compile(r"little_[a-z]+[\"']?\s*:\s*\[([^\]]*)")


def import_benchmark_library(name: str) -> Any:
    """Imports a module of the extra `bench`. Raises UsageError: the module is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(
            f"this benchmark needs {package}, which is not installed",
            "pip install 'esa-cli[bench]'",
        ) from error


def compute_qa_f1(output: str, gold: str) -> float:
    """Returns the F1 of two texts' lower-case words, without punctuation and articles."""
    plain = (text.lower().translate(_PUNCTUATION) for text in (output, gold))
    return compute_word_bag_f1(*(_ARTICLE.sub(" ", text).split() for text in plain))


def compute_word_bag_f1(words: Sequence[str], gold: Sequence[str]) -> float:
    """Returns the F1 of two bags of words: the harmonic mean of precision and recall."""
    common = sum((Counter(words) & Counter(gold)).values())
    return 2 * common / (len(words) + len(gold)) if common else 0.0


def split_bare_words(text: str) -> list[str]:
    """Splits a text into lower-case words without punctuation and articles, as esa's own benchmarks
    do. A punctuation mark ends a word, whereas the official code joins the letters around it."""
    words = text.lower().translate(_SIGNS).split()
    return [word for word in words if word not in ("a", "an", "the")]


def compute_number_share(output: str, gold: str) -> float:
    """Returns the share of the output's numbers that equal the right number."""
    numbers = re.findall(r"\d+", output)
    return numbers.count(gold) / len(numbers) if numbers else 0.0


def compute_paragraph_share(output: str, gold: str) -> float:
    """Returns the share of the output's numbers that equal n, if the answer is `Paragraph n`."""
    number = re.search(r"Paragraph (\d+)", gold)
    return compute_number_share(output, number[1]) if number else 0.0


def compute_class_share(output: str, gold: str, classes: Sequence[str]) -> float:
    """Returns 1 / n if the output has n class names and the right class is among them, else 0.

    Names that are a part of the right class name are removed first, but each removal skips the next
    name, as in LongBench's code."""
    named = [name for name in classes if name in output]
    at = 0
    while at < len(named):
        if named[at] != gold and named[at] in gold:
            del named[at]
        at += 1
    return 1 / len(named) if gold in named else 0.0


def compute_code_similarity(output: str, gold: str) -> float:
    """Returns difflib's similarity of the first line of code to the gold line, in whole per cent,
    as `fuzzywuzzy` does without python-Levenshtein, which LongBench does not require."""
    lines = output.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(m in line for m in ("`", "#", "//"))), "")
    return round(100 * SequenceMatcher(None, line, gold).ratio()) / 100


def compute_rouge_l(output: str, gold: str) -> float:
    """Returns the ROUGE-L F of the package `rouge`, or 0 if the package fails, as in LongBench."""
    rouge = import_benchmark_library("rouge").Rouge(metrics=["rouge-l"])
    try:
        return float(rouge.get_scores(output, gold)[0]["rouge-l"]["f"])
    except (ValueError, RecursionError):  # no words, or more than a thousand in a sentence
        return 0.0


def cut_to_first_line(output: str) -> str:
    """Returns the first line of an output, which LongBench scores in few-shot tasks."""
    return output.lstrip("\n").split("\n")[0]


def compute_share_of_answers(output: str, answers: Sequence[str]) -> float:
    """Returns the share of RULER's answers that the output contains, in any letter case."""
    text = _CONTROL.sub("\n", output.strip()).lower()
    return sum(answer.lower() in text for answer in answers) / len(answers)


def score_first_integer(output: str, gold: str) -> float:
    """Returns 1 if the output's first run of digits is the answer (PassKey, Number), else 0."""
    match = re.search("[0-9]+", output)
    return float(match is not None and match[0] == gold)


def score_first_number(output: str, gold: str) -> float:
    """Returns 1 if the output's first number equals the answer (Math.Find), else 0."""
    match = re.search(r"\d+(?:\.\d+)?", output)
    return float(match is not None and float(match[0]) == float(gold))


def score_answer_word(output: str, gold: str) -> float:
    """Returns 1 if the answer is one of the output's words (Retrieve.KV), else 0."""
    return float(gold in _replace_punctuation(output, "\n:\"'.,?!{}").split())


def _replace_punctuation(text: str, marks: Sequence[str]) -> str:
    """Replaces each punctuation mark by a space, and each run of spaces by one space."""
    for mark in marks:
        text = text.replace(mark, " ")
    return re.sub(" +", " ", text)


def _find_text_after_phrase(text: str, phrases: Sequence[str]) -> str | None:
    """Returns the text after the first of the phrases that the text contains, or None."""
    for phrase in phrases:
        _, separator, rest = text.partition(phrase)
        if separator:
            return rest
    return None


def score_multiple_choice(output: str, answers: Sequence[str]) -> float:
    """Scores an output of En.MC. A first letter A to D is the choice; otherwise the output must
    name the answer. `answers` has the text and the letter of the right option."""
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


def score_code_debug(output: str, answers: Sequence[str]) -> float:
    """Scores an output of Code.Debug by InfLLM's rule. The output must begin with the right option,
    such as `B.` or `B:`, or name the right option as the answer.

    If the output names no option, the rule guesses a letter, seeded with the function's name, so an
    empty answer is right once in four. `answers` has the name and the letter of the right
    function."""
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


def parse_listed_stars(output: str, limit: int) -> set[int]:
    """Returns the numbers in the list that an output of Counting-Stars gives after
    `"little_penguin":`, at most `limit`. The list may lack its closing bracket."""
    match = _STARS.search(output)
    return {int(n) for n in re.findall(r"\d{1,9}", match[1])[:limit]} if match else set()


def score_listed_stars(
    output: str, answers: Sequence[str], mistaken: Sequence[int] | None
) -> float:
    """Returns the mean score over all right counts of stars in an answer of Counting-Stars.

    In the searching task (`mistaken` is None) a listed count scores 1. In the reasoning task a
    count scores 1 if only the right number is listed, 0.5 if both the right and the mistaken number
    are listed, and 0.25 if only the mistaken number is listed."""
    right = [int(answer) for answer in answers]
    listed = parse_listed_stars(output, len(right))
    if mistaken is None:
        return sum(count in listed for count in right) / len(right)
    value = {(True, False): 1.0, (True, True): 0.5, (False, True): 0.25, (False, False): 0.0}
    pairs = zip(right, mistaken, strict=True)
    return sum(value[a in listed, b in listed] for a, b in pairs) / len(right)


def compute_keyword_share(output: str, keywords: Sequence[str]) -> float:
    """Returns the share of NeedleBench's keywords that the output contains, in the same case."""
    return sum(keyword in output for keyword in keywords) / len(keywords)
