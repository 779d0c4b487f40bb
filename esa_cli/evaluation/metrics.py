"""Scores of LongBench and RULER, each 0 to 1, as their official code computes them.

Held to: LongBench's `metrics.py` and `eval.py`, the package `rouge` 1.0.1 and the pure-Python ratio
of `fuzzywuzzy` that LongBench's requirements install, RULER's `eval/synthetic/constants.py`.
Their oddities are kept, because published scores have them, and are named where they are.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CONTROL = re.compile(r"[\x00-\x1f]")


def normal_words(text: str) -> list[str]:
    """Lower-case words without punctuation and articles."""
    return _ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def qa_f1(output: str, gold: str) -> float:
    """Harmonic mean of precision and recall over the words as bags."""
    said, right = normal_words(output), normal_words(gold)
    same = sum((Counter(said) & Counter(right)).values())
    if not same:
        return 0.0
    precision, recall = same / len(said), same / len(right)
    return 2 * precision * recall / (precision + recall)


def _share(numbers: Sequence[str], gold: str) -> float:
    return numbers.count(gold) / len(numbers) if numbers else 0.0


def count(output: str, gold: str) -> float:
    """The share of the numbers in the output that are the right one."""
    return _share(re.findall(r"\d+", output), gold)


def retrieval(output: str, gold: str) -> float:
    """The same for the number in `Paragraph 7`. A gold answer without one scores 0."""
    number = re.search(r"Paragraph (\d+)", gold)
    return count(output, number[1]) if number else 0.0


def classification(output: str, gold: str, classes: Sequence[str]) -> float:
    """One over the class names in the output, if the right one is among them.

    Names that are a part of the right one are taken out first. The official loop takes them out of
    the list it is walking, so each removal spares the next name; so does this one.
    """
    named = [name for name in classes if name in output]
    at = 0
    while at < len(named):
        if named[at] != gold and named[at] in gold:
            del named[at]
        at += 1
    return 1 / len(named) if gold in named else 0.0


def code_similarity(output: str, gold: str) -> float:
    """Likeness of the first line that is no comment and no fence, in whole per cent.

    It is difflib's: `fuzzywuzzy` takes another measure, twice the longest common subsequence, only
    where python-Levenshtein is installed, and LongBench does not ask for that.
    """
    lines = output.lstrip("\n").split("\n")
    line = next((one for one in lines if not any(m in one for m in ("`", "#", "//"))), "")
    if line == gold:
        return 1.0
    return round(100 * SequenceMatcher(None, line, gold).ratio()) / 100


def rouge_l(output: str, gold: str) -> float:
    """ROUGE-L F of the package `rouge`: over texts, by distinct words.

    Each pair of sentences gives the words of a longest common subsequence; all of them together,
    each once, are what is common. Precision and recall count distinct words.
    """
    said, right = _sentences(output), _sentences(gold)
    if not said or not right:
        return 0.0
    common: set[str] = set()
    for one in right:
        for other in said:
            common |= _common_words(one, other)
    precision = len(common) / len({word for sentence in said for word in sentence})
    recall = len(common) / len({word for sentence in right for word in sentence})
    return 2 * precision * recall / (precision + recall + 1e-8)


def _sentences(text: str) -> list[list[str]]:
    """Cut at full stops. White space between two of them is a sentence of one empty word."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common_words(one: list[str], other: list[str]) -> set[str]:
    """The words of one longest common subsequence; of several the one `rouge` finds."""
    lengths = [[0] * (len(other) + 1)]
    for word in one:
        above, row = lengths[-1], [0]
        for j, second in enumerate(other):
            row.append(above[j] + 1 if word == second else max(above[j + 1], row[j]))
        lengths.append(row)
    words: set[str] = set()
    i, j = len(one), len(other)
    while i and j:
        if one[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            words.add(one[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def first_line(output: str) -> str:
    """What LongBench scores of few-shot tasks, whose models go on with further examples."""
    return output.lstrip("\n").split("\n")[0]


def match_all(output: str, answers: Sequence[str]) -> float:
    """RULER: the share of the answers that the output holds, in any case of letters."""
    said = _CONTROL.sub("\n", output.strip()).lower()
    return sum(answer.lower() in said for answer in answers) / len(answers)


def match_part(output: str, answers: Sequence[str]) -> float:
    """RULER's questions: whether the output holds any of the answers."""
    return float(match_all(output, answers) > 0)
