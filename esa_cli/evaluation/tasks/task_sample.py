"""What a self-test's task makes: documents with facts, questions about them, and scores.

A task works on texts only. Its samples are determined by its name, the request (length, seed,
haystack, counting function, depths, number of samples) and the sample's index.
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


class StableRandom:
    """Draws that are determined by the seeds, such as a test's name and an index."""

    def __init__(self, *seeds: str | int) -> None:
        self._random = random.Random(" ".join(str(part) for part in seeds))

    def fraction(self) -> float:
        """A number from 0 to below 1."""
        return self._random.random()

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1."""
        return int(self._random.random() * n)

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """n different items in random order."""
        pool = list(items)
        for at in range(n):
            other = at + self.below(len(pool) - at)
            pool[at], pool[other] = pool[other], pool[at]
        return pool[:n]

    def digits(self, n: int, first: str = "0123456789") -> str:
        """A string of n digits; the first is one of `first`."""
        return first[self.below(len(first))] + "".join(str(self.below(10)) for _ in range(n - 1))

    def uuid(self) -> str:
        """A random UUID, of version 4."""
        one, two, three = (f"{self.below(1 << 48):012x}" for _ in range(3))
        variant = "89ab"[self.below(4)]
        return f"{one[:8]}-{one[8:]}-4{two[:3]}-{variant}{two[3:6]}-{three}"


@dataclass(frozen=True)
class Fact:
    """The text that a question asks for, `text[start:end]` of the sample; depth 0 is its start."""

    text: str
    start: int
    end: int
    depth: float


@dataclass(frozen=True)
class TaskQuestion:
    """One question of a sample.

    Args:
        key: unique within the sample and the same in every run.
        answers: those accepted, or texts that are searched one by one.
        facts: indices into `TaskSample.facts`. longest: new tokens allowed.
        prime: the answer's first words, given to the model.
        data: further values for the score.
    """

    key: str
    text: str
    answers: tuple[str, ...]
    facts: tuple[int, ...]
    longest: int
    prime: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSample:
    """One document and its questions.

    Args:
        before, after: the benchmark's own words around the document; `after` contains
            `{question}`; None: the preset's prompt is used.
    """

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
    """The arguments of a task.

    Args:
        length: tokens of a document, by `size`, which must be one function object: the haystack
            caches its counts.
        depths: depths of facts, 0..1, repeated when there are more facts; None: even, or the
            benchmark's own.
        samples: number of questions. The exact form of `needle` asks each at every depth.
        exact: the benchmark's own form; otherwise the shared form, with many questions about a
            document where possible.
    """

    length: int
    size: Size
    haystack: Haystack
    depths: tuple[float, ...] | None
    samples: int
    seed: int
    exact: bool


class Task(NamedTuple):
    """A test.

    Args:
        samples: makes the documents one at a time, with increasing `index`.
        score: 0 to 1, of a question and an output that includes the prime.
    """

    samples: Callable[[TaskRequest], Iterator[TaskSample]]
    score: Callable[[TaskQuestion, str], float]


SUFFIXES = (".txt", ".md")
SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)")
WORD = re.compile(r"\S(?=\s)")
CHARACTER = re.compile(r"\S")
SLACK = 30
"""Allowed difference in tokens, so that the text ends with a whole sentence."""


class Haystack:
    """A long text in paragraphs.

    Args:
        name: for messages and reports. parts: the paragraphs, consumed as far as needed.
        text: the whole text of the files; empty when it is generated.
    """

    def __init__(self, name: str, parts: Iterable[str], text: str = "") -> None:
        self.name, self.text = name, text
        self._rest = iter(parts)
        self._parts: list[str] = []
        self._ends: dict[Size, list[int]] = {}

    @classmethod
    def of(cls, name: str, text: str) -> Haystack:
        """A haystack of one text; blank lines divide paragraphs."""
        parts = (part.strip("\n") for part in re.split(r"\n[^\S\n]*\n", text))
        return cls(name, [part for part in parts if part.strip()], text)

    @classmethod
    def chronicle(cls, seed: int) -> Haystack:
        """The generated chronicle, without the demo's facts: more than a million tokens."""
        return cls("the chronicle", chronicle.paragraphs(seed))

    @classmethod
    def read(cls, source: str) -> Haystack:
        """A text file, or all .txt and .md files of a folder in the order of their names. Raises
        UsageError: a folder without such files. DocumentError: a file that cannot be read."""
        path, names = Path(source), [source]
        if path.is_dir():
            names = sorted(str(file) for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            if not names:
                raise UsageError(
                    f"the haystack's folder must have text files, got {source}",
                    "put .txt or .md files into it",
                )
        texts = [document.text.strip("\n") for document in read_documents(names)]
        return cls.of(path.name or source, "\n\n".join(texts))

    def cut(self, size: Size, n: int, unit: str = "tokens") -> list[str]:
        """The first paragraphs, n tokens together with blank lines between; the last one may be cut
        after a sentence. Headings are never cut, nor left at the end. Raises UsageError: the text
        is shorter."""
        ends = self._count(size, n)
        if not ends or ends[-1] < n:
            raise UsageError(
                f"{self.name} must have at least {n:,} {unit}, got {ends[-1] if ends else 0:,}",
                "ask for a shorter length, or give more text",
            )
        whole = bisect_left(ends, n)
        before = ends[whole - 1] if whole else 0
        last = start_of(self._parts[whole], size, n - before, ends[whole] - before)
        out = [*self._parts[:whole], *([last] if last else [])]
        while out and is_heading(out[-1]):
            out.pop()
        return out

    def _count(self, size: Size, n: int) -> list[int]:
        """Numbers of tokens up to the end of each paragraph, as far as the n-th token."""
        ends = self._ends.setdefault(size, [])
        while not ends or ends[-1] < n:
            if len(ends) == len(self._parts):
                part = next(self._rest, None)
                if part is None:
                    break
                self._parts.append(part)
            more = added_tokens(size, self._parts[len(ends)], "\n\n")
            ends.append((ends[-1] if ends else 0) + more)
        return ends


def added_tokens(size: Size, text: str, joint: str) -> int:
    """Tokens that `text` adds after a sentence, since tokenizers may merge the two."""
    return size(f"a.{joint}{text}") - size("a.")


def is_heading(paragraph: str) -> bool:
    """True if a paragraph is a Markdown heading of one line."""
    return paragraph.startswith("#") and "\n" not in paragraph


def start_of(paragraph: str, size: Size, n: int, total: int) -> str:
    """About the first n of a paragraph's `total` tokens: whole sentences if they come close."""
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

Places = Callable[[str], list[int]]


def sentence_ends(text: str) -> list[int]:
    """Offsets of the ends of sentences in running text."""
    return [match.end() for match in SENTENCE_END.finditer(text) if _is_end(text, match)]


def line_ends(text: str) -> list[int]:
    """Offsets of the ends of non-empty lines."""
    return [match.end() for match in re.finditer(r"\S(?=[^\S\n]*(?:\n|\Z))", text)]


def word_ends(text: str) -> list[int]:
    """Offsets of the ends of words."""
    return [match.end() for match in re.finditer(r"\S(?=\s|\Z)", text)]


PLACES, JOINTS = (sentence_ends, line_ends, word_ends), (" ", "")


def _is_end(text: str, match: re.Match[str]) -> bool:
    # An unlimited search backwards would be slow where a whole book is one line.
    back = max(0, match.start() - 200)
    line = text[max(back, text.rfind("\n", back, match.start()) + 1) : match.end()].lstrip()
    if line.startswith(("#", "|")) or line.isupper():
        return False
    word = LAST_WORD.search(text[max(0, match.start() - 12) : match.start()])
    last = word[0].lower() if word else ""
    # One letter is an initial; one digit is a list's number.
    return match[0][0] != "." or (len(last) > 1 and last not in ABBREVIATIONS)


def even(n: int) -> tuple[float, ...]:
    """n depths, each in the middle of one n-th of the text."""
    return tuple((i + 0.5) / n for i in range(n))


def depths_of(request: TaskRequest, n: int) -> tuple[float, ...]:
    """n depths: those of the request, repeated when they are fewer, or even ones. Raises
    UsageError: there are more depths than facts, so that some would be unused."""
    asked = request.depths
    if asked and len(asked) > n:
        raise UsageError(
            f"depths must be at most {n}, as many as facts in a document, got {len(asked)}",
            "ask for as many --samples as --depths, or more",
        )
    return tuple(asked[i % len(asked)] for i in range(n)) if asked else even(n)


def plant(
    text: str,
    sentences: Sequence[str],
    depths: Sequence[float],
    places: Sequence[Places] = PLACES,
    joints: tuple[str, str] = JOINTS,
) -> tuple[str, tuple[Fact, ...]]:
    """The text with sentence i at depth i, as near as the places allow; none is inside another. The
    facts are in the order of `sentences`.

    Args:
        places: allowed places; the first kind with twice as many places as sentences is used.
        joints: texts before and after each sentence.

    Raises:
        UsageError: a depth outside 0..1, or a text too short for all sentences.
    """
    if wrong := [depth for depth in depths if not 0 <= depth <= 1]:
        raise UsageError(f"depth must be from 0 to 1, got {wrong[0]:g}", "0 is the beginning")
    gaps = next(
        (gaps for gaps in (place(text) for place in places) if len(gaps) >= 2 * len(sentences)),
        None,
    )
    if gaps is None:
        raise UsageError(
            f"the text must have room for {len(sentences)} planted sentences, got less",
            "ask for fewer samples or a greater length",
        )
    whole = len(text) + sum(len(sentence) + len("".join(joints)) for sentence in sentences)
    pieces: list[str] = []
    starts: dict[int, int] = {}
    done = length = first = 0
    for turn, which in enumerate(sorted(range(len(sentences)), key=lambda i: depths[i])):
        # The text before the fact is original text and what has been planted so far.
        wanted = depths[which] * whole - len(joints[0]) - (length - done)
        at = _nearest(gaps, wanted, first, len(gaps) - (len(sentences) - turn))
        first, gap, sentence = at + 1, gaps[at], sentences[which]
        after = joints[1] or ("" if text[gap : gap + 1].isspace() or gap == len(text) else " ")
        pieces += [text[done:gap], joints[0], sentence, after]
        starts[which] = length + gap - done + len(joints[0])
        length, done = starts[which] + len(sentence) + len(after), gap
    out = "".join([*pieces, text[done:]])
    return out, tuple(fact_at(out, starts[i], sentence) for i, sentence in enumerate(sentences))


def fact_at(text: str, start: int, sentence: str) -> Fact:
    """The fact of a sentence that begins at `start` of the finished text."""
    return Fact(sentence, start, start + len(sentence), start / len(text))


def _nearest(gaps: Sequence[int], wanted: float, first: int, last: int) -> int:
    """Index, from first to last, of the gap nearest to an offset; the earlier of two."""
    at = bisect_left(gaps, wanted, first, last)
    return at - 1 if at > first and wanted - gaps[at - 1] <= gaps[at] - wanted else at


def document(
    request: TaskRequest,
    sentences: Sequence[str],
    depths: Sequence[float],
    places: Sequence[Places] = PLACES,
    joints: tuple[str, str] = JOINTS,
) -> tuple[str, tuple[Fact, ...]]:
    """The haystack with the sentences planted in it, cut to the requested length. Raises
    UsageError: as `plant`, `room` and `Haystack.cut`."""
    parts = request.haystack.cut(request.size, room(request, sentences, joints[0]))
    return plant("\n\n".join(parts), sentences, depths, places, joints)


def room(request: TaskRequest, sentences: Sequence[str], joint: str) -> int:
    """Tokens of the document that are left for the haystack. Raises UsageError: the sentences would
    fill more than half of the document."""
    taken = sum(added_tokens(request.size, sentence, joint) for sentence in sentences)
    if 2 * taken > request.length:
        raise UsageError(
            f"length must have room for {len(sentences)} planted sentences, "
            f"got {request.length} tokens",
            "ask for fewer samples or a greater length",
        )
    return request.length - taken


def check_samples(request: TaskRequest, most: int, why: str) -> None:
    """Raises UsageError: the request has more samples than there can be."""
    if request.samples > most:
        raise UsageError(f"samples must be at most {most}, got {request.samples}", why)


def together(request: TaskRequest, most: int, sentences: Sequence[str]) -> Iterator[range]:
    """The numbers of the questions of each document: one in the exact form, else as many with such
    sentences as fill a third of the text, at most `most`."""
    each = sum(added_tokens(request.size, sentence, " ") for sentence in sentences)
    count = 1 if request.exact else max(1, min(most, request.length // (3 * each)))
    for first in range(0, request.samples, count):
        yield range(first, min(first + count, request.samples))


def dealt(dice: StableRandom, counts: Sequence[int]) -> list[int]:
    """The question that each place of a document belongs to, in order: each question has `count`
    places, spread over the whole document, at random within that."""
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
