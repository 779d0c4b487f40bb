"""Calendars and contacts: folded lines, escaped signs, days and times."""

from __future__ import annotations

from datetime import datetime

from esa_cli.documents import readers


def test_entries_of_a_calendar() -> None:
    when, long = datetime(2026, 11, 30, 19, 30), "the raffle prizes, from the costume store"
    folded = long.replace(",", "\\,")
    data = (
        "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n"
        f"DTSTART;TZID=Europe/London:{when:%Y%m%dT%H%M%S}\r\nDTEND:{when:%Y%m%dT%H%M%SZ}\r\n"
        f"DESCRIPTION:{folded[:9]}\r\n {folded[9:]}\\nDoors at 7\\; bar\r\nEND:VEVENT\r\n"
        f'BEGIN:VEVENT\r\nDTSTART;VALUE=DATE:{when:%Y%m%d}\r\nX;CN="a:b":c\r\nEND:VEVENT\r\n'
    )
    first, last = readers.extract_text(data.encode(), "a.ics").text.strip().split("\n\n\n")[-2:]
    assert first.splitlines() == [
        f"Start: {when:%Y-%m-%d %H:%M}", f"End: {when:%Y-%m-%d %H:%M} UTC",
        f"Description: {long} Doors at 7; bar",
    ]  # fmt: skip
    assert last.splitlines() == [f"Start: {when:%Y-%m-%d}", "X: c"]


def test_a_contact_and_lines_that_are_no_properties() -> None:
    data = "BEGIN:VCARD\nFN:Dilys Gough\nTEL;TYPE=WORK:01904 550 900\nno property\nEND:VCARD\n"
    found = readers.extract_text(data.encode(), "a.vcf").text
    assert found == "Name: Dilys Gough\nTel: 01904 550 900\nno property\n"
