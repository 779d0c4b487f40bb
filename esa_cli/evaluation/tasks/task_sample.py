"""Plants facts in long texts, and describes the documents and questions of self-tests."""

from __future__ import annotations

import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from esa_cli.documents.document import find_sentence_ends, read_documents
from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks import chronicle_task as chronicle

T = TypeVar("T")
TokenCounter = Callable[[str], int]
"""A function that counts the tokens of a text."""


class StableRandom:
    """Draws random values, which are the same for the same seeds on every version of Python."""

    def __init__(self, *seeds: str | int) -> None:
        self._random = random.Random(" ".join(str(part) for part in seeds))

    def draw_integer_below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def draw_items(self, items: Sequence[T], count: int) -> list[T]:
        """Draws items of a sequence without replacement, in random order."""
        pool = list(items)
        for at in range(count):
            other = at + self.draw_integer_below(len(pool) - at)
            pool[at], pool[other] = pool[other], pool[at]
        return pool[:count]

    def draw_digits(self, count: int, first_digits: str = "0123456789") -> str:
        """Draws a string of random digits, the first of which is one of `first_digits`."""
        first = first_digits[self.draw_integer_below(len(first_digits))]
        return first + "".join(str(self.draw_integer_below(10)) for _ in range(count - 1))

    def draw_uuid(self) -> str:
        one, two, three = (f"{self.draw_integer_below(1 << 48):012x}" for _ in range(3))
        variant = "89ab"[self.draw_integer_below(4)]
        return f"{one[:8]}-{one[8:]}-4{two[:3]}-{variant}{two[3:6]}-{three}"


@dataclass(frozen=True)
class PlantedFact:
    """A sentence that was planted in a document, with the sentence's place."""

    text: str
    start: int
    end: int
    depth: float  # the start as a share of the document's length in characters


@dataclass(frozen=True)
class TaskQuestion:
    """A question of a self-test about planted facts of a document."""

    key: str  # a name that identifies the question among the document's questions
    text: str
    answers: tuple[str, ...]  # those accepted, or texts that the score looks for one by one
    facts: tuple[int, ...]  # the indices of the facts that answer, among the document's facts
    max_new_tokens: int
    prime: str = ""  # the start of the answer, which the model continues
    data: Mapping[str, Any] = field(default_factory=dict)  # further values for computing the score


@dataclass(frozen=True)
class TaskDocument:
    """A document of a self-test with planted facts, and the questions about the document."""

    test: str
    length: int
    index: int
    text: str
    facts: tuple[PlantedFact, ...]
    questions: tuple[TaskQuestion, ...]
    before: str = ""  # the prompt's text before the document
    after: str | None = None  # after the document, with {question}; None: the preset's prompt


@dataclass(frozen=True)
class TaskRequest:
    """A request for the documents and questions of a self-test."""

    length: int  # the number of tokens in a document
    count_tokens: TokenCounter  # the same in all requests, since the haystack caches counts by it
    haystack: Haystack
    samples: int  # the number of questions
    seed: int


class SelftestTask(NamedTuple):
    """Makes a self-test's documents, and scores a model's output from 0 to 1 by a rule that takes
    the output, the right answers, and the question's further values by their names."""

    samples: Callable[[TaskRequest], Iterator[TaskDocument]]
    rule: Callable[..., float]

    def score(self, question: TaskQuestion, output: str) -> float:
        return float(self.rule(output, question.answers, **question.data))


SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)")
LINE_END = re.compile(r"\S(?=[^\S\n]*(?:\n|\Z))")
WORD_END = re.compile(r"\S(?=\s|\Z)")
CHARACTER = re.compile(r"\S")
SLACK = 30
"""How many tokens a text may be too long or too short to end with a whole sentence."""


class Haystack:
    """A long text in which self-tests plant facts, as a series of paragraphs."""

    def __init__(self, name: str, paragraphs: Iterable[str], text: str = "") -> None:
        self.name, self.text = name, text  # the generated chronicle is not kept as one text
        self._rest = iter(paragraphs)
        self._parts: list[str] = []
        self._ends: dict[TokenCounter, list[int]] = {}

    @classmethod
    def from_chronicle(cls, seed: int) -> Haystack:
        """Makes a haystack of the generated chronicle, which has over a million tokens."""
        return cls("the chronicle", chronicle.generate_chronicle_paragraphs(seed))

    @classmethod
    def from_files(cls, path: str) -> Haystack:
        """Makes a haystack of a text file or of all files in a folder, whose paragraphs end at
        blank lines. Raises DocumentError."""
        text = "\n\n".join(document.text.strip("\n") for document in read_documents([path]))
        parts = (part.strip("\n") for part in re.split(r"\n[^\S\n]*\n", text))
        return cls(Path(path).name or path, [part for part in parts if part.strip()], text)

    def take_first_paragraphs(self, count_tokens: TokenCounter, wanted_tokens: int) -> list[str]:
        """Returns the haystack's first paragraphs with about `wanted_tokens` tokens, the last of
        which may be cut after a sentence. Raises UsageError: the haystack is shorter."""
        ends = self._count_tokens_by_paragraph(count_tokens, wanted_tokens)
        available = ends[-1] if ends else 0
        if not ends or available < wanted_tokens:
            raise UsageError(
                f"the haystack, {self.name}, must have {wanted_tokens:,} tokens, got {available:,}",
                "ask for a smaller --len, or give a longer text with --haystack",
            )
        whole = bisect_left(ends, wanted_tokens)
        before = ends[whole - 1] if whole else 0
        left, total = wanted_tokens - before, ends[whole] - before
        last = cut_paragraph(self._parts[whole], count_tokens, left, total)
        out = [*self._parts[:whole], *([last] if last else [])]
        while out and is_markdown_heading(out[-1]):  # no document ends with a heading
            out.pop()
        return out

    def _count_tokens_by_paragraph(
        self, count_tokens: TokenCounter, wanted_tokens: int
    ) -> list[int]:
        """Returns the number of tokens up to the end of each of the first paragraphs."""
        ends = self._ends.setdefault(count_tokens, [])
        while not ends or ends[-1] < wanted_tokens:
            if len(ends) == len(self._parts):
                part = next(self._rest, None)
                if part is None:
                    break
                self._parts.append(part)
            tokens = count_added_tokens(count_tokens, self._parts[len(ends)], "\n\n")
            ends.append((ends[-1] if ends else 0) + tokens)
        return ends


def count_added_tokens(count_tokens: TokenCounter, text: str, separator: str) -> int:
    """Returns by how many tokens a document grows if a text is added after a separator."""
    return count_tokens(f"a.{separator}{text}") - count_tokens("a.")


def is_markdown_heading(paragraph: str) -> bool:
    return paragraph.startswith("#") and "\n" not in paragraph


def cut_paragraph(
    paragraph: str, count_tokens: TokenCounter, wanted_tokens: int, paragraph_tokens: int
) -> str:
    """Cuts a paragraph to about `wanted_tokens` tokens, if possible at the end of a sentence."""
    if wanted_tokens >= paragraph_tokens:
        return paragraph
    if is_markdown_heading(paragraph):
        return ""

    def count_tokens_before(end_offset: int) -> int:
        return count_added_tokens(count_tokens, paragraph[:end_offset], "\n\n") if end_offset else 0

    near = 0
    for boundary in (SENTENCE, WORD_END, CHARACTER):
        ends = [0, *(match.end() for match in boundary.finditer(paragraph)), len(paragraph)]
        over = min(bisect_right(ends, wanted_tokens, key=count_tokens_before), len(ends) - 1)
        around = ends[max(over - 1, 0)], ends[over]
        near = min(around, key=lambda end: abs(count_tokens_before(end) - wanted_tokens))
        if abs(count_tokens_before(near) - wanted_tokens) <= SLACK:
            break
    return paragraph[:near]


# Not after `'.` and `'s.`: equal seeds give the texts of earlier versions.
PROSE_END = re.compile(r"(?:(?<!')(?<!'s)\.|[!?…。！？])[\"'”’»)\]]*\Z")


def find_prose_sentence_ends(text: str) -> list[int]:
    """Returns the offset of the end of every sentence that is not in a heading or a table."""
    spans = pairwise([0, *find_sentence_ends(text, 0, len(text))])
    sentences = ((end, text[start:end].strip()) for start, end in spans)
    return [
        end
        for end, sentence in sentences
        if PROSE_END.search(sentence)
        and not (sentence.startswith(("#", "|")) or sentence.isupper())
    ]


def choose_even_depths(count: int) -> tuple[float, ...]:
    """Returns `count` depths from 0 to 1, which are the middles of equal parts of a text."""
    return tuple((i + 0.5) / count for i in range(count))


def plant_sentences(
    text: str, sentences: Sequence[str], depths: Sequence[float], separators: tuple[str, str] =
    (" ", ""),
) -> tuple[str, tuple[PlantedFact, ...]]:  # fmt: skip
    """Plants sentences, with `separators` before and after each, between a text's sentences at the
    given depths from 0 to 1. Raises UsageError: the text is too short."""
    # If the text has few sentences, the facts are planted after lines or words.
    for kind in (find_prose_sentence_ends, LINE_END, WORD_END):
        gaps = kind(text) if callable(kind) else [m.end() for m in kind.finditer(text)]
        if len(gaps) >= 2 * len(sentences):
            break
    else:
        raise _make_no_room_error(sentences, f"a text of {len(text)} characters")
    whole = len(text) + sum(len(sentence) + len("".join(separators)) for sentence in sentences)
    pieces: list[str] = []
    starts: dict[int, int] = {}
    done = length = first = 0
    for turn, which in enumerate(sorted(range(len(sentences)), key=lambda i: depths[i])):
        # The text before the fact is original text and what has been planted so far.
        wanted = depths[which] * whole - len(separators[0]) - (length - done)
        last = len(gaps) - (len(sentences) - turn)
        at = bisect_left(gaps, wanted, first, last)
        if at > first and wanted - gaps[at - 1] <= gaps[at] - wanted:
            at -= 1
        first, gap, sentence = at + 1, gaps[at], sentences[which]
        after = separators[1] or ("" if text[gap : gap + 1].isspace() or gap == len(text) else " ")
        pieces += [text[done:gap], separators[0], sentence, after]
        starts[which] = length + gap - done + len(separators[0])
        length, done = starts[which] + len(sentence) + len(after), gap
    out = "".join([*pieces, text[done:]])
    return out, tuple(make_planted_fact(out, starts[i], one) for i, one in enumerate(sentences))


def _make_no_room_error(sentences: Sequence[str], too_small_text: str) -> UsageError:
    message = f"{len(sentences)} planted sentences do not fit into {too_small_text}"
    return UsageError(message, "ask fewer questions, or give a greater --len")


def make_planted_fact(text: str, start: int, sentence: str) -> PlantedFact:
    return PlantedFact(sentence, start, start + len(sentence), start / len(text))


def plant_sentences_in_haystack(
    request: TaskRequest, sentences: Sequence[str], depths: Sequence[float] | None = None,
    separators: tuple[str, str] = (" ", ""),
) -> tuple[str, tuple[PlantedFact, ...]]:  # fmt: skip
    """Plants sentences in the haystack's first paragraphs, for a text of the requested length.
    Raises UsageError: the sentences fill more than half of it, or the haystack is too short."""
    taken = sum(count_added_tokens(request.count_tokens, one, separators[0]) for one in sentences)
    if 2 * taken > request.length:
        raise _make_no_room_error(sentences, f"a document of {request.length} tokens")
    parts = request.haystack.take_first_paragraphs(request.count_tokens, request.length - taken)
    depths = depths or choose_even_depths(len(sentences))
    return plant_sentences("\n\n".join(parts), sentences, depths, separators)


def check_sample_count(request: TaskRequest, max_samples: int, hint: str) -> None:
    if request.samples > max_samples:
        raise UsageError(f"--samples must be at most {max_samples}, got {request.samples}", hint)


def divide_questions_among_documents(
    request: TaskRequest, max_questions: int, sentences_per_question: Sequence[str]
) -> Iterator[range]:
    """Divides numbered questions among documents, and yields the range of question numbers for each
    document. The questions' planted sentences fill at most a third of a document."""
    each = sum(count_added_tokens(request.count_tokens, one, " ") for one in sentences_per_question)
    count = max(1, min(max_questions, request.length // (3 * each)))
    for first in range(0, request.samples, count):
        yield range(first, min(first + count, request.samples))


def assign_facts_to_questions(dice: StableRandom, facts_per_question: Sequence[int]) -> list[int]:
    """Returns the index of the question of each planted fact, spread at random."""
    rounds = max(facts_per_question)
    turns = [{int((i + 0.5) * rounds / n) for i in range(n)} for n in facts_per_question]
    out: list[int] = []
    for turn in range(rounds):
        takes = [which for which, own in enumerate(turns) if turn in own]
        out += dice.draw_items(takes, len(takes))
    return out
