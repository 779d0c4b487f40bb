"""CSV: delimiters, headings, lines above the table, what is no table."""

from __future__ import annotations

import random

import pytest
from reader_checks import text_of

from esa_cli.documents import readers


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_csv_rows_name_their_columns(sign: str) -> None:
    rows = [["name", "town"], ["Ann", '"a\nb"'], ["", "Rome"], ["Bo", "Ulm", "9"]]
    text = "\r\n".join(sign.join(row) for row in rows)
    assert text_of(text, "a.csv") == (
        "name: Ann; town: a b\ntown: Rome\nname: Bo; town: Ulm; column 3: 9\n"
    )


def test_csv_without_heading_and_what_is_no_table() -> None:
    assert text_of("1,2\n3,4\n", "a.csv") == "column 1: 1; column 2: 2\ncolumn 1: 3; column 2: 4\n"
    assert text_of(",b\n0,x\n", "a.csv") == "column 1: 0; b: x\n"
    assert text_of("just words\nand more\n", "a.csv") == "just words\nand more\n"
    assert text_of('a,b\n1,"open\n', "a.csv") == 'a,b\n1,"open\n', "no cell may swallow the rest"
    assert text_of("a,b\n1,2\n", "a.txt") == "a,b\n1,2\n"


def test_csv_with_lines_above_the_table() -> None:
    table = "Date,Payee,Sum\n1 May,Ann,12\n2 May,Bo,3\n"
    rows = "Date: 1 May; Payee: Ann; Sum: 12\nDate: 2 May; Payee: Bo; Sum: 3\n"
    assert text_of(table, "a.csv") == rows
    assert text_of(f"Statement\n\n{table}", "a.csv") == f"Statement\n{rows}"
    assert text_of(f"Statement,,\n{table}", "a.csv") == f"Statement\n{rows}"
    assert text_of(f"Statement\nOwner,Ann\n\n{table}\n", "a.csv") == (
        f"Statement\nOwner; Ann\n{rows}"
    )


@pytest.mark.parametrize(
    ("rows", "last"),
    [
        ("Item,2019,2020\nRevenue,10,12", "Item: Revenue; 2019: 10; 2020: 12"),
        ("Ann,1985,2020\nBob,1990,2021", "column 1: Bob; column 2: 1990; column 3: 2021"),
        ("Ann,1,2,3\nBob,4,5,6", "column 1: Bob; column 2: 4; column 3: 5; column 4: 6"),
    ],
)  # fmt: skip
def test_csv_numbers_that_name_columns(rows: str, last: str) -> None:
    assert readers.read(rows.encode(), "a.csv").text.splitlines()[-1] == last


def test_csv_whose_heading_is_too_short_names_nothing() -> None:
    """As R writes it: the numbers of the rows have no name, and all others would be shifted."""
    assert text_of("name,town\n1,Ann,Ulm\n2,Bo,Rome\n", "a.csv") == (
        "column 1: name; column 2: town\n"
        "column 1: 1; column 2: Ann; column 3: Ulm\ncolumn 1: 2; column 2: Bo; column 3: Rome\n"
    )


def test_csv_with_as_many_commas_in_every_row() -> None:
    assert text_of("1,5;2,5\n3,5;4,5\n", "a.csv") == (
        "column 1: 1,5; column 2: 2,5\ncolumn 1: 3,5; column 2: 4,5\n"
    )
    assert text_of("Lee, Ann\tUlm, DE\nKay, Bo\tRome, IT\n", "a.tsv") == (
        "Lee, Ann: Kay, Bo; Ulm, DE: Rome, IT\n"
    )


@pytest.mark.parametrize("seed", range(5))
def test_csv_random_tables_give_each_value_the_name_of_its_column(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"name {letter}" for letter in "abcdef"[: draw.randint(2, 6)]]
    rows = [[draw.choice(("", "x", "7", 'a "b"')) for _ in names] for _ in range(20)]
    quoted = [",".join('"' + c.replace('"', '""') + '"' for c in row) for row in (names, *rows)]
    want = ""
    for row in rows:
        cells = []
        for column in range(len(names)):
            if row[column]:
                cells.append(names[column] + ": " + row[column])
        want += "; ".join(cells) + "\n" if cells else ""
    assert text_of("\n".join(quoted), "a.csv") == want
