"""The most probable span against a loop over all spans, and the boundaries of words."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import table_files
import torch

from esa_cli import Esa
from esa_cli.documents.document import find_sentence_ends, is_table_row
from esa_cli.documents.readers.heading_cells import has_names_above_numbers
from esa_cli.qa.reading import passage_reader
from esa_cli.qa.reading.passage_reader import find_most_probable_span
from esa_cli.qa.reading.table_rows import (
    find_cell_ends,
    find_named_row,
    find_other_cells,
    skip_column_name,
)
from esa_cli.qa.reading.word_boundaries import QUOTES, WordBoundaries

PASSAGES = [
    "Ahab",
    "Ahab, the captain",
    "the captain of the ship, captain Ahab, of 1950",
    "Ahab's ship, the ships of Ahab",
    "雪鯨, the ship 鯨魚",
    "it costs £5 (five), don't buy",
]


def cut(passage: str, seed: int) -> list[tuple[int, int]]:
    """The characters of tokens: pieces of words, most with the space before them."""
    choice, out = random.Random(seed), list[tuple[int, int]]()
    for word in re.finditer(r" ?\S+", passage):
        at = word.start()
        while at < word.end():
            end = min(word.end(), at + choice.randint(1, 4) + (passage[at] == " "))
            out.append((at, end))
            at = end
    return out


@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("longest", [2, 32])
def test_the_span_is_the_best_of_a_loop(
    passage: str, seed: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_reader, "MAX_TOKENS", longest)
    torch.manual_seed(seed)
    offsets, words = cut(passage, seed), WordBoundaries(passage)
    starts, ends = 2 * torch.randn(2, len(offsets))
    most = longest * (3 if words.spaceless else 1)
    best = None
    for first in range(len(offsets)):
        start = offsets[first][0] + (passage[offsets[first][0]] == " ")
        for last in range(first, min(first + most, len(offsets))):
            end = offsets[last][1]
            whole = words.can_start_span(start) and words.can_end_span(end)
            if start < end and passage[end - 1] != " " and whole:
                score = float(starts.log_softmax(0)[first] + ends.log_softmax(0)[last])
                if best is None or score > best[0]:
                    best = score, words.extend_span(start, end)
    found = find_most_probable_span(passage, starts, ends, offsets)
    if best is None:
        assert found is None
    else:
        assert found.log_probability == pytest.approx(best[0], abs=1e-5)
        assert (found.start, found.end) == best[1]


@pytest.mark.parametrize(
    ("passage", "likely", "wanted"),
    [
        ("“It is Mr. ——” said Mother.", "Mr. ——” said", "Mr. ——"),
        ("on the “Pequod” of Nantucket", "the “Pequod” of Nantucket", "the “Pequod” of Nantucket"),
        ("a pipe of 5” width", "pipe of 5” width", "pipe of 5” width"),
        ("hon sade ”ja” till mig", "sade ”ja” till", "sade ”ja” till"),
        ("Day: 12 May; On call: Marlowe", "12 May; On call: Marlowe", "12 May"),
    ],
)
def test_no_span_leaves_a_speech_or_a_cell(passage: str, likely: str, wanted: str) -> None:
    at, starts, ends = passage.index(likely), *torch.zeros(2, len(passage))
    starts[at], ends[at + len(likely) - 1] = 30.0, 20.0
    ends[passage.index(wanted) + len(wanted) - 1] += 10.0
    ends[passage.index(wanted) + len(wanted.rstrip(" —”")) - 1] += 5.0
    offsets = [(one, one + 1) for one in range(len(passage))]
    cells = [passage.index("; "), len(passage)] if "; " in passage else []
    found = find_most_probable_span(passage, starts, ends, offsets, cells)
    assert passage[found.start : found.end] == wanted


@pytest.mark.parametrize("passage", ["", "...", "?!", "- ' -"])
def test_a_passage_without_words_has_none(passage: str) -> None:
    offsets = [(at, at + 1) for at in range(len(passage))]
    assert find_most_probable_span(passage, *torch.randn(2, len(offsets)), offsets) is None


WHOLE = [
    "-5", "−5", ".5", "-.5", "-$5", "¥500", "₹20", "€3.50", "+49", "±3", "~5", "≈7", "<5", "#5",
    "1,306", "3.14", "12:30", "5%", "7‰", "5€", "20°C", "don't", "l’Italie", "foo_bar", "word",
    "हिन्दी", "مُحَمَّد", "Müller", "cafe\u0301", "soft\u00adware", "--keep", "-v", "#include",
    "@name", "~/notes", ".gitignore", "./run", "\\alpha", "カタカナ", "ที่",
]  # fmt: skip
"""Each is quoted whole or not at all."""
FRAGMENTS = {"/etc/passwd": {5}, "C:\\x": {3}, "3-5": set(), "well-known": set()}
"""Others, with the places within them where a span may start."""
BETWEEN = [" ", ", ", " (", ") ", " “", "” ", "\n", "; "]


def made_text(seed: int) -> tuple[str, list[tuple[int, int, set[int]]]]:
    """A text, and the places of its pieces with those where a span may start within them."""
    choice, text, places = random.Random(seed), "Of ", list[tuple[int, int, set[int]]]()
    for _ in range(12):
        piece = choice.choice([*WHOLE, *FRAGMENTS])
        start = len(text)
        within = {start + at for at in FRAGMENTS.get(piece, ())}
        places.append((start, start + len(piece), within))
        text += piece + choice.choice(BETWEEN)
    return text + "end", places


@pytest.mark.parametrize("seed", range(60))
def test_no_span_divides_a_piece(seed: int) -> None:
    text, places = made_text(seed)
    words = WordBoundaries(text)
    starts = [at for at in range(len(text)) if words.can_start_span(at)]
    ends = [at for at in range(len(text) + 1) if words.can_end_span(at)]
    for at in starts:
        for end in ends:
            if end <= at:
                continue
            first, last = words.extend_span(at, end)
            assert first <= at
            assert last >= end - (text[end - 1] in QUOTES)
            for start, stop, within in places:
                assert not start < first < stop or first in within, (text[start:stop], text[first:])
                if stop - start > 1 and text[start:stop] in WHOLE:
                    assert not start < last < stop, (text[start:stop], text[first:last])
    for start, stop, _ in places:
        assert any(
            words.extend_span(at, stop) == (start, stop) for at in starts if start <= at < stop
        )


@pytest.mark.parametrize(
    ("text", "start", "end", "whole"),
    [
        ("Jane Roe (CEO) of", "Jane", "CEO", "Jane Roe (CEO)"),
        ("call (555) 1234 now", "555", "1234", "(555) 1234"),
        ("call +49 30 1234", "49", "1234", "+49 30 1234"),
        ("born (1867) in", "1867", "1867", "1867"),
        ("from 3-5 to", "3", "5", "3-5"),
        ("1914 –1918", "1918", "1918", "1918"),
        ("grew by 5% or", "5", "5", "5%"),
        ("as `--mute-for` is", "--mute", "for`", "--mute-for"),
        ("next: `lost`, `found` or", "lost", "found`", "`lost`, `found`"),
        ("next: `lost`, `found` or", "`lost", "found`", "`lost`, `found`"),
        ('"No," said he, "never"', "No", 'never"', '"No," said he, "never"'),
        ("said “yes, or no” to", "yes", "”", "yes, or no"),
        ("said “yes, or no” to", "“yes", "”", "“yes, or no”"),
    ],
)
def test_what_belongs_to_a_span(text: str, start: str, end: str, whole: str) -> None:
    first, last = WordBoundaries(text).extend_span(text.index(start), text.index(end) + len(end))
    assert text[first:last] == whole


@pytest.mark.parametrize(
    "text",
    [
        "一座废弃的啤酒厂。",
        "東京タワーの高さは333メートル",
        "สวัสดีครับ ที่นี่",
        "ကျွန်တော် ကား",
        "ちょっと待って",
    ],
)
def test_scripts_without_spaces_are_not_divided_inside_a_letter(text: str) -> None:
    words = WordBoundaries(text)
    assert words.spaceless
    for at in range(1, len(text)):
        before, after = text[at - 1], text[at]
        if unicodedata.category(after)[0] == "M":
            assert not words.can_end_span(at)
            assert not words.can_start_span(at)
        if "ァ" <= before <= "ヺ" and "ァ" <= after <= "ー":
            assert not words.can_end_span(at)
            assert not words.can_start_span(at)
    assert words.can_end_span(len(text))
    assert words.can_start_span(0)


SHEET = """The office pays its staff on the last day of a month.

Name: Priya Raman; Position: Partner; Hourly rate: 340; Room: 4.12
Name: Tobias Hale; Position: Office manager; Hourly rate: 95; Room: 1.03
Name: Daniel Kwok; Position: Counsel; Hourly rate: 250; Room: 4.07
"""


@pytest.mark.parametrize(
    ("question", "begins"),
    [
        ("What is the hourly rate of Daniel Kwok?", "Name: Daniel"),
        ("Who is counsel?", "Name: Daniel"),
        ("In which room is the office manager?", "Name: Tobias"),
        ("What are the hourly rates?", "The office"),  # the words of every row
        ("What do Priya Raman and Daniel Kwok earn?", "The office"),  # two rows
        ("On which day of the month is the staff paid?", "The office"),  # prose
        ("Who is the plumber?", "The office"),
    ],
)
def test_a_row_is_read_alone_if_the_question_names_it(question: str, begins: str) -> None:
    start, end = find_named_row(SHEET, question)
    assert SHEET[start:end].startswith(begins)
    assert ("\n" in SHEET[start:end]) == begins.startswith("The")


@pytest.mark.parametrize(
    ("quoted", "value"),
    [
        ("rate: 250", "250"),
        ("Hourly rate: 250; Room: 4.07", "250; Room: 4.07"),
        ("250", "250"),
        ("Counsel; Hourly rate: 250", "Counsel; Hourly rate: 250"),
    ],
)
def test_the_name_of_a_column_is_no_answer(quoted: str, value: str) -> None:
    row = SHEET.splitlines()[-1]
    start = row.index(quoted)
    end = start + len(quoted)
    assert row[skip_column_name(row, start, end) : end] == value
    prose = "He said: go; and he left."
    assert skip_column_name(prose, 0, len(prose)) == 0


@pytest.mark.parametrize(
    ("first", "are_names"),
    [
        ("Room | From April 2023 | From April 2024 | Included", True),
        ("Room | 2023 | 2024 | Included", True),
        ("Room | Price | Price next year | Included", True),
        ("Hall | 800 | 850 | meals", False),  # a row without names above it
        ("Flat 3 | 2023 | 2024 | meals", False),  # the cell below begins with letters as well
        ("Room | 4 beds | 6 beds | Included", True),  # the numbers below have no unit
        ("Hall | 800 kr | 850 | meals", False),
    ],
)
def test_a_first_row_names_columns_of_numbers(first: str, are_names: bool) -> None:
    rows = [first, "Flat 1 | 912 | 958 | meals", "Flat 2 | 964 | 1,015 | meals, laundry"]
    assert has_names_above_numbers([row.split(" | ") for row in rows]) == are_names


@pytest.mark.parametrize(("cell", "are_names"), [("none", True), ("28", True), ("4 h", False)])
def test_a_name_with_a_unit_stands_above_numbers_without_one(cell: str, are_names: bool) -> None:
    rows = [["Germ", "7 °C", "20 °C"], ["coli", "none", "61"], ["aureus", cell, "96"]]
    assert has_names_above_numbers(rows) == are_names


def test_cells_end_before_the_next_name_and_rows_at_their_end() -> None:
    ends = [
        at
        for at in range(1, len(SHEET) + 1)
        if re.match(r"; [A-Z][a-z ]+: ", SHEET[at:])
        or (SHEET[at : at + 1] == "\n" and "; " in SHEET[:at].splitlines()[-1])
    ]
    assert find_cell_ends(SHEET) == ends
    assert find_cell_ends("He came; she said: go.") == []
    assert find_cell_ends("Old house | 912 | 958") == [9, 15, 21]
    assert find_cell_ends("Fish.\n## 2. Animals\nPets stay out; no #2 pencils.\n") == [19]


@pytest.mark.parametrize(
    ("question", "left"),
    [
        ("What was the flow at Delft in 2022?", ["Delft: 4"]),
        ("What was the flow at Port Hale or Delft?", ["Port Hale: 9"]),  # it has two of the words
        ("Which place has a flow of 9, Delft or Hale?", ["Delft: 4"]),  # Hale's value is given
        ("What was the flow at delft?", ["Flow 2022 (L/s)", "Delft: 4", "Port Hale: 9"]),
        ("It shows 9. Flow at which place?", ["Flow 2022 (L/s)", "Delft: 4", "Port Hale: 9"]),
        ("Delft had what flow?", ["Flow 2022 (L/s)", "Delft: 4", "Port Hale: 9"]),
        ("What was the flow in 2022?", ["Flow 2022 (L/s)", "Delft: 4", "Port Hale: 9"]),
    ],
)
def test_a_named_column_leaves_no_other_cells(question: str, left: list[str]) -> None:
    row = "Flow 2022 (L/s); Delft: 4; Port Hale: 9"
    others = find_other_cells(f"The flow fell.\n\n{row}\n", question)
    text = f"The flow fell.\n\n{row}\n"
    rest = [cell for cell in row.split("; ") if not any(cell in text[a:b] for a, b in others)]
    assert rest == left


@pytest.mark.parametrize(
    ("question", "left"),
    [
        ("What is the price of the night of lamps this year?", {"Night of lamps", "8", "yes"}),
        ("¿Cuánto cuesta este año?", {"Night of lamps", "8", "yes"}),
        ("What did the night of lamps cost?", {"Night of lamps", "7", "8", "yes"}),
        ("What was its price in 2024, and what is it now?", {"7"}),
    ],
)
def test_the_present_is_in_the_latest_column(question: str, left: set[str]) -> None:
    row = "Visit: Night of lamps; Price 2024: 7; Price 2025: 8; Food: yes"
    cells = [row[a:b].partition(": ")[2] for a, b in find_other_cells(row, question)]
    assert {"Night of lamps", "7", "8", "yes"} - {*cells} == left


@pytest.mark.parametrize(
    ("passage", "heading"),
    [
        ("Leave\n\n{prose}", "Leave"),  # the end of `## Chapter 2. Leave`
        ("{prose}\n\nChapter 2. Leave\n\n{prose}", "Chapter 2. Leave"),
        ("the tide and\n\n{prose}", None),  # a page ends in a sentence
        ("{prose}\nof the year\n\n{prose}", None),
        ("Rope\n\nTar\n\nOakum", None),
        ("- Rope\n\n{prose}", None),
        ("He left.\n\n{prose}", None),
    ],
)
def test_headings_end_where_a_short_line_stands_alone(passage: str, heading: str | None) -> None:
    text = passage.format(prose="Every employee has 27 days of leave a year, ten in one piece.")
    assert find_cell_ends(text) == ([] if heading is None else [text.index(heading) + len(heading)])


def test_rows_of_a_sheet_are_sentences() -> None:
    rows = SHEET.split("\n\n")[1]
    starts = [0, *find_sentence_ends(rows, 0, len(rows))]
    assert [rows[at : at + 7] for at in starts[:3]] == ["Name: P", "Name: T", "Name: D"]
    assert all(map(is_table_row, rows.splitlines()))
    assert is_table_row("Kiel | Jonas Petersen | 8 to 18")
    assert is_table_row("Fuse; Terra 8: 16 A; Terra 12: 25 A")
    assert not is_table_row("He said: we go at nine; she stayed at home.")


@pytest.mark.model
def test_twelve_questions_are_answered_from_their_rows(tmp_path: Path) -> None:
    table_files.write_table_files(tmp_path)
    wrong = []
    with Esa.load(keep=False) as esa:
        books = {name: esa.ingest(str(tmp_path / name)) for name in table_files.FILES}
        for row in table_files.QUESTIONS:
            answer = esa.ask(row.question, [books[row.file]]).text
            if row.answer not in answer:
                wrong.append(f"{row.question} {answer}")
    assert len(table_files.QUESTIONS) == 12
    assert wrong == []


ROW_PASSAGES = {
    "I laid by nine hundred safe, from England.": ("How much did you lay by?", "nine hundred"),
    "My name is John Robinson, he answered.": ("What name did he give?", "John Robinson"),
    "Der Schlüssel liegt bei Frau Müller.": ("Bei wem liegt der Schlüssel?", "Frau Müller"),
    "Dicen que mi madre vendía pimientos en Villamojada.": ("¿Dónde vendía?", "Villamojada"),
    "La clef est chez Mme Vasseur.": ("Où est la clef ?", "chez Mme Vasseur"),
}
OTHER = "Wie viele Schiffe liegen im Hafen?"


@pytest.fixture(scope="module")
def reader() -> Iterator[Esa]:
    with Esa.load(library=None, device="cpu") as made:
        yield made


@pytest.mark.model
@pytest.mark.parametrize("passage", ROW_PASSAGES)
def test_a_short_passage_is_read(reader: Esa, passage: str) -> None:
    question, answer = ROW_PASSAGES[passage]
    read = reader.spans.passages.read_passages
    (right,), (wrong,) = read(question, [passage]), read(OTHER, [passage])
    assert right.log_odds - wrong.log_odds > 2
    assert answer in passage[right.span.start : right.span.end]
