"""Checks each sentence of another model's answer against the passages that the model was shown.

A sentence is supported if its quotations, numbers and names occur in the passages, and if it fits
at least one passage: by late interaction, or by shared words where there is no token index. The
check finds what is invented, but no exchanged roles ("A sold it to B") and no missing "not"."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from esa_cli.qa.answering.reply import CheckedSentence, says_nothing_found
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.words import (
    CAPITALISED,
    cannot_be_name,
    capitals_indicate_names,
    find_sentence_spans,
)
from esa_cli.system.text import ENGLISH, detect_language, find_content_words, locate_content_words

PassageScorer = Callable[[str], Sequence[float] | None]
"""Type of a function from a sentence to its late interaction with each passage, if there is any."""

LEAST_LATE, LEAST_WORDS = 0.58, 0.35
"""The minimum late interaction of a supported sentence with a passage, and the minimum share of its
content words in a passage without a token index; chosen by benchmarks/answer_sentences.py."""
ENOUGH_WORDS = 0.65
"""The share of content words in one passage that suffices: for short sentences late interaction is
low. It also suffices that each word is in some passage: a sentence may join two passages."""
MIN_QUOTED_WORDS = 4
"""The least number of quoted words that must be in a passage; fewer may be a title or emphasis."""
MAX_MISSING = 3
"""The maximum number of words that are named as missing from a sentence that fits no passage."""
_QUOTED = re.compile(r"[\"“”„«»]([^\"“”„«»\n]+)[\"“”«»]")
_OMITTED = re.compile(r"\[[^\[\]]*\]|\.\.\.|…")
_CITATION = re.compile(r"[\[【](\d{1,3}(?:\s*[,;–-]\s*\d{1,3})*)[\]】]|\bpassages? \d{1,3}\b", re.I)
_LIST_MARK = re.compile(r"^[ \t]*(?:\d{1,3}[.)]|[-*•+])(?=\s)", re.M)
_HEADING = re.compile(r"#|\*\*[^*]+\*\*:?$|.*:$", re.S)
_SOURCE = r"(?:passages?|documents?|texts?|sources?|excerpts?|context|information|details?)"
_TELLS = r"(?:say|tell|told|state|mention|specif|contain|provid|giv|describ|indicat|includ|answer)"
_NOT_TOLD = re.compile(
    rf"(?=.*(?:\b(?:no|not|nothing|none|neither|cannot)\b|n['’]t\b))(?=.*\b{_SOURCE}\b)"
    rf".*\b(?:{_TELLS}|information\b|details?\b)",
    re.IGNORECASE | re.DOTALL,
)
"""Matches sentences about the documents: that they do not tell something."""
_ABOUT_ANSWER = """
according passage document text source excerpt context state say mention describe indicate base
question answer summary here hope help let know any other feel free ask great please glad sure yes
certainly course hello thank oh although besides unlike none however moreover furthermore
nevertheless nonetheless additional additionally meanwhile likewise perhaps thus final finally
instead otherwise also therefore overall
"""
"""Words about the answer itself, and words that join sentences: no passage need contain them."""
_NUMBER = re.compile(r"\d+(?:[.,'’\u00a0\u202f]\d+)*")
_GROUPED = re.compile(r"\d{1,3}(?:\D\d{3})+")
_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
_SMALL += " fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBER_WORDS = {
    **{word: number for number, word in enumerate(_SMALL.split())},
    **{word: 10 * number for number, word in enumerate(_TENS.split(), 2)},
    "hundred": 100, "thousand": 1000,
}  # fmt: skip
_ANY_NUMBER_WORD = "|".join(_NUMBER_WORDS)
_WRITTEN_NUMBER = re.compile(
    rf"\b(?:{_ANY_NUMBER_WORD})(?:[\s-]+(?:and\s+)?(?:{_ANY_NUMBER_WORD}))*\b", re.IGNORECASE
)


def _blank_match(match: re.Match[str]) -> str:
    """Returns spaces in place of a match, so that all offsets stay the same."""
    return " " * len(match[0])


def _find_citations(answer: str, starts: Sequence[int]) -> dict[int, tuple[list[int], int]]:
    """Returns, by the number of a sentence, which passages it cites, and where its last citation
    ends. A citation belongs to the last sentence that begins before it."""
    out: dict[int, tuple[list[int], int]] = {}
    for match in _CITATION.finditer(answer):
        sentence = bisect_left(starts, match.start()) - 1
        cited, _ = out.get(sentence, ([], 0))
        out[sentence] = cited + [int(one) for one in re.findall(r"\d+", match[0])], match.end()
    return out


class AnswerCheck:
    """Checks the sentences of an answer by the words, numbers and names of passages and questions.

    Args:
        asked: the question, and the earlier questions, whose names and numbers need no passage.
        passages: as the other model was shown them; `[2]` in the answer cites the second.
        score_passages: computes the late interaction of a sentence with each passage."""

    def __init__(
        self, answer: str, asked: Sequence[str], passages: Sequence[Passage],
        is_usually_lowercase: Callable[[str], bool], score_passages: PassageScorer,
    ) -> None:  # fmt: skip
        self._answer = answer
        texts = [one.text for one in passages]
        places = [f"{one.document} {one.chapter or ''} {one.page or ''}" for one in passages]
        self._language, script = _describe_writing(" ".join(texts))
        language, other = _describe_writing(answer)
        self._comparable = language == self._language and other in (script, "")
        """Whether passages and answer are in one language, so that their words can be equal."""
        self._has_names = capitals_indicate_names([*texts, answer])
        self._is_usually_lowercase = is_usually_lowercase
        self._score_passages = score_passages
        self._ignored = set(find_content_words(_ABOUT_ANSWER))
        self._words = [set(find_content_words(text, self._language)) for text in texts]
        others = " ".join([*asked, *places])
        self._all_words = set(find_content_words(others, self._language)).union(*self._words)
        numbers = (number for text in [*texts, others] for number in _find_numbers(text))
        self._numbers = {value for _, values in numbers for value in values}
        self._letters = [f" {_join_words(text)} " for text in texts]

    def check_sentences(self) -> tuple[CheckedSentence, ...]:
        """Checks the sentences, but no headings, and none that say that nothing is told."""
        bare = _LIST_MARK.sub(_blank_match, _CITATION.sub(_blank_match, self._answer))
        spans = find_sentence_spans(bare)
        citations = _find_citations(self._answer, [start for start, _ in spans])
        quoted = [match.span() for match in _QUOTED.finditer(bare)]
        out = []
        for number, (start, end) in enumerate(spans):
            sentence, (cited, cited_end) = bare[start:end], citations.get(number, ([], 0))
            tells_nothing = _NOT_TOLD.match(sentence) or says_nothing_found(sentence)
            if _HEADING.match(sentence) or tells_nothing:
                continue
            quotations = [bare[a + 1 : b - 1] for a, b in quoted if a < end and start < b]
            if found := self._check_sentence(sentence, quotations, cited):
                passage, missing = found
                end = max(end, cited_end)
                out.append(CheckedSentence(start, end, not missing, passage, missing))
        return tuple(out)

    def _check_sentence(
        self, sentence: str, quotations: Sequence[str], cited: Sequence[int]
    ) -> tuple[int | None, tuple[str, ...]] | None:
        """Returns the number from 1 of the passage that a sentence fits best, if any, and what the
        passages lack; None if the sentence has nothing to look for."""
        missing = [run for text in quotations for run in self._find_invented_runs(text)]
        numbers = [one for one in _find_numbers(sentence) if one[0].lower() != "one"]  # a pronoun
        missing += [text for text, values in numbers if not values & self._numbers]
        if not self._comparable:
            return (None, tuple(missing)) if missing else None
        located = locate_content_words(sentence, self._language)
        words = {stem: sentence[a:b] for a, b, stem in located if stem not in self._ignored}
        if not words and not numbers:
            return None
        for name in self._find_names(sentence):
            stems = set(find_content_words(name, self._language)) - self._ignored
            missing += [name] * bool(stems and not stems & self._all_words)
        absent = [word for stem, word in words.items() if stem not in self._all_words]
        passage = self._find_fitting_passage(sentence, words, cited, tells_nothing_new=not absent)
        if passage is None and not missing:
            missing = absent[:MAX_MISSING]
        return passage, tuple(dict.fromkeys(missing))

    def _find_fitting_passage(
        self, sentence: str, stems: Collection[str], cited: Sequence[int], tells_nothing_new: bool
    ) -> int | None:
        """Returns the number from 1 of the passage that a sentence fits best, a cited one before
        others; None if it fits no passage and has words that no passage has."""
        shares = [len(own.intersection(stems)) / max(1, len(stems)) for own in self._words]
        best = max(shares, default=0.0)
        scores: Sequence[float] = shares
        least = min(best, ENOUGH_WORDS) if tells_nothing_new else ENOUGH_WORDS
        if best < least:
            late = self._score_passages(sentence) if self._language == ENGLISH else None
            scores, least = (shares, LEAST_WORDS) if late is None else (late, LEAST_LATE)
        fits = [(n in cited, fit, -n) for n, fit in enumerate(scores, 1) if fit >= least]
        return -max(fits)[2] if fits else None

    def _find_invented_runs(self, quotation: str) -> Iterator[str]:
        """Yields the parts of a quotation that no passage has; `...` and `[him]` divide parts."""
        for part in _OMITTED.split(quotation):
            words = _join_words(part)
            long = words.count(" ") >= MIN_QUOTED_WORDS - 1
            if long and not any(f" {words} " in letters for letters in self._letters):
                yield part.strip()

    def _find_names(self, sentence: str) -> Iterator[str]:
        """Yields the capitalised words that may be names, as they are rarely in lower case."""
        if not self._has_names:
            return
        for match in CAPITALISED.finditer(sentence):
            bare = re.sub(r"['’]s$", "", match[0])
            if cannot_be_name(bare, self._is_usually_lowercase):
                continue
            if match.start() and match.string[match.start() - 1].isalnum():
                continue  # inside a word, such as the C of `iCloud`
            if re.search(r"\w", sentence[: match.start()]) or not bare.endswith("ly"):
                yield bare


def _describe_writing(text: str) -> tuple[str, str]:
    """Returns the language and the script of a text, such as `LATIN` or `CJK`."""
    letters = [letter for letter in text[:2000] if letter.isalpha()]
    scripts = Counter(unicodedata.name(letter, "").partition(" ")[0] for letter in letters)
    return detect_language(text), max(scripts, key=scripts.__getitem__, default="")


def _join_words(text: str) -> str:
    """Returns the words of a text in lower case, without punctuation."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _find_numbers(text: str) -> Iterator[tuple[str, set[str]]]:
    """Yields each number of a text with its possible values: `1.250` is 1250 or 1.25. Numbers may
    be written as digits or as English words."""
    for match in _NUMBER.finditer(text):
        number, values = match[0], set[str]()
        parts = re.split(r"\D", number)
        if _GROUPED.fullmatch(number):
            values.add("".join(parts).lstrip("0") or "0")
        if len(parts) == 2:
            values.add(f"{parts[0].lstrip('0') or '0'}.{parts[1]}".rstrip("0").rstrip("."))
        elif not values:
            values |= {part.lstrip("0") or "0" for part in parts}
        yield number, values
    for match in _WRITTEN_NUMBER.finditer(text):
        yield match[0], {str(_parse_number_words(match[0]))}


def _parse_number_words(words: str) -> int:
    """Returns the number that English words name: `two hundred and five` is 205."""
    total = part = 0
    for word in re.findall("[a-z]+", words.lower()):
        value = _NUMBER_WORDS.get(word, 0)
        if value == 100:
            part = max(1, part) * 100
        elif value == 1000:
            total, part = total + max(1, part) * 1000, 0
        else:
            part += value
    return total + part
