"""Sentences of another model's answer: what the passages lack of them, and what is not checked."""

from __future__ import annotations

import re
from collections.abc import Sequence

import properties  # noqa: F401
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esa_cli.qa.answering.reply import NOT_TOLD, CheckedSentence, Reply
from esa_cli.qa.answering.sentence_check import LEAST_LATE, AnswerCheck
from esa_cli.qa.finding.passage import Passage

MILL = (
    "The mill of Brookfield burned down on 3 May 1812, because a miller called Ann Brown had left "
    "a lamp in the straw. Rebuilding cost 1,250 crowns, and the town’s council - it had little "
    "money - paid only twelve of them."
)
BOAT = "A grey boat lay at the pier for 2.5 years, until Captain Ahab sold it in Ulm."
COMMON = {"the", "a", "it", "she", "he", "in", "there", "nobody", "captain", "they", "yes", "sure"}


def check(
    answer: str, texts: Sequence[str] = (MILL, BOAT), question: str = "What happened?",
    late: Sequence[float] | None = None,
) -> tuple[CheckedSentence, ...]:  # fmt: skip
    passages = [
        Passage("book.txt", "", page, 1, None, 0, len(text), text)
        for page, text in enumerate(texts, 40)
    ]
    return AnswerCheck(
        answer, [question], passages, lambda word: word.lower() in COMMON, lambda sentence: late
    ).check_sentences()


def missing(answer: str, **more: object) -> list[str]:
    return [text for one in check(answer, **more) for text in one.missing]  # type: ignore[arg-type]


def test_each_sentence_of_a_passage_is_supported() -> None:
    for checked in (check(f"{MILL} {BOAT}"), check(f"{BOAT}\n\n- {MILL}\n")):
        assert len(checked) == 3
        assert all(one.supported for one in checked)
    assert [one.passage for one in check(f"{MILL} {BOAT}")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("sentence", "lacks"),
    [
        ("The mill burned down in 1821.", ["1821"]),
        ("Rebuilding the mill cost 1250 crowns.", []),
        ("Rebuilding the mill cost 1.250 crowns.", []),
        ("Rebuilding the mill cost 12,50 crowns.", ["12,50"]),
        ("Rebuilding the mill cost 250 crowns.", ["250"]),
        ("The mill burned down on May 03, 1812.", []),
        ("The council paid 12 crowns, and one of the council had little money.", []),
        ("The council paid thirteen crowns.", ["thirteen"]),
        ("The grey boat lay at the pier for 2.50 years.", []),
        ("The grey boat lay at the pier for two years.", ["two"]),
        ("The grey boat lay at the pier (book.txt, page 41).", []),
        ("The miller Ann Brown had left a lamp.", []),
        ("The miller Ann Miller had left a lamp.", []),
        ("The miller Bea Brown had left a lamp.", ["Bea"]),
        ("Bea left a lamp in the straw.", ["Bea"]),
        ("Nobody but Ahab's council left a lamp in the straw.", []),
        ("Captain Ahab sold the boat in NATO's Ulm, said Mr Ahab.", []),
        ("It is told that “the town's council — it had little money” paid.", []),
        ('It is told that "the town’s  COUNCIL had little money" paid.',
         ["the town’s  COUNCIL had little money"]),
        ('It is told that "a lamp [...] the town\'s council ... it had little money" paid.', []),
        ("The council had little money, and the \"lamp mill\" burned.", []),
    ],
)  # fmt: skip
def test_numbers_names_and_quotations(sentence: str, lacks: list[str]) -> None:
    assert missing(sentence) == lacks


def test_numbers_and_names_of_the_question_need_no_passage() -> None:
    question = "Did the mill of Bea Miller burn in 1999?"
    assert missing("The mill of Bea Miller did not burn in 1999.", question=question) == []


def spell(number: int) -> str:
    """The number below 1000 in English words."""
    small = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    small += ["eleven", "twelve", *(f"{word}teen" for word in ("thir", "four", "fif", "six"))]
    small += [f"{word}teen" for word in ("seven", "eigh", "nine")]
    tens = [f"{word}ty" for word in ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine")]
    if number >= 100:
        rest = f" and {spell(number % 100)}" if number % 100 else ""
        return f"{small[number // 100]} hundred{rest}"
    if number < 20:
        return small[number]
    return tens[number // 10 - 2] + (f"-{small[number % 10]}" if number % 10 else "")


@pytest.mark.parametrize("number", [2, 7, 12, 19, 20, 46, 99, 100, 101, 312, 999])
def test_numbers_in_words_are_those_in_digits(number: int) -> None:
    digits, words = f"The town has {number} houses.", f"The town has {spell(number)} houses."
    other = f"The town has {number + 1} houses."
    assert missing(words, texts=[digits]) == missing(digits, texts=[words]) == []
    assert missing(words, texts=[other]) == [spell(number)]
    assert missing(digits, texts=[f"The town has {spell(number + 1)} houses."]) == [str(number)]
    thousands = f"The town has {spell(number)} thousand and five houses."
    assert missing(f"The town has {number * 1000 + 5:,} houses.", texts=[thousands]) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Sure, here is the answer:", "I hope this helps!", "# The fire of 1999",
        "**Costs in Berlin**", "Let me know if you have any other questions.", "Yes.",
        "The passages do not say who lit the fire in 1999.",
        "There is no information about Berlin in the documents.", "[2]", "",
        "This isn't mentioned in the text.", NOT_TOLD,
    ],
)  # fmt: skip
def test_what_is_not_checked(sentence: str) -> None:
    assert check(sentence) == ()
    assert [one.passage for one in check(f"{BOAT}\n\n{sentence}")] == [2]


def test_a_sentence_fits_by_its_words_or_by_late_interaction() -> None:
    sentence = "A stranger set the mill alight out of hatred for the owners."
    (one,) = check(sentence)
    assert (one.supported, one.passage) == (False, None)
    assert one.missing == ("stranger", "set", "alight")
    assert not check(sentence, late=(LEAST_LATE - 0.01, 0.0))[0].supported
    assert check(sentence, late=(0.0, LEAST_LATE))[0].passage == 2
    # Each word is in some passage.
    assert check("The boat and the mill burned, Ahab sold the lamp in May.", late=(0, 0))[0].passage


def test_a_cited_passage_comes_first() -> None:
    texts = [MILL, BOAT, MILL]
    for answer, passage in (
        ("The mill burned down.", 1), ("The mill burned down [3].", 3),
        ("The mill burned down. [2, 3]", 3), ("The mill burned down (passage 3).", 3),
        ("The mill burned down [2].", 1), ("The mill burned down [9].", 1),
    ):  # fmt: skip
        (one,) = check(answer, texts)
        assert (one.passage, one.supported) == (passage, True), answer
    first, second = check("The boat lay at the pier. [2] Bea left a lamp. [1]", texts)
    assert (first.passage, second.missing) == (2, ("Bea",))


def test_offsets_include_citations_and_overlap_nowhere() -> None:
    answer = "1. The boat lay in Ulm. [2]\n2. Bea, 7, left a lamp [1]. Yes!\n\nIt rained in Rome."
    checked = check(answer)
    texts = [answer[one.start : one.end] for one in checked]
    assert texts == ["The boat lay in Ulm. [2]", "Bea, 7, left a lamp [1].", "It rained in Rome."]
    reply = Reply(answer, sentences=checked)
    marks = re.findall(r" \[\? (.+?)\]", reply.text_with_marks)
    assert marks == ["not in the passages: 7, Bea", "not in the passages: Rome"]
    assert re.sub(r" \[\? .+?\]", "", reply.text_with_marks) == answer
    assert Reply("Ulm", certainty="perhaps").text_with_marks == "perhaps: Ulm"


PARTS = st.sampled_from(
    [MILL, BOAT, "Bea", "1,340", "twelve", ". ", '"', "“", "…", "[1]", "[2, 9]", "[", "\n", "\n\n",
     "- ", "3. ", "# ", "**", ":", " ", "no passage says ", "水车。", "\U0001f600", "\ud800", "\0"]
) | st.text(max_size=6)  # fmt: skip


@given(st.lists(PARTS, max_size=12))
def test_whatever_is_answered_has_places_in_order(parts: list[str]) -> None:
    answer = "".join(parts).strip()
    checked, at = check(answer), 0
    for one in checked:
        assert at <= one.start < one.end <= len(answer)
        assert one.supported == (not one.missing)
        assert one.passage in (None, 1, 2)
        at = one.end
    marked = Reply(answer, sentences=checked).text_with_marks
    marks = [f" [? {one.format_mark()}]" for one in checked if not one.supported]
    assert len(marked) == len(answer) + sum(map(len, marks))


@pytest.mark.parametrize(
    "text",
    [
        "Die Mühle von Brookfield ist im Jahr 1812 abgebrannt, weil die Müllerin eine Lampe in "
        "dem Stroh gelassen hat, und der Rat der Stadt hat nicht viel Geld dafür bezahlt.",
        "布鲁克菲尔德的磨坊于1812年被烧毁，因为磨坊主把灯留在了稻草里。",
    ],
)
def test_of_an_answer_in_another_language_only_numbers_are_checked(text: str) -> None:
    answer = "The mill burned down because of the lamp that she had left there in 1812 or 1813."
    assert missing(answer, texts=[text]) == ["1813"]
    assert check("The mill burned down, and it was the fault of the miller.", [text]) == ()
    assert missing(text, texts=[text]) == []


def test_in_german_capitals_are_no_names() -> None:
    text = (
        "Die Mühle ist im Jahr 1812 abgebrannt, weil die Müllerin eine Lampe in dem Stroh "
        "gelassen hat, und der Rat hat das nicht bezahlt."
    )
    answer = "Im Jahr 1812 ist die Mühle abgebrannt, und der Grund war die Lampe in dem Stroh."
    assert all(one.supported for one in check(answer, [text]))
