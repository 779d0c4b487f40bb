"""Requests for a chapter: which one is meant, what is quoted, and how a reader summarises it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli.documents.document import Document
from esa_cli.documents.outline import Section, find_sections
from esa_cli.errors import ReaderError
from esa_cli.qa.answering.reply import Reply, Turn, says_nothing_found
from esa_cli.qa.finding.finder import ReducedKeys, make_index_layout
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book, PassageFinder, PassageSearch, ReducedQueries
from esa_cli.qa.finding.word_search import find_passages_with_words
from esa_cli.qa.reading.reader import SamplingParams, ignore_text, make_chat_messages
from esa_cli.qa.reading.server import estimate_tokens
from esa_cli.qa.sections import (
    AskedSection,
    describe_missing_section,
    find_asked_section,
    find_central_sentences,
    quote_section,
    summarise_section,
)

RAIN = "\n\n".join(["Rain fell on the grey pier all day, and nobody came out to see it."] * 30)
TITLES = ["The Gate", "Ahab", "The Grey Boat"]
CONTENTS = "CONTENTS\n\n" + "\n".join(TITLES)
PARTS = [
    f"CHAPTER {n}. {title}\n\nThe keeper of lamp {n}{part} was called Ishmael {n}{part}.\n\n{RAIN}"
    for part in "ab"
    for n, title in zip(("I", "II", "III"), TITLES, strict=True)
]
TEXT = "\n\n".join([CONTENTS, "BOOK ONE", *PARTS[:3], "BOOK TWO", *PARTS[3:]])


def document(text: str = TEXT, name: str = "lamps.txt") -> Document:
    return Document(name, text, name, "utf-8", len(text))


@pytest.mark.parametrize(
    ("question", "beginning"),
    [
        ("Summarise chapter 3", "CHAPTER III. The Grey Boat\n\nThe keeper of lamp IIIa"),
        (
            "What happens in the third chapter?",
            "CHAPTER III. The Grey Boat\n\nThe keeper of lamp IIIa",
        ),
        ("please summarize chapter iii in two sentences", "CHAPTER III"),
        ("Summarise chapter 3 in one paragraph.", "CHAPTER III"),
        ("Summarise book 2, chapter 1.", "CHAPTER I. The Gate\n\nThe keeper of lamp Ib"),
        ("Describe chapter one of the second book", "CHAPTER I. The Gate\n\nThe keeper of lamp Ib"),
        ("What does chapter 2 say?", "CHAPTER II. Ahab"),
        ("Summarise the last chapter", "CHAPTER III. The Grey Boat\n\nThe keeper of lamp IIIb"),
        ("Summarise The Grey Boat", "CHAPTER III"),
        ("Explain the chapter Ahab", "CHAPTER II."),
        ("Give me a short summary of part of book one", "BOOK ONE"),
        ("Give me a summary of the part on the boat", "CHAPTER III. The Grey Boat"),
        ("What does the section about Ahab say?", "CHAPTER II."),
        ("Fasse das Kapitel über Ahab zusammen", "CHAPTER II."),
        ("Que dit le chapitre sur Ahab ?", "CHAPTER II."),
        ("Resume el capítulo sobre Ahab", "CHAPTER II."),
        ("Fasse das zweite Kapitel zusammen", "CHAPTER II."),
        ("Que se passe-t-il dans le chapitre 2 ?", "CHAPTER II."),
        ("¿Qué pasa en el capítulo II?", "CHAPTER II."),
        ("第二章讲了什么？", "CHAPTER II."),
        ("Worum geht es im zweiten Kapitel?", "CHAPTER II."),
        ("Kannst du Kapitel 2 bitte zusammenfassen?", "CHAPTER II."),
        ("Zusammenfassung von Kapitel 2", "CHAPTER II."),
        ("Que se passe-t-il au deuxième chapitre ?", "CHAPTER II."),
        ("Peux-tu résumer le chapitre 2 ?", "CHAPTER II."),
        ("Haz un resumen del segundo capítulo", "CHAPTER II."),
        ("О чём говорится во второй главе?", "CHAPTER II."),
        ("Перескажи главу 2", "CHAPTER II."),
        ("Recap chapter 2", "CHAPTER II."),
        ("What are the main points of chapter 2?", "CHAPTER II."),
        ("Summarise the chapter called Ahab", "CHAPTER II."),
        ("Résume le texte", "CONTENTS"),
        ("Summarise this", "CONTENTS"),
        ("Summarise the book", "CONTENTS"),
        ("Summarise lamps", "CONTENTS"),
    ],
)
def test_which_section_is_asked_for(question: str, beginning: str) -> None:
    asked = find_asked_section(question, [document()])
    assert TEXT[asked.section.start :].startswith(beginning)


@pytest.mark.parametrize(
    "question",
    [
        "Describe Ahab", "Explain the grey boat", "What does the keeper say?", "Who is Ishmael?",
        "Summarise chapter 9", "What does the keeper find in chapter 3?", "Summarise the keeper",
        "What does chapter 3 say about lamps?", "Explain what the keeper does in chapter 3",
        "Summarise the chapter about the black boat", "О чём мечтал Ишмаэль?",
        "Was steht im Tagebuch des Wärters?", "Can you find the second lamp?",
    ],
)  # fmt: skip
def test_other_questions_are_searched(question: str) -> None:
    assert find_asked_section(question, [document()]) is None


def test_a_kind_of_section_without_a_number_is_the_only_one_of_its_kind() -> None:
    text = f"{TEXT}\n\nAppendix A: Tides\n\n{RAIN}"
    asked = find_asked_section("What is in the appendix?", [document(text)])
    assert asked.section.start == text.index("Appendix A")
    two = f"{text}\n\nAppendix B: Maps\n\n{RAIN}"
    assert find_asked_section("What is in the appendix?", [document(two)]) is None
    asked = find_asked_section("Summarise appendix B", [document(two)])
    assert asked.section.start == two.index("Appendix B")


@pytest.mark.parametrize(
    "heading", ["6.", "6 Rent", "§ 6", "§ 6 Rent", "Article 6", "Clause 6 Rent"]
)
@pytest.mark.parametrize("length", [1, 30])
def test_words_for_a_section_mean_its_number(heading: str, length: int) -> None:
    """As a loop over the lines finds it, whatever the heading calls it, however short the text."""
    headings = [heading.replace("6", str(n)) for n in range(1, 9)]
    text = "\n\n".join(f"{one}\n\n" + "The rent is due in May. " * length for one in headings)
    start = next(at for at in range(len(text)) if text[at:].startswith(f"{heading}\n"))
    for question in (
        "What does § 6 say?", "What is § 6 about?", "Summarise Section 6", "What is in clause 6?",
        "What does paragraph 6 say?", "What does article 6 say?", "Was sagt Klausel 6?",
        "Was steht in Ziffer 6?", "Que dit la clause 6 ?", "Que dit le paragraphe 6 ?",
        "¿Qué dice la cláusula 6?", "¿Qué dice el párrafo 6?", "第六款说了什么？",
    ):  # fmt: skip
        asked = find_asked_section(question, [document(text)])
        assert asked is not None, question
        assert asked.section.start == start
    assert find_asked_section("What does § 9 say?", [document(text)]) is None


@pytest.mark.parametrize(
    ("question", "missing"),
    [
        ("Summarise chapter 99", "chapter 99"), ("Describe chapter IX in a paragraph", "chapter 9"),
        ("Fasse das neunte Kapitel zusammen", "chapter 9"), ("Explain book 3", "book 3"),
        ("Summarise chapter 3 in one paragraph", ""), ("Summarise section 2", ""),
        ("Summarise part 8", ""), ("What does chapter 9 say?", ""), ("What is chapter 9?", ""),
        ("Explain what the keeper of lamps in chapter 9 does", ""), ("Explain chapter 8", ""),
    ],
)  # fmt: skip
def test_a_number_that_no_section_has_is_said(question: str, missing: str) -> None:
    """Unless the text has it, or has no numbered sections of this kind."""
    one = document(f"{TEXT}\n\nAnother book has a chapter 8.")
    said = describe_missing_section(question, [one])
    assert bool(said) == bool(missing)
    assert f"no {missing} in lamps.txt" in said or not missing
    assert says_nothing_found(said) == bool(missing)
    assert describe_missing_section(question, [document(RAIN)]) == ""


def test_a_section_whose_heading_is_not_recognised_is_not_denied() -> None:
    numbers = ["1", "1.1", "1.2", "2", "2.1", "7.4"]
    text = "\n\n".join(f"{number} Lamps\n\n{RAIN}" for number in numbers)
    assert "7.4" not in {one.number for one in find_sections(document(text))}
    missing = [
        n
        for n in ("7.4", "7.5")
        if describe_missing_section(f"Explain section {n}", [document(text)])
    ]
    assert missing == ["7.5"]


def test_the_document_that_has_the_section() -> None:
    other = document(PARTS[0].replace("CHAPTER I.", "CHAPTER VII."), "seven.txt")
    asked = find_asked_section("Summarise chapter 7", [document(), other])
    assert (asked.document, asked.section.number) == (1, "7")
    assert find_asked_section("Summarise the book", [document(), other]) is None


@pytest.mark.parametrize("named", ["minutes", "tenancy-agreement_3B"])
def test_the_document_that_a_question_names_has_the_section(named: str) -> None:
    names = "minutes.txt", "tenancy-agreement_3B.txt", "rules.txt"
    text = "\n\n".join(f"{n}. Item {n}\n\n{RAIN}" for n in range(1, 7))
    both = [document(text, name) for name in names]
    words = named.replace("-", " ").replace("_", " ")
    asked = find_asked_section(f"What does section 4 of the {words} say?", both)
    assert both[asked.document].name == f"{named}.txt"
    assert asked.others == 0
    unnamed = find_asked_section("What does section 4 say?", both)
    assert unnamed.others == 2


@pytest.mark.parametrize("seed", range(3))
def test_central_sentences_are_those_of_a_loop(seed: int) -> None:
    """The mean, over the section's sentences, of the weighted best products of a sentence's queries
    with another's keys."""
    torch.manual_seed(seed)
    sentences = [
        f"Lamp{n} of the keeper lamp{n % 5} burns on pier number{n} all night." for n in range(12)
    ]
    text = "CHAPTER I\n\n" + "\n\n".join(sentences)
    spans = torch.tensor([one.span() for one in re.finditer(r"\S+", text)])
    layout = make_index_layout(6)
    index = ReducedKeys.encode(torch.randn(len(spans), 6), layout)
    keys, queries = index.decode_keys(0, len(spans)), dict[str, ReducedQueries]()

    class Search(PassageSearch):
        def encode_question(self, question: str, books: Sequence[Book]) -> ReducedQueries:
            made = ReducedQueries(torch.randn(3, 6), torch.tensor([0.5, 0.3, 0.2]))
            return queries.setdefault(question, made)

    (section,) = find_sections(document(text))
    found = find_central_sentences(
        Search(), Book(document(text), None, spans, index=index), section, 3
    )
    scores = dict[str, float]()
    for sentence in sentences:
        made, total = queries[sentence], 0.0
        for other in ["CHAPTER I", *sentences]:
            start = text.index(other)
            inside = [
                n for n, (a, b) in enumerate(spans.tolist()) if a < start + len(other) and b > start
            ]
            for query, weight in zip(made.queries, made.weights, strict=True):
                total += float(weight) * max(float(query @ keys[n]) for n in inside)
        scores[sentence] = total
    best = sorted(sorted(sentences, key=lambda one: -scores[one])[:3], key=sentences.index)
    assert [text[start:end] for start, end in found] == best


def test_what_is_quoted_without_a_reader() -> None:
    book, sections = Book(document(), None, torch.zeros(0, 2)), find_sections(document())
    third = next(one for one in sections if one.number == "3")
    reply = quote_section(PassageSearch(), book, AskedSection(0, third, False, 1))
    first, *quoted = reply.text.splitlines()
    line = TEXT[: third.start].count("\n") + 1
    assert "CHAPTER III. The Grey Boat (the first of 2 " in first
    assert f"lamps.txt, line {line}" in first
    assert reply.answered_from == "section"
    assert len(quoted) == len(reply.evidence)
    for one, passage in zip(quoted, reply.evidence, strict=True):
        assert passage.text == TEXT[passage.start : passage.end]
        assert third.start <= passage.start < passage.end <= third.end
        assert " ".join(passage.text.split()) in one
    says = quote_section(PassageSearch(), book, AskedSection(0, third, True, 0))
    (passage,) = says.evidence
    assert passage.text.startswith("The keeper of lamp IIIa")
    assert passage.end < third.end


def quote_whole(text: str, heading: str = "") -> str:
    """What is quoted of a document that is one section."""
    section = Section(heading, heading.strip("# "), "", "", 1, 0, len(text))
    book = Book(document(text), None, torch.zeros(0, 2))
    return quote_section(PassageSearch(), book, AskedSection(0, section)).text


@pytest.mark.parametrize("text", ["He sleeps.", "“Now,” said he.", 'He said "now".'])
def test_a_sentence_with_quotation_marks_gets_no_others(text: str) -> None:
    line = quote_whole(text).splitlines()[1]
    assert line.rpartition(" (")[0].count("“") == 1 - text.count('"') // 2
    assert line.startswith("“" * (text[0] != "“" and '"' not in text) + text)


@pytest.mark.parametrize(
    "lines",
    [
        "| group | days |\n|-|-|\n| office | 25 |",
        "- a saw\n- a vice",
        "url: https://example.org/saws\n\nA saw hangs here.",
        "To: Bob\nSubject: saws",
        "A saw.\n\n## Vices\n\nA vice.",
    ],
)
def test_a_quoted_table_list_heading_or_field_keeps_its_lines(lines: str) -> None:
    text = quote_whole(f"# Tools #\n\n{lines}", "# Tools #")
    assert text.splitlines()[1:] == [*lines.splitlines(), "(line 3)"]


def test_a_quoted_section_has_one_empty_line_above_a_table() -> None:
    text = "A saw.\n\n\n\nTool: saw; Price: 3\nTool: vice; Price: 9"
    assert text.replace("\n\n\n\n", "\n\n") in quote_whole(text)


@pytest.mark.parametrize("count", [12, 40])
def test_a_short_section_is_quoted_whole_and_central_sentences_of_lists_without_bullets(
    count: int,
) -> None:
    items = [
        f"- Lamp {n} of the keeper burns on pier {n} all night. It is old." for n in range(count)
    ]
    text = "# Limits\n\n" + "\n".join(items)
    _, *lines = quote_whole(text, "Limits").splitlines()
    if len(text) < 1200:
        assert lines[:-1] == items
    else:
        quoted = [re.fullmatch(r"“(Lamp .*\.)” \(line \d+\)", one) for one in lines]
        assert all(one and f"- {one[1]}" in text for one in quoted)


class FakeReader:
    """Answers with the names that it is shown, and fails at its `failing`-th request."""

    name, nbytes = "fake", 0

    def __init__(self, window_tokens: int, failing: int = 0) -> None:
        self.window_tokens, self.failing = window_tokens, failing
        self.asked: list[tuple[str, list[str]]] = []

    def answer(
        self, question: str, passages: Sequence[Passage], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] = ignore_text,
    ) -> Reply:  # fmt: skip
        self.asked.append((question, [one.text for one in passages]))
        prompt = make_chat_messages(question, passages, history)
        limit = sampling.max_new_tokens or self.window_tokens // 4
        assert estimate_tokens(prompt) + limit <= self.window_tokens, "no part is left out"
        if len(self.asked) == self.failing:
            raise ReaderError("gone")
        names = re.findall(r"Ishmael \w+", " ".join(one.text for one in passages))
        on_text(text := f"Of {', '.join(names)}.")
        return Reply(text)

    def close(self) -> None:
        """Nothing."""


def summarise(
    reader: FakeReader, section: Section, folder: Path | None = None, **more: Any
) -> Reply:
    sampling = SamplingParams(temperature=0.0)
    return summarise_section(
        reader, "Summarise it", document(), section, sampling, more.pop("say", ignore_text),
        folder=folder, **more,
    )  # fmt: skip


def test_a_section_that_fits_is_read_whole() -> None:
    reader, section = FakeReader(4096), find_sections(document())[1]
    said = list[str]()
    reply = summarise(reader, section, say=said.append)
    assert reader.asked == [("Summarise it", [TEXT[section.start : section.end]])]
    assert said == [reply.text] == ["Of Ishmael Ia."]
    assert reply.answered_from == "section"


@pytest.mark.parametrize("window", [600, 700, 1500])
def test_a_long_text_is_read_in_parts_and_then_together(window: int) -> None:
    whole, reader = Section("lamps", "lamps", "", "", 0, 0, len(TEXT)), FakeReader(window)
    said, shown = list[str](), list[tuple[int, int]]()
    reply = summarise(reader, whole, say=said.append, progress=lambda *at: shown.append(at))
    parts = [texts[0] for question, texts in reader.asked if "part" in question and len(texts) == 1]
    assert "".join(parts[: len(reply.evidence)]) == TEXT == "".join(p.text for p in reply.evidence)
    for _, texts in reader.asked:
        assert len("".join(texts).encode()) <= 3 * window
        assert len(texts) <= 8
    assert re.findall(r"Ishmael (\w+)", reply.text) == re.findall(r"Ishmael (\w+)", TEXT)
    assert reader.asked[-1][0].startswith("Summarise it\n")
    assert said == [reply.text]
    assert shown[: len(parts)] == [(n, shown[0][1]) for n in range(1, shown[0][1] + 1)]


def test_an_interrupted_summary_is_continued(tmp_path: Path) -> None:
    whole = Section("lamps", "lamps", "", "", 0, 0, len(TEXT))
    straight = FakeReader(1500)
    expected = summarise(straight, whole)
    broken = FakeReader(1500, failing=4)
    with pytest.raises(ReaderError):
        summarise(broken, whole, tmp_path)
    (kept,) = tmp_path.glob("*.jsonl")
    resumed = FakeReader(1500)
    assert summarise(resumed, whole, tmp_path).text == expected.text
    assert broken.asked[:3] + resumed.asked == straight.asked
    assert not kept.exists()


def test_contents_pages_answer_nothing_but_have_their_words() -> None:
    """Unless nothing else is there."""
    lines = [f"{title} and what came of it {'.' * 9} {n}" for n, title in enumerate(TITLES * 8, 1)]
    contents = "\n".join(["CONTENTS", "", *lines])
    text = TEXT.replace(CONTENTS, contents)
    book = Book(document(text), None, torch.zeros(0, 2))
    end = text.index("BOOK ONE")
    passages = PassageFinder([book]).find_passages("the grey boat", 4)
    assert passages
    assert all(one.start + one.end >= 2 * end for one in passages)
    assert any(one.start < end for one in find_passages_with_words("The Grey Boat", [book])[0])
    alone = Book(document(contents), None, torch.zeros(0, 2))
    assert PassageFinder([alone]).find_passages("the grey boat", 4)
