"""Documents with planted facts, and the questions about them: the parts of a self-test's task.

A task works on texts only. Its samples are determined by the task's name, the request and the
sample's index.
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
Size = Callable[[str], int]
"""Counts the tokens of a text."""


class StableRandom:
    """Random draws determined by the seeds, such as a test's name and an index."""

    def __init__(self, *seeds: str | int) -> None:
        self._random = random.Random(" ".join(str(part) for part in seeds))

    def fraction(self) -> float:
        """Returns a number from 0 to below 1."""
        return self._random.random()

    def below(self, n: int) -> int:
        """Returns a whole number from 0 to n - 1."""
        return int(self._random.random() * n)

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """Draws n different items in random order."""
        pool = list(items)
        for at in range(n):
            other = at + self.below(len(pool) - at)
            pool[at], pool[other] = pool[other], pool[at]
        return pool[:n]

    def draw_digits(self, n: int, first: str = "0123456789") -> str:
        """Returns a string of n digits that begins with one of `first`."""
        return first[self.below(len(first))] + "".join(str(self.below(10)) for _ in range(n - 1))

    def draw_uuid(self) -> str:
        """Returns a random UUID of version 4."""
        one, two, three = (f"{self.below(1 << 48):012x}" for _ in range(3))
        variant = "89ab"[self.below(4)]
        return f"{one[:8]}-{one[8:]}-4{two[:3]}-{variant}{two[3:6]}-{three}"


@dataclass(frozen=True)
class Fact:
    """A planted text, `text[start:end]` of its sample; depth 0 is the sample's start."""

    text: str
    start: int
    end: int
    depth: float


@dataclass(frozen=True)
class TaskQuestion:
    """One question of a sample. `key` is equal in every run, `answers` are accepted ones or texts
    that the score looks for one by one, `facts` are indices into the sample's, `longest` counts new
    tokens, `prime` is the start of the answer, given to the model, and `data` is for the score."""

    key: str
    text: str
    answers: tuple[str, ...]
    facts: tuple[int, ...]
    longest: int
    prime: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSample:
    """One document and its questions, between the benchmark's own words `before` and `after`, which
    contains `{question}`, or is None where the preset's prompt is used."""

    test: str
    length: int
    index: int
    text: str
    facts: tuple[Fact, ...]
    questions: tuple[TaskQuestion, ...]
    before: str = ""
    after: str | None = None


@dataclass(frozen=True)
class TaskRequest:
    """The arguments of a task: tokens of a document, counted by `size`, for which all requests pass
    one function object since the haystack caches counts by function, and number of questions."""

    length: int
    size: Size
    haystack: Haystack
    samples: int
    seed: int


class Task(NamedTuple):
    """A self-test: makes documents with increasing `index`, and scores, from 0 to 1, an output that
    includes the prime."""

    samples: Callable[[TaskRequest], Iterator[TaskSample]]
    score: Callable[[TaskQuestion, str], float]


SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)")
WORD = re.compile(r"\S(?=\s)")
CHARACTER = re.compile(r"\S")
SLACK = 30
"""Allowed difference in tokens, so that the text ends with a whole sentence."""


class Haystack:
    """A long text in paragraphs, of which documents take the first ones. `text` is the whole text
    of the files, empty for the generated chronicle."""

    def __init__(self, name: str, parts: Iterable[str], text: str = "") -> None:
        self.name, self.text = name, text
        self._rest = iter(parts)
        self._parts: list[str] = []
        self._ends: dict[Size, list[int]] = {}

    @classmethod
    def from_text(cls, name: str, text: str) -> Haystack:
        """Makes a haystack of one text, whose paragraphs are divided by blank lines."""
        parts = (part.strip("\n") for part in re.split(r"\n[^\S\n]*\n", text))
        return cls(name, [part for part in parts if part.strip()], text)

    @classmethod
    def chronicle(cls, seed: int) -> Haystack:
        """Makes a haystack of the generated chronicle without facts, over a million tokens."""
        return cls("the chronicle", chronicle.generate_paragraphs(seed))

    @classmethod
    def read(cls, source: str) -> Haystack:
        """Reads a file, or all files of a folder. Raises DocumentError, UsageError."""
        texts = [document.text.strip("\n") for document in read_documents([source])]
        return cls.from_text(Path(source).name or source, "\n\n".join(texts))

    def cut(self, size: Size, n: int) -> list[str]:
        """Returns the first paragraphs, n tokens together with blank lines between them. The last
        paragraph may be cut after a sentence; no heading is cut or left at the end. Raises
        UsageError: the text is shorter."""
        ends = self._count(size, n)
        if not ends or ends[-1] < n:
            raise UsageError(
                f"{self.name} must have at least {n:,} tokens, got {ends[-1] if ends else 0:,}",
                "ask for a shorter length, or give more text",
            )
        whole = bisect_left(ends, n)
        before = ends[whole - 1] if whole else 0
        last = cut_paragraph(self._parts[whole], size, n - before, ends[whole] - before)
        out = [*self._parts[:whole], *([last] if last else [])]
        while out and is_heading(out[-1]):
            out.pop()
        return out

    def _count(self, size: Size, n: int) -> list[int]:
        """Returns the tokens up to the end of each paragraph, as far as the n-th token."""
        ends = self._ends.setdefault(size, [])
        while not ends or ends[-1] < n:
            if len(ends) == len(self._parts):
                part = next(self._rest, None)
                if part is None:
                    break
                self._parts.append(part)
            tokens = added_tokens(size, self._parts[len(ends)], "\n\n")
            ends.append((ends[-1] if ends else 0) + tokens)
        return ends


def added_tokens(size: Size, text: str, joint: str) -> int:
    """Counts the tokens that `text` adds after a sentence, since tokenizers may merge the two."""
    return size(f"a.{joint}{text}") - size("a.")


def is_heading(paragraph: str) -> bool:
    """Says whether a paragraph is a Markdown heading of one line."""
    return paragraph.startswith("#") and "\n" not in paragraph


def cut_paragraph(paragraph: str, size: Size, n: int, total: int) -> str:
    """Cuts a paragraph of `total` tokens to about n: whole sentences if they come close."""
    if n >= total:
        return paragraph
    if is_heading(paragraph):
        return ""

    def tokens(end: int) -> int:
        return added_tokens(size, paragraph[:end], "\n\n") if end else 0

    near = 0
    for boundary in (SENTENCE, WORD, CHARACTER):
        ends = [0, *(match.end() for match in boundary.finditer(paragraph)), len(paragraph)]
        over = min(bisect_right(ends, n, key=tokens), len(ends) - 1)
        near = min(ends[max(over - 1, 0)], ends[over], key=lambda end: abs(tokens(end) - n))
        if abs(tokens(near) - n) <= SLACK:
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


def sentence_ends(text: str) -> list[int]:
    """Finds the offsets of the ends of sentences in running text."""
    return [match.end() for match in SENTENCE_END.finditer(text) if _ends_sentence(text, match)]


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    # An unlimited search backwards would be slow where a whole book is one line.
    back = max(0, match.start() - 200)
    line = text[max(back, text.rfind("\n", back, match.start()) + 1) : match.end()].lstrip()
    if line.startswith(("#", "|")) or line.isupper():
        return False
    word = LAST_WORD.search(text[max(0, match.start() - 12) : match.start()])
    last = word[0].lower() if word else ""
    # One letter is an initial; one digit is a list's number.
    return match[0][0] != "." or (len(last) > 1 and last not in ABBREVIATIONS)


def even_depths(n: int) -> tuple[float, ...]:
    """Returns n depths, each in the middle of one n-th of the text."""
    return tuple((i + 0.5) / n for i in range(n))


def plant_sentences(
    text: str,
    sentences: Sequence[str],
    depths: Sequence[float],
    joints: tuple[str, str] = (" ", ""),
) -> tuple[str, tuple[Fact, ...]]:
    """Puts sentence i, between the joints, at depth i of the text, as near as the ends of sentences
    allow, none inside another; in a text with few sentences after lines or words. Returns the new
    text, and the facts in the order of `sentences`. Raises UsageError: the text is too short."""
    for kind in (sentence_ends, LINE_END, WORD_END):
        gaps = kind(text) if callable(kind) else [m.end() for m in kind.finditer(text)]
        if len(gaps) >= 2 * len(sentences):
            break
    else:
        raise _no_room(sentences, f"a text of {len(text)} characters")
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
    return out, tuple(fact_at(out, starts[i], sentence) for i, sentence in enumerate(sentences))


def _no_room(sentences: Sequence[str], got: str) -> UsageError:
    return UsageError(
        f"{len(sentences)} planted sentences must have room, got {got}",
        "ask for fewer samples or a greater length",
    )


def fact_at(text: str, start: int, sentence: str) -> Fact:
    """Returns the fact of a sentence that begins at `start` of the finished text."""
    return Fact(sentence, start, start + len(sentence), start / len(text))


def plant_in_haystack(
    request: TaskRequest,
    sentences: Sequence[str],
    depths: Sequence[float] | None = None,
    joints: tuple[str, str] = (" ", ""),
) -> tuple[str, tuple[Fact, ...]]:
    """Cuts the haystack to the requested length, and plants the sentences in it, at even depths by
    default. Raises UsageError: the sentences would fill more than half of the document; or as
    `plant_sentences` and `Haystack.cut`."""
    taken = sum(added_tokens(request.size, sentence, joints[0]) for sentence in sentences)
    if 2 * taken > request.length:
        raise _no_room(sentences, f"a length of {request.length} tokens")
    parts = request.haystack.cut(request.size, request.length - taken)
    depths = depths or even_depths(len(sentences))
    return plant_sentences("\n\n".join(parts), sentences, depths, joints)


def check_samples(request: TaskRequest, limit: int, reason: str) -> None:
    """Raises UsageError: the request has more samples than `limit`."""
    if request.samples > limit:
        raise UsageError(f"samples must be at most {limit}, got {request.samples}", reason)


def share_documents(request: TaskRequest, limit: int, sentences: Sequence[str]) -> Iterator[range]:
    """Yields the numbers of the questions of each document: at most `limit`, and as many as fill a
    third of the text with sentences like those given."""
    each = sum(added_tokens(request.size, sentence, " ") for sentence in sentences)
    count = max(1, min(limit, request.length // (3 * each)))
    for first in range(0, request.samples, count):
        yield range(first, min(first + count, request.samples))


def deal_places(dice: StableRandom, counts: Sequence[int]) -> list[int]:
    """Returns the question that each place of a document belongs to, in order. Question i has
    `counts[i]` places, spread at random over the whole document."""
    rounds = max(counts)
    out: list[int] = []
    for turn in range(rounds):
        takes = [
            which
            for which, count in enumerate(counts)
            if turn in {int((i + 0.5) * rounds / count) for i in range(count)}
        ]
        out += dice.some(takes, len(takes))
    return out
