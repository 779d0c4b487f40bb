"""Small documents with tables, and questions about their rows with the answers, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import sample_files as make

OFFICES = [
    ("Office", "Contact", "Telephone", "Hours of support"),
    ("Kiel", "Jonas Petersen", "+49 431 5550 17", "8 to 18"),
    ("Aarhus", "Mette Lund", "+45 8655 0142", "7 to 16"),
    ("Tallinn", "Kadri Saar", "+372 655 0190", "9 to 21"),
    ("Porto", "Rui Teixeira", "+351 225 550 63", "10 to 19"),
]
FEES = [
    ("Service", "Monthly fee"),
    ("Server hosting", "EUR 1,240"),
    ("Backup", "EUR 310"),
    ("Help desk", "EUR 2,875"),
]
BILLS = [
    ("Invoice", "Client", "Matter", "Amount", "Status"),
    ("2031", "Osprey Foods", "Lease of the mill", 2900, "paid"),
    ("2032", "Harrow Brothers", "Trademark", 4150, "unpaid"),
    ("2033", "Osprey Foods", "Trademark", 6380, "unpaid"),
    ("2034", "Linden School", "Employment", 1720, "paid"),
    ("2035", "Vega Shipping", "Collision in the lock", 9415, "overdue"),
]
STAFF = [
    ("Name", "Position", "Hourly rate", "Room"),
    ("Priya Raman", "Partner", "340", "4.12"),
    ("Tobias Hale", "Office manager", "95", "1.03"),
    ("Daniel Kwok", "Counsel", "250", "4.07"),
    ("Lena Fischer", "Associate", "180", "3.21"),
    ("Samuel Osei", "Trainee", "70", "3.22"),
]
TOURS = [
    ("Vessel", "Departure", "Berth", "Master"),
    ("Gannet", "06:40", "North pier 3", "A. Holm"),
    ("Fulmar", "08:15", "Ferry quay 1", "B. Rask"),
    ("Petrel", "09:50", "North pier 5", "C. Juul"),
]
SERVICES = "The provider runs the servers of the client and answers questions about them."
LAW = "Danish law governs this agreement. Each party may end it with three months' notice."


FILES = ("agreement.docx", "bills.xlsx", "staff.csv", "tours.pdf")


class RowQuestion(NamedTuple):
    """A question about a row of the file `file`, and words of the right answer."""

    file: str
    question: str
    answer: str


QUESTIONS = [
    RowQuestion("agreement.docx", "Who is the contact in Aarhus?", "Mette Lund"),
    RowQuestion("agreement.docx", "What is the telephone number in Porto?", "225 550 63"),
    RowQuestion("agreement.docx", "What are the hours of support in Tallinn?", "9 to 21"),
    RowQuestion("agreement.docx", "What is the monthly fee for backup?", "310"),
    RowQuestion("bills.xlsx", "What did we bill Osprey Foods for the trademark?", "6380"),
    RowQuestion("bills.xlsx", "What is the status of the invoice to Vega Shipping?", "overdue"),
    RowQuestion("bills.xlsx", "Which client has invoice 2034?", "Linden School"),
    RowQuestion("staff.csv", "What is the hourly rate of Daniel Kwok?", "250"),
    RowQuestion("staff.csv", "In which room is Tobias Hale?", "1.03"),
    RowQuestion("staff.csv", "What is Lena Fischer's position?", "Associate"),
    RowQuestion("tours.pdf", "When does the Fulmar leave?", "08:15"),
    RowQuestion("tours.pdf", "From which berth does the Petrel sail?", "North pier 5"),
]  # fmt: skip


def write_table_files(folder: Path) -> None:
    """Writes the documents FILES into a folder."""
    paragraph = make.paragraph
    body = (
        paragraph("Services agreement")
        + paragraph(SERVICES)
        + make.word_table(OFFICES)
        + paragraph("The client pays the fees of this table at the end of each month.")
        + make.word_table(FEES)
        + paragraph(LAW)
    )
    (folder / "agreement.docx").write_bytes(make.docx(body))
    (folder / "bills.xlsx").write_bytes(make.xlsx(BILLS))
    lines = [",".join(row) + "\n" for row in STAFF]
    (folder / "staff.csv").write_text("".join(lines), encoding="utf-8")
    (folder / "tours.pdf").write_bytes(make.pdf_table(TOURS, "Boats to the islands in summer"))
