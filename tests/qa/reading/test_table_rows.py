"""The row that a question names, and twelve questions about rows with the default model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import table_files

from esa_cli import Esa
from esa_cli.documents.document import find_sentence_ends, is_table_row
from esa_cli.documents.readers.heading_cells import has_names_above_numbers
from esa_cli.qa.reading.table_rows import (
    find_cell_ends,
    find_named_row,
    find_other_cells,
    skip_column_name,
)

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
    ],
)
def test_a_first_row_names_columns_of_numbers(first: str, are_names: bool) -> None:
    rows = [first, "Flat 1 | 912 | 958 | meals", "Flat 2 | 964 | 1,015 | meals, laundry"]
    assert has_names_above_numbers([row.split(" | ") for row in rows]) == are_names


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
