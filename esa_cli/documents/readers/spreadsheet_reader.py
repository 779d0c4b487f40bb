"""Excel workbooks (xlsx), by openpyxl: every sheet a chapter, its rows as those of CSV.

Values are those stored in the file: formulas are not computed. Dates are ISO's, percentages have
their sign; other number formats are not applied. Charts are left out and counted.
"""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar

from esa_cli.documents.readers.csv_reader import as_lines
from esa_cli.documents.readers.reader_registry import damage_error, register
from esa_cli.documents.readers.zip_parts import ZipParts, has_part, parse_xml
from esa_cli.documents.text_builder import ExtractedText, TextBuilder, label, optional_import
from esa_cli.errors import DocumentError

_MAIN = "xl/workbook.xml"
_OTHERS = (
    "docProps/", "customXml/", "xl/charts", "xl/comments", "xl/diagrams", "xl/drawings",
    "xl/embeddings", "xl/externalLinks", "xl/media", "xl/pivot", "xl/theme",
    "xl/threadedComments",
)  # fmt: skip
"""Folders of the parts that cells do not depend on."""
_RELATED = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_STRICT = {
    b"http://purl.oclc.org/ooxml/spreadsheetml/main":
        b"http://schemas.openxmlformats.org/spreadsheetml/2006/main",
    b"http://purl.oclc.org/ooxml/officeDocument/relationships":
        b"http://schemas.openxmlformats.org/officeDocument/2006/relationships",
}  # fmt: skip
"""The names of a workbook that was saved as Strict Open XML, which else is the same."""
_ROWS = 1 << 20
_CELLS = 1 << 24
_FORMULA = re.compile(
    rb"<(?:\w+:)?c\b([^<>]*)>\s*<(?:\w+:)?f\b(?:[^<>]*/>|[^<>]*>[^<]*</(?:\w+:)?f>)"
    rb"(?:\s*<(?:\w+:)?v\s*/>|\s*<(?:\w+:)?v>\s*</(?:\w+:)?v>)?\s*</(?:\w+:)?c>"
)
_PLACE = re.compile(rb"""<(?:\w+:)?(row|c)\b[^<>]*?\sr=["']([A-Z]*)([0-9]+)""")
_EMPTY_ON_PURPOSE = re.compile(rb"""\bt\s*=\s*["']str["']""")
_EDGES = re.compile(rb"<(?:\w+:)?(?:odd|even|first)(?:Header|Footer)\b[^<>]*>[^<]")
_BOXES, _HEADERS = "text boxes", "headers and footers"
_BOXED = re.compile(rb"<(?:\w+:)?t>[^<]")
_LITERAL = re.compile(r'"[^"]*"|\\.')
_CONTROL = re.compile(r"_x00[01][0-9A-Fa-f]_")


@register("sheets")
class SpreadsheetReader:
    """Excel workbooks since 2007."""

    what: ClassVar[str] = "an Excel workbook"
    suffixes: ClassVar[tuple[str, ...]] = (".xlsx", ".xlsm", ".xltx", ".xltm")
    binary: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        return has_part(head, _MAIN)

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts, out = ZipParts(data, name, self, _STRICT), TextBuilder()
        cells, seen = _of_the_cells(parts, name)
        titles = _write_sheets(cells, out, name)
        lost = [title for title in _named(parts) if title not in titles]
        extracted = out.result(_missing(parts, seen, lost))
        if not extracted.text:
            raise DocumentError(
                f"{label(name)} is a workbook without a value in its cells"
                f"{'; its formulas have never been computed' if seen['formulas'] else ''}",
                "open it in a spreadsheet program, save it, and give that file",
            )
        return extracted


def _missing(parts: ZipParts, seen: Counter[str], sheets: list[str]) -> Iterator[str]:
    """What the text lacks of a workbook.

    Args:
        seen: of `_of_the_cells`. sheets: those that are named but not in the file.
    """
    if seen["formulas"]:
        yield (
            f"formulas without a stored value are left out: {seen['formulas']} (saving the file "
            "in a spreadsheet program computes them)"
        )
    for title in sheets:
        yield f"the sheet {title} is named but not in the file"
    for folder, words in (
        ("xl/charts/chart", "charts are left out"), ("xl/media/", "pictures are left out"),
        ("xl/embeddings/", "embedded files are left out"),
    ):  # fmt: skip
        count = sum(part.startswith(folder) for part in parts.names)
        if count:
            yield f"{words}: {count}"
    if any(part.startswith(("xl/comments", "xl/threadedComments")) for part in parts.names):
        yield "comments are left out"
    yield from (f"{words} are left out" for words in (_BOXES, _HEADERS) if seen[words])


def _of_the_cells(parts: ZipParts, name: str) -> tuple[io.BytesIO, Counter[str]]:
    """A zip of the parts that the cells depend on, each within the limits; and how many formulas
    without a value, text boxes and headers there are.

    openpyxl would unpack without a limit, expand entities, and stumble over what else is there.
    """
    out, seen = io.BytesIO(), Counter[str]()
    with zipfile.ZipFile(out, "w") as archive:
        for part in sorted(parts.names):
            drawn = part.startswith("xl/drawings/")
            apart = part.startswith(_OTHERS) and not drawn
            if apart or not part.endswith((".xml", ".rels")):
                continue
            data = parts.read(part)
            if b"<!DOCTYPE" in data.replace(b"\0", b""):  # in UTF-16, too
                raise damage_error(
                    name, SpreadsheetReader.what, f"{part}: it has entities of its own"
                )
            if drawn:
                seen[_BOXES] += _BOXED.search(data) is not None
                continue
            for strict, usual in _STRICT.items():
                data = data.replace(strict, usual)
            if part.startswith("xl/worksheets/"):
                empty = (found[1] for found in _FORMULA.finditer(data))
                seen["formulas"] += sum(not _EMPTY_ON_PURPOSE.search(how) for how in empty)
                seen[_HEADERS] += _EDGES.search(data) is not None
                data = data if _in_order(data) else _ordered(data, name, part)
            archive.writestr(part, data)
    return out, seen


def _in_order(data: bytes) -> bool:
    """Whether a sheet's rows and cells ascend; openpyxl loses those that do not."""
    row, column = 0, (0, b"")
    for found in _PLACE.finditer(data):
        if found[1] == b"row":
            before, row, column = row, int(found[3][:9]), (0, b"")
            if row <= before:
                return False
        else:
            last, column = column, (len(found[2]), found[2])
            if column <= last:
                return False
    return True


def _ordered(data: bytes, name: str, part: str) -> bytes:
    """A sheet with its rows and cells in order. Of a cell that is given twice the last one counts,
    as in LibreOffice."""
    etree = optional_import("lxml.etree", "lxml", name)
    sheet = parse_xml(data, name, SpreadsheetReader.what, part)
    cells: dict[int, dict[tuple[int, str], Any]] = {}
    for row in sheet.iterfind("{*}sheetData/{*}row"):
        number = int(row.get("r") or max(cells, default=0) + 1)
        for cell in row.iterfind("{*}c"):
            letters = (cell.get("r") or "").rstrip("0123456789")
            cells.setdefault(number, {})[len(letters), letters] = cell
    for rows in sheet.iterfind("{*}sheetData"):
        tag = f"{{{etree.QName(rows).namespace}}}row"
        rows[:] = []
        for number, row in sorted(cells.items()):
            etree.SubElement(rows, tag, r=str(number)).extend(row[at] for at in sorted(row))
        cells = {}
    return bytes(etree.tostring(sheet))


def _named(parts: ZipParts) -> list[str]:
    """The sheets of cells that a workbook says it has."""
    links = parts.xml("xl/_rels/workbook.xml.rels")
    kinds = {link.get("Id"): link.get("Type", "") for link in links}
    sheets = parts.xml(_MAIN).iterfind("{*}sheets/{*}sheet")
    return [s.get("name") for s in sheets if "chartsheet" not in kinds.get(s.get(_RELATED), "")]


def _write_sheets(cells: io.BytesIO, out: TextBuilder, name: str) -> list[str]:
    """Every sheet's text, and the titles of all."""
    openpyxl = optional_import("openpyxl", "openpyxl", name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what a reader of cells does not need
        try:
            book = openpyxl.load_workbook(cells, read_only=True, data_only=True, keep_links=False)
            for sheet in book.worksheets:
                _write(sheet, out, name)
            return list(book.sheetnames)
        except DocumentError:
            raise
        except Exception as error:  # openpyxl raises what it meets, some with advice around it
            why = error.__cause__ or error
            raise damage_error(
                name, SpreadsheetReader.what, f"{type(why).__name__}: {why}"
            ) from error


def _write(sheet: Any, out: TextBuilder, name: str) -> None:
    """A sheet's values as lines, without empty rows and columns."""
    rows: list[dict[int, str]] = []
    sheet.reset_dimensions()  # some programs write wrong ones
    for number, cells in enumerate(sheet.iter_rows(), 1):
        if number > _ROWS:
            raise damage_error(
                name, SpreadsheetReader.what, f"the sheet {sheet.title} has too many rows"
            )
        row = {at: text for at, cell in enumerate(cells) if (text := _shown(cell))}
        if row or (rows and rows[-1]):  # of empty rows one, which may part a title from a table
            rows.append(row)
    columns = sorted({column for row in rows for column in row})
    if not columns:
        return
    if len(columns) * len(rows) > _CELLS:
        raise DocumentError(
            f"{label(name)}: its sheet {sheet.title} is too large, {len(rows):,} rows by "
            f"{len(columns):,} columns",
            "split it and ask about the parts",
        )
    title = sheet.title if sheet.sheet_state == "visible" else f"{sheet.title} (hidden)"
    out.paragraph()
    out.chapter(title)
    if len(columns) == 1:
        lines = "\n".join(" ".join(row[columns[0]].split()) for row in rows if row)
    else:
        lines = as_lines([[row.get(column, "") for column in columns] for row in rows], name)
    out.exact(f"Sheet: {title}\n{lines}".rstrip("\n"))


def _shown(cell: Any) -> str:
    """A cell's value as text; empty where it has none."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, str):
        return _CONTROL.sub(" ", value).strip() if "_x00" in value else value.strip()
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        share = "%" in _LITERAL.sub("", cell.number_format)
        return f"{_number(value * 100)}%" if share else _number(value)
    if isinstance(value, datetime):
        whole = value.time() == time()
        return str(value.date()) if whole else value.isoformat(" ", "seconds")
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _number(value: float) -> str:
    """With the fifteen digits that spreadsheets keep."""
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
    return str(int(value)) if whole else f"{value:.15g}"
