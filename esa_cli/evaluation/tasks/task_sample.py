"""Documents with planted facts and questions about the facts, for the tasks of self-tests.

A self-test's task needs no model. The task's name, the request and an index determine a sample.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from esa_cli.documents.document import read_documents
from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks import chronicle_task as chronicle

T = TypeVar("T")
TokenCounter = Callable[[str], int]
"""A function that counts the tokens of a text."""


class StableRandom:
    """Draws random values that the seeds determine, such as a test's name and an index."""

    def __init__(self, *seeds: str | int) -> None:
        self._random = random.Random(" ".join(str(part) for part in seeds))

    def draw_fraction(self) -> float:
        """Draws a random number from 0 to below 1."""
        return self._random.random()

    def draw_below(self, limit: int) -> int:
        """Draws a random whole number from 0 to `limit` - 1."""
        return int(self._random.random() * limit)

    def draw_items(self, items: Sequence[T], count: int) -> list[T]:
        """Draws `count` different items of a sequence in random order."""
        pool = list(items)
        for at in range(count):
            other = at + self.draw_below(len(pool) - at)
            pool[at], pool[other] = pool[other], pool[at]
        return pool[:count]

    def draw_digits(self, count: int, first_digits: str = "0123456789") -> str:
        """Draws a string of `count` random digits, the first of them from `first_digits`."""
        first = first_digits[self.draw_below(len(first_digits))]
        return first + "".join(str(self.draw_below(10)) for _ in range(count - 1))

    def draw_uuid(self) -> str:
        """Draws a random UUID of version 4."""
        one, two, three = (f"{self.draw_below(1 << 48):012x}" for _ in range(3))
        variant = "89ab"[self.draw_below(4)]
        return f"{one[:8]}-{one[8:]}-4{two[:3]}-{variant}{two[3:6]}-{three}"


@dataclass(frozen=True)
class PlantedFact:
    """A planted fact, `text[start:end]` of a sample's text; depth 0 is the start of the text."""

    text: str
    start: int
    end: int
    depth: float


@dataclass(frozen=True)
class TaskQuestion:
    """One question of a sample. `key` identifies the question in every run. `answers` are accepted
    answers, or texts that the score looks for one by one. `facts` has indices into the sample's
    facts, `max_new_tokens` limits the answer, `prime` is the start of the answer, which the prompt
    contains, and `data` has further values for the score."""

    key: str
    text: str
    answers: tuple[str, ...]
    facts: tuple[int, ...]
    max_new_tokens: int
    prime: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSample:
    """One document with questions about the document. `before` and `after` are the prompt's text
    around the document. `after` has `{question}`, or is None if the preset's prompt is used."""

    test: str
    length: int
    index: int
    text: str
    facts: tuple[PlantedFact, ...]
    questions: tuple[TaskQuestion, ...]
    before: str = ""
    after: str | None = None


@dataclass(frozen=True)
class TaskRequest:
    """The arguments of a task. `length` is the number of tokens in a document, and `samples` the
    number of questions. All requests pass the same function `count_tokens`, since the
    haystack caches counts by function."""

    length: int
    count_tokens: TokenCounter
    haystack: Haystack
    samples: int
    seed: int


class SelftestTask(NamedTuple):
    """The task of a self-test. `samples` makes documents with increasing `index`, and `score`
    scores an output, which includes the start of the answer, from 0 to 1."""

    samples: Callable[[TaskRequest], Iterator[TaskSample]]
    score: Callable[[TaskQuestion, str], float]


SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)")
WORD = re.compile(r"\S(?=\s)")
CHARACTER = re.compile(r"\S")
SLACK = 30
"""How many tokens a text may be too long or too short to end with a whole sentence."""


class Haystack:
    """A long text in paragraphs, from whose beginning documents are cut. `text` is the whole text
    of the files, or empty for the generated chronicle."""

    def __init__(self, name: str, parts: Iterable[str], text: str = "") -> None:
        self.name, self.text = name, text
        self._rest = iter(parts)
        self._parts: list[str] = []
        self._ends: dict[TokenCounter, list[int]] = {}

    @classmethod
    def from_text(cls, name: str, text: str) -> Haystack:
        """Makes a haystack of one text, whose paragraphs are separated by blank lines."""
        parts = (part.strip("\n") for part in re.split(r"\n[^\S\n]*\n", text))
        return cls(name, [part for part in parts if part.strip()], text)

    @classmethod
    def from_chronicle(cls, seed: int) -> Haystack:
        """Makes a haystack of the chronicle without facts, which has over a million tokens."""
        return cls("the chronicle", chronicle.generate_chronicle(seed))

    @classmethod
    def from_files(cls, source: str) -> Haystack:
        """Makes a haystack of a file or of all files in a folder. Raises DocumentError."""
        texts = [document.text.strip("\n") for document in read_documents([source])]
        return cls.from_text(Path(source).name or source, "\n\n".join(texts))

    def cut_first_paragraphs(self, count_tokens: TokenCounter, length: int) -> list[str]:
        """Returns the haystack's first paragraphs, which together have `length` tokens. The last
        paragraph may be cut after a sentence; a heading is never cut or left at the end. Raises
        UsageError: the haystack is shorter."""
        ends = self._count_tokens_by_paragraph(count_tokens, length)
        available = ends[-1] if ends else 0
        if not ends or available < length:
            raise UsageError(
                f"{self.name} must have at least {length:,} tokens, got {available:,}",
                "ask for a shorter length, or use a longer haystack",
            )
        whole = bisect_left(ends, length)
        before = ends[whole - 1] if whole else 0
        length, total = length - before, ends[whole] - before
        last = cut_paragraph(self._parts[whole], count_tokens, length, total)
        out = [*self._parts[:whole], *([last] if last else [])]
        while out and is_markdown_heading(out[-1]):
            out.pop()
        return out

    def _count_tokens_by_paragraph(self, count_tokens: TokenCounter, length: int) -> list[int]:
        """Counts the tokens up to the end of each paragraph, until there are `length` tokens."""
        ends = self._ends.setdefault(count_tokens, [])
        while not ends or ends[-1] < length:
            if len(ends) == len(self._parts):
                part = next(self._rest, None)
                if part is None:
                    break
                self._parts.append(part)
            tokens = count_added_tokens(count_tokens, self._parts[len(ends)], "\n\n")
            ends.append((ends[-1] if ends else 0) + tokens)
        return ends


def count_added_tokens(count_tokens: TokenCounter, text: str, joint: str) -> int:
    """Counts the tokens that a text adds after a sentence, since tokenizers may merge the two."""
    return count_tokens(f"a.{joint}{text}") - count_tokens("a.")


def is_markdown_heading(paragraph: str) -> bool:
    """Says whether a paragraph is a one-line Markdown heading."""
    return paragraph.startswith("#") and "\n" not in paragraph


def cut_paragraph(paragraph: str, count_tokens: TokenCounter, length: int, total: int) -> str:
    """Cuts a paragraph of `total` tokens to about `length` tokens, if possible after a sentence."""
    if length >= total:
        return paragraph
    if is_markdown_heading(paragraph):
        return ""

    def count_tokens_before(end: int) -> int:
        return count_added_tokens(count_tokens, paragraph[:end], "\n\n") if end else 0

    near = 0
    for boundary in (SENTENCE, WORD, CHARACTER):
        ends = [0, *(match.end() for match in boundary.finditer(paragraph)), len(paragraph)]
        over = min(bisect_right(ends, length, key=count_tokens_before), len(ends) - 1)
        around = ends[max(over - 1, 0)], ends[over]
        near = min(around, key=lambda end: abs(count_tokens_before(end) - length))
        if abs(count_tokens_before(near) - length) <= SLACK:
            break
    return paragraph[:near]


SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s+[^\sa-z]|\s*\Z)|[。！？]")
ABBREVIATIONS = (
    *("mr", "mrs", "ms", "messrs", "dr", "st", "prof", "capt", "col", "gen", "rev", "hon", "jr"),
    *("sr", "no", "vol", "fig", "vs", "etc", "cf", "e.g", "i.e"),
)
LAST_WORD = re.compile(r"(?<![\w.])[\w.]*\Z")
LINE_END = re.compile(r"\S(?=[^\S\n]*(?:\n|\Z))")
WORD_END = re.compile(r"\S(?=\s|\Z)")


def find_sentence_ends(text: str) -> list[int]:
    """Returns the offsets of the ends of all sentences in a text."""
    return [match.end() for match in SENTENCE_END.finditer(text) if _ends_sentence(text, match)]


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    # An unlimited search backwards would be slow if a whole book is one line.
    back = max(0, match.start() - 200)
    line = text[max(back, text.rfind("\n", back, match.start()) + 1) : match.end()].lstrip()
    if line.startswith(("#", "|")) or line.isupper():
        return False
    word = LAST_WORD.search(text[max(0, match.start() - 12) : match.start()])
    last = word[0].lower() if word else ""
    # One letter before the full stop is an initial, and one digit the number of a list item.
    return match[0][0] != "." or (len(last) > 1 and last not in ABBREVIATIONS)


def choose_even_depths(count: int) -> tuple[float, ...]:
    """Returns `count` depths, which are the middles of equal parts of a text."""
    return tuple((i + 0.5) / count for i in range(count))


def plant_sentences(
    text: str,
    sentences: Sequence[str],
    depths: Sequence[float],
    joints: tuple[str, str] = (" ", ""),
) -> tuple[str, tuple[PlantedFact, ...]]:
    """Plants each sentence, between the joints, at the end of a sentence of the text that is
    nearest to the sentence's depth. If the text has few sentences, plants after lines or words.
    Returns the new text, and the facts in the order of `sentences`. Raises UsageError: the text is
    too short."""
    for kind in (find_sentence_ends, LINE_END, WORD_END):
        gaps = kind(text) if callable(kind) else [m.end() for m in kind.finditer(text)]
        if len(gaps) >= 2 * len(sentences):
            break
    else:
        raise _make_no_room_error(sentences, f"a text of {len(text)} characters")
    whole = len(text) + sum(len(sentence) + len("".join(joints)) for sentence in sentences)
    pieces: list[str] = []
    starts: dict[int, int] = {}
    done = length = first = 0
    for turn, which in enumerate(sorted(range(len(sentences)), key=lambda i: depths[i])):
        # The text before the fact is original text and what has been planted so far.
        wanted = depths[which] * whole - len(joints[0]) - (length - done)
        last = len(gaps) - (len(sentences) - turn)
        at = bisect_left(gaps, wanted, first, last)
        if at > first and wanted - gaps[at - 1] <= gaps[at] - wanted:
            at -= 1
        first, gap, sentence = at + 1, gaps[at], sentences[which]
        after = joints[1] or ("" if text[gap : gap + 1].isspace() or gap == len(text) else " ")
        pieces += [text[done:gap], joints[0], sentence, after]
        starts[which] = length + gap - done + len(joints[0])
        length, done = starts[which] + len(sentence) + len(after), gap
    out = "".join([*pieces, text[done:]])
    return out, tuple(make_fact(out, starts[i], sentence) for i, sentence in enumerate(sentences))


def _make_no_room_error(sentences: Sequence[str], place: str) -> UsageError:
    return UsageError(
        f"{len(sentences)} planted sentences do not fit into {place}",
        "ask for fewer samples or a greater length",
    )


def make_fact(text: str, start: int, sentence: str) -> PlantedFact:
    """Returns the fact for a planted sentence that begins at `start` of the finished text."""
    return PlantedFact(sentence, start, start + len(sentence), start / len(text))


def plant_in_haystack(
    request: TaskRequest,
    sentences: Sequence[str],
    depths: Sequence[float] | None = None,
    joints: tuple[str, str] = (" ", ""),
) -> tuple[str, tuple[PlantedFact, ...]]:
    """Cuts the haystack to the requested length, and plants the sentences, by default at even
    depths. Raises UsageError: the sentences would fill more than half of the document, or the
    haystack is too short."""
    taken = sum(
        count_added_tokens(request.count_tokens, sentence, joints[0]) for sentence in sentences
    )
    if 2 * taken > request.length:
        raise _make_no_room_error(sentences, f"a length of {request.length} tokens")
    parts = request.haystack.cut_first_paragraphs(request.count_tokens, request.length - taken)
    depths = depths or choose_even_depths(len(sentences))
    return plant_sentences("\n\n".join(parts), sentences, depths, joints)


def check_sample_count(request: TaskRequest, limit: int, hint: str) -> None:
    """Raises UsageError if a request has more samples than the limit. `hint` says what to try."""
    if request.samples > limit:
        raise UsageError(f"samples must be at most {limit}, got {request.samples}", hint)


def divide_questions(request: TaskRequest, limit: int, sentences: Sequence[str]) -> Iterator[range]:
    """Divides the questions among documents, and yields the range of questions for each document. A
    question needs the given sentences, which may fill a third of a document for at most `limit`
    questions."""
    each = sum(count_added_tokens(request.count_tokens, sentence, " ") for sentence in sentences)
    count = max(1, min(limit, request.length // (3 * each)))
    for first in range(0, request.samples, count):
        yield range(first, min(first + count, request.samples))


def assign_fact_places(dice: StableRandom, counts: Sequence[int]) -> list[int]:
    """Assigns the places of planted facts to questions, and returns each place's question. Question
    i gets `counts[i]` places, spread at random over the whole document."""
    rounds = max(counts)
    out: list[int] = []
    for turn in range(rounds):
        takes = [
            which
            for which, count in enumerate(counts)
            if turn in {int((i + 0.5) * rounds / count) for i in range(count)}
        ]
        out += dice.draw_items(takes, len(takes))
    return out
