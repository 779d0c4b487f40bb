"""Tables of PDF pages whose cells are divided by lines."""

from __future__ import annotations

import sample_files as make

from esa_cli.documents import readers

ROWS = [
    ("Vessel", "Departure", "Master"),
    ("Gannet", "06:40", "A. Holm"),
    ("Fulmar", "08:15", ""),
    ("Petrel", "09:50", "C. Juul"),
]


def read(data: bytes) -> str:
    return readers.extract_text(data, "a.pdf").text


def test_pdf_rows_have_the_names_of_their_columns() -> None:
    assert read(make.pdf_table(ROWS, "Boats")) == (
        "Boats\n\nVessel: Gannet; Departure: 06:40; Master: A. Holm\n"
        "Vessel: Fulmar; Departure: 08:15\nVessel: Petrel; Departure: 09:50; Master: C. Juul\n\n"
        "Tickets are sold on board.\n"
    )


def test_pdf_tables_in_doubt_keep_their_text() -> None:
    """No lines; no numbers below a name; a page of many lines, as drawings have."""
    plain = "Boats\nVessel Departure Master\nGannet 06:40 A. Holm\n"
    assert read(make.pdf_table(ROWS, "Boats", ruled=False)).startswith(plain)
    words = [("Vessel", "Berth", "Master"), ("Gannet", "North", "Holm"), ("Fulmar", "East", "Rask")]
    assert "Vessel Berth Master\nGannet North Holm\n" in read(make.pdf_table(words, "Boats"))
    lines = "\n".join(f"{x} 10 m {x} 30 l S" for x in range(700))
    crowded = read(make.pdf_table(ROWS, "Boats", more=lines))
    assert crowded.startswith(plain)
