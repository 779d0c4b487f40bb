"""A reader of PDF files with docling, which recognises columns, headings, tables and scans.

    pip install docling
    esa ask report.pdf "What did Ulm cost?" --plugin plugins/docling_reader.py

docling fetches its models from a model hub when it first reads a PDF; `docling-tools models
download` fetches them before. This project has not run docling on a PDF.
"""

from __future__ import annotations

import io
from pathlib import PurePath
from typing import Any

from esa_cli.documents.readers import ExtractedText, TextBuilder, register
from esa_cli.documents.readers.heading_cells import format_rows, has_names_above_numbers
from esa_cli.documents.readers.text_builder import import_package, label_document
from esa_cli.errors import DocumentError


@register("docling")
class DoclingReader:
    """Reads a PDF as docling lays it out, in place of the built-in reader."""

    what = "a PDF"
    suffixes = (".pdf",)
    binary = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(b"%PDF-")

    def read(self, data: bytes, name: str) -> ExtractedText:
        converters = import_package("docling.document_converter", "docling", name)
        models = import_package("docling.datamodel.base_models", "docling", name)
        stream = models.DocumentStream(name=PurePath(name).name, stream=io.BytesIO(data))
        try:
            result = converters.DocumentConverter().convert(stream)
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise DocumentError(
                f"docling cannot read {label_document(name)}: {why}",
                "fetch docling's models: docling-tools models download; or leave out --plugin",
            ) from error
        return extract_docling_text(result.document)


def extract_docling_text(document: Any) -> ExtractedText:
    """Returns the text of a DoclingDocument in reading order, with pages and chapters; running
    heads and feet are left out."""
    out, inline = TextBuilder(), None
    for item, _ in document.iterate_items():
        group = item.parent.resolve(document) if item.parent else None
        is_inline = group is not None and str(group.label) == "inline"
        label = str(item.label)
        if is_inline and group is inline:
            out.flow(" ")  # a piece of the same line
        elif label == "list_item":
            out.end_line()
        else:
            out.start_paragraph()
        inline = group if is_inline else None
        out.page = item.prov[0].page_no if item.prov else out.page
        if label == "table":
            out.add_exact_text(format_table(item.data.grid))
            continue
        if label == "picture":
            out.left_out["pictures"] += 1
            continue
        text = getattr(item, "text", "") or getattr(item, "orig", "")
        if label in ("title", "section_header") and text.strip():
            out.chapter = " ".join(text.split())
            out.level = 1 if label == "title" else 1 + item.level
        if label == "list_item":
            out.set_prefix_of_next_piece(f"{item.marker or '-'} ")
        out.add_exact_text(text) if label == "code" else out.flow(text)
    return out.result()


def format_table(grid: list[list[Any]]) -> str:
    """Returns a line `name: value; name: value` for each row of a table, or ` | ` between cells
    where no cell is a heading. A column's name has the words of all headings above it."""
    headings = 0
    while headings < len(grid) and any(cell.column_header for cell in grid[headings]):
        headings += 1
    texts = [[" ".join(cell.text.split()) for cell in row] for row in grid]
    for row, written in zip(grid, texts, strict=True):
        for column, cell in enumerate(row):
            if column > cell.start_col_offset_idx and not cell.column_header:
                written[column] = ""  # a cell of several columns is written once
    if 0 < headings < len(grid):
        above = zip(*texts[:headings], strict=True)
        names = [" ".join(dict.fromkeys(filter(None, words))) for words in above]
        return format_rows([names, *texts[headings:]])
    if not headings and has_names_above_numbers(texts):
        return format_rows(texts)
    return "\n".join(" | ".join(filter(None, row)) for row in texts)
