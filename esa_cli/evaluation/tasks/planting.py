"""Puts sentences into a text at given depths, and returns their exact places.

A depth is a share of the finished text's characters. A planted sentence follows the end of another
in running text: not in headings and tables, nor after an abbreviation. In a text with too few
sentences it follows a line, or else a word. The rest of the text is unchanged.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.haystack_text import added_tokens
from esa_cli.evaluation.tasks.stable_random import StableRandom
from esa_cli.evaluation.tasks.task_sample import Fact, TaskRequest

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
    """Puts sentence i at depth i, as near as the places allow; none is inside another.

    Args:
        places: allowed places; the first kind with twice as many places as sentences is used.
        joints: texts before and after each sentence.

    Returns:
        The text, and the facts in the order of `sentences`.

    Raises:
        UsageError: a depth outside 0..1, or a text too short for all sentences.
    """
    if wrong := [depth for depth in depths if not 0 <= depth <= 1]:
        raise UsageError(f"depth must be from 0 to 1, got {wrong[0]:g}", "0 is the beginning")
    gaps = _gaps(text, places, len(sentences))
    whole = len(text) + sum(len(sentence) + len("".join(joints)) for sentence in sentences)
    pieces: list[str] = []
    starts: dict[int, int] = {}
    done = length = first = 0
    for turn, which in enumerate(sorted(range(len(sentences)), key=lambda i: depths[i])):
        # The text before the fact is original text and what has been planted so far.
        wanted = depths[which] * whole - len(joints[0]) - (length - done)
        at = _nearest(gaps, wanted, first, len(gaps) - (len(sentences) - turn))
        first, gap, sentence = at + 1, gaps[at], sentences[which]
        behind = joints[1] or ("" if text[gap : gap + 1].isspace() or gap == len(text) else " ")
        pieces += [text[done:gap], joints[0], sentence, behind]
        starts[which] = length + gap - done + len(joints[0])
        length, done = starts[which] + len(sentence) + len(behind), gap
    out = "".join([*pieces, text[done:]])
    return out, tuple(fact_at(out, starts[i], one) for i, one in enumerate(sentences))


def fact_at(text: str, start: int, sentence: str) -> Fact:
    """The fact of a sentence that begins at `start` of the finished text."""
    return Fact(sentence, start, start + len(sentence), start / len(text))


def _gaps(text: str, places: Sequence[Places], n: int) -> list[int]:
    for place in places:
        if len(gaps := place(text)) >= 2 * n:
            return gaps
    raise UsageError(
        f"the text must have room for {n} planted sentences, got less",
        "ask for fewer samples or a greater length",
    )


def _nearest(gaps: Sequence[int], wanted: float, first: int, last: int) -> int:
    """Index, from first to last, of the gap nearest to an offset; the earlier of two."""
    at = bisect_left(gaps, wanted, first, last)
    return at - 1 if at > first and wanted - gaps[at - 1] <= gaps[at] - wanted else at


def together(request: TaskRequest, most: int, sentences: Sequence[str]) -> int:
    """Number of questions with such sentences that share a document: one in the exact form, else as
    many as fill a third of the text, at most `most`."""
    if request.exact:
        return 1
    each = sum(added_tokens(request.size, sentence, " ") for sentence in sentences)
    return max(1, min(most, request.length // (3 * each)))


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
