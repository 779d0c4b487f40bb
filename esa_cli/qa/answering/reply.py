"""Data types of answers and of the evidence for an answer, and comparisons with earlier
questions and answers; this module does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from esa_cli.qa.finding.passage import Passage

if TYPE_CHECKING:
    from esa_cli.qa.finding.passage_finder import Book


class Turn(NamedTuple):
    """One earlier question and its answer."""

    question: str
    answer: str


LONGEST = 500
"""The maximum number of characters of a question that completes the next question."""


def find_last_answered_turn(history: Sequence[Turn]) -> Turn | None:
    """Returns the last turn that has a question and an answer; None if its question is long."""
    whole = (turn for turn in reversed(history) if turn.question.strip() and turn.answer.strip())
    last = next(whole, None)
    return None if last is None or len(last.question) > LONGEST else last


def repeats_answer(quotation: str, answer: str) -> bool:
    """Whether a quotation contains an answer, or is at least half of the answer."""
    new, old = (" ".join(text.casefold().split()).strip(" .") for text in (quotation, answer))
    return old in new or (new in old and 2 * len(new) >= len(old))


@dataclass(frozen=True)
class Quotation:
    """The place of a quoted answer: characters [start, end) of the document named `document`."""

    document: str
    start: int
    end: int


@dataclass(frozen=True)
class CheckedSentence:
    """A sentence, characters [start, end) of another model's answer, that was checked against the
    passages. `passage` is the number, from 1, of the one that it fits best, or None, by which an
    answer cites this passage, as in `[2]`; `evidence[1]` is this passage."""

    start: int
    end: int
    supported: bool  # whether the passages lack nothing of it, as far as the check sees
    passage: int | None = None
    missing: tuple[str, ...] = ()  # quotations, numbers, names or words that the passages lack

    def format_mark(self) -> str:
        """Returns a line about what the passages lack."""
        return f"not in the passages: {', '.join(self.missing)}"


class ShadedSpan(NamedTuple):
    """Characters [start, end) of a document with a shade from 1 to 8 in a heat map."""

    start: int
    end: int
    level: int


class HeatMap(NamedTuple):
    """The spans of a document that are shaded to show on which text the answer rests."""

    document: str
    spans: tuple[ShadedSpan, ...]


NOT_TOLD = "Nothing found that answers."
"""The answer if no passage contains an answer: it speaks of the search, not of the documents."""
NEEDS_READER = "This asks for more than a quotation: a model of --reader can write it."
"""The answer of the default reader to a request such as "Summarise ..."."""
Certainty = Literal["answer", "perhaps", "nothing"]
"""How certain an answer is: mostly right, about as often wrong as right, or nothing was found."""
_NOT_TOLD = re.compile(
    r"\W*(?:nothing (?:was )?found that answers\b|"
    r"(?:the )?(?:given |provided )?(?:documents?|passages?|texts?) (?:do|does)(?: not|n['’]t) "
    r"(?:say|tell|state|mention|specify|contain|provide)\b)",
    re.IGNORECASE,
)


def says_nothing_found(answer: str) -> bool:
    """Whether an answer says that nothing was found, in the words of esa or of another model."""
    return answer == NEEDS_READER or bool(_NOT_TOLD.match(answer))


@dataclass(frozen=True)
class Reply:
    """An answer to a question, with the passages that are its evidence, and with durations.

    Args:
        evidence: passages, heaviest first. found: False if no passage has enough weight, so that
            the documents may not contain the answer.
        certainty, probability: of the text as the answer; None if another model wrote the text.
        first_token_s, total_s: seconds from the question to the first token, and to the end.
        cut: whether the answer reached its maximum length.
        answered_from: `rows`: selected tokens of the KV cache; `text`: passages that were read;
            `section`: a whole chapter, section or document.
        quotations: the places of the text, or of its parts, in documents, if they are quoted.
        read: whether all documents have a token index; else words alone found passages of some.
        foreign_languages: for which the default finder was not trained, of the document that is
            quoted or, without a quotation, of the documents of the passages.
        sentences: that were checked, if another model wrote the text from passages.
        missing_words: names, numbers and nouns of the question that no document has in any form,
            as far as that is known; () with the certainty `answer`.
        names: in the question, if the certainty is `nothing`."""

    text: str
    evidence: tuple[Passage, ...] = ()
    found: bool = True
    question_tokens: int = 0
    answer_tokens: int = 0
    first_token_s: float = 0.0
    total_s: float = 0.0
    cut: bool = False
    answered_from: Literal["rows", "text", "section"] = "rows"
    quotations: tuple[Quotation, ...] = ()
    read: bool = True
    certainty: Certainty | None = None
    probability: float | None = None
    foreign_languages: tuple[str, ...] = ()
    sentences: tuple[CheckedSentence, ...] = ()
    missing_words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def quotation(self) -> Quotation | None:
        return self.quotations[0] if self.quotations else None

    @property
    def text_with_certainty(self) -> str:
        """The answer as people see it: `perhaps: ` stands before an uncertain one."""
        return f"perhaps: {self.text}" if self.certainty == "perhaps" else self.text

    def describe_missing_words(
        self, documents: str = "The documents", passages: Sequence[Passage] | None = None
    ) -> str:
        """Returns a sentence that names at most three missing words, and a sentence about the names
        that `passages`, by default all of the reply, have; or "" if there are none."""
        words = [f'"{word}"' for word in self.missing_words[:3]]
        said = [f"{documents} never mention {' or '.join(words)}."] if words else []
        shown = self.evidence if passages is None else passages
        text = "\n".join(" ".join(one.text.split()) for one in shown)
        whole_words = (rf"(?<!\w){re.escape(name)}(?!\w)" for name in self.names)
        if found := [f'"{match[0]}"' for one in whole_words if (match := re.search(one, text))]:
            said.append(f"The passages name {' and '.join(found)}; none answers.")
        return " ".join(said)

    def describe_foreign_languages(self) -> str:
        """Returns a sentence about the foreign languages of a quotation, or ""."""
        if self.certainty is None or not self.foreign_languages:
            return ""
        what = "There are passages" if self.quotation is None else "The quoted document is"
        return (
            f"{what} in {' and '.join(self.foreign_languages)}; the finder was trained mostly on "
            "English: a --reader may answer better, and `esa models suggest` names one."
        )

    @property
    def text_with_marks(self) -> str:
        """`text_with_certainty`, with a mark after each sentence that no passage supports."""
        parts, at = list[str](), 0
        for one in self.unsupported_sentences:
            parts.append(f"{self.text[at : one.end]} [? {one.format_mark()}]")
            at = one.end
        return "".join([*parts, self.text[at:]]) if parts else self.text_with_certainty

    @property
    def unsupported_sentences(self) -> list[CheckedSentence]:
        return [one for one in self.sentences if not one.supported]

    @property
    def doubtful(self) -> bool:
        """Whether no answer was found, although the reply's text does not say "nothing found"."""
        return not self.found and not says_nothing_found(self.text)

    def _repr_html_(self) -> str:
        """Returns the reply as a notebook shows it."""
        notes = ["The documents may not contain the answer."] if self.doubtful else []
        notes += ["The nearest passages:"] if self.evidence and not self.found else []
        style = 'dir="auto" style="white-space: pre-wrap"'
        items = [
            f"<li><div {style}>{mark_quotations(one, self.quotations)}</div>"
            f"<small>{escape(one.describe_place())}</small></li>"
            for one in self.evidence
        ]
        answer = f"<p {style}><b>{escape(self.text_with_marks)}</b></p>"
        shown = "".join(f"<p>{note}</p>" for note in notes)
        return f"{answer}{shown}<ol>{''.join(items)}</ol>".encode("utf-8", "replace").decode()

    def to_json(self) -> dict[str, Any]:
        return {
            "answer": self.text,
            "found": self.found,
            "certainty": self.certainty,
            "probability": None if self.probability is None else round(self.probability, 3),
            "cut": self.cut,
            "answered_from": self.answered_from,
            "read": self.read,
            "quotation": None if self.quotation is None else asdict(self.quotation),
            "quotations": [asdict(one) for one in self.quotations],
            "sentences": [asdict(one) for one in self.sentences],
            "missing_words": list(self.missing_words),
            "foreign_languages": list(self.foreign_languages),
            "evidence": [passage.as_evidence() for passage in self.evidence],
            "tokens": {"question": self.question_tokens, "answer": self.answer_tokens},
            "timing": {
                "first_token_s": round(self.first_token_s, 3),
                "total_s": round(self.total_s, 3),
            },
        }


def describe_unextracted_parts(books: Sequence[Book]) -> list[str]:
    """Describes the parts of documents whose text could not be extracted, each as `NAME: PART`."""
    documents = [book.document for book in books]
    return [f"{document.name}: {part}" for document in documents for part in document.missing]


def locate_quotations(passage: Passage, quotations: Iterable[Quotation]) -> list[tuple[int, int]]:
    """Returns the quoted characters [start, end) of a passage's text in order, without overlaps."""
    end, found = 0, list[tuple[int, int]]()
    for one in sorted(quotations, key=lambda one: one.start):
        first = max(one.start - passage.start, 0)
        last = min(one.end - passage.start, len(passage.text))
        if one.document == passage.document and end <= first < last:
            found.append((first, last))
            end = last
    return found


def mark_quotations(passage: Passage, quotations: Iterable[Quotation]) -> str:
    """Returns the text of a passage as HTML, in which the quoted words are marked."""
    quoted = locate_quotations(passage, quotations)
    return mark_spans(passage.text, ((start, end, "<mark>") for start, end in quoted))


def mark_spans(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """Returns a text as HTML with its spans (start, end, opening tag), in order, in `mark`s."""
    at, out = 0, ""
    for start, end, opening_tag in spans:
        start = max(start, at)
        out += f"{escape(text[at:start])}{opening_tag}{escape(text[start:end])}</mark>"
        at = max(start, end)
    return out + escape(text[at:])
