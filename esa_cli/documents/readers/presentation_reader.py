"""Reads PowerPoint presentations (pptx) with python-pptx; slides are pages, titles are chapters.

The text of boxes, groups and tables keeps the order of the file. The notes of a slide follow it.
The first row of a table names the columns if the file marks it as a heading."""

from __future__ import annotations

import io
from typing import Any

from esa_cli.documents.readers.heading_cells import format_rows
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, import_package
from esa_cli.documents.readers.zip_parts import ZipDocument


def read_presentation(data: bytes, name: str) -> ExtractedText:
    ZipDocument(data, name)  # checks the unpacked size
    pptx = import_package("pptx", "python-pptx", name, extra="office")
    out = TextBuilder()
    for number, slide in enumerate(pptx.Presentation(io.BytesIO(data)).slides, 1):
        title = slide.shapes.title
        words = " ".join(title.text_frame.text.split()) if title is not None else ""
        hidden = slide.element.get("show") == "0"
        out.page = number
        out.chapter = f"{words} (hidden)".strip() if hidden else words or None
        for shape in slide.shapes:
            _write_shape_text(shape, out)
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        if notes is not None and notes.text.strip():
            out.start_paragraph()
            out.set_prefix_of_next_piece("Notes: ")
            _write_paragraph_texts(notes, out)
    return out.result()


def _write_shape_text(shape: Any, out: TextBuilder) -> None:
    out.start_paragraph()
    if shape.element.tag.endswith("}grpSp"):
        for inner in shape.shapes:
            _write_shape_text(inner, out)
    elif shape.has_text_frame:
        _write_paragraph_texts(shape.text_frame, out)
    elif shape.has_table:
        rows = [[" ".join(cell.text.split()) for cell in row.cells] for row in shape.table.rows]
        names, is_marked = rows[0], shape.table.first_row and len(rows) > 1
        has_names = is_marked and len({*names, ""}) > len(names) > 1  # different words
        out.add_exact_text(format_rows(rows) if has_names else "\n".join(map(" | ".join, rows)))
    elif shape.element.tag.endswith("}pic"):
        out.left_out["pictures"] += 1
        described = shape.element.xpath("string(.//p:cNvPr/@descr)")
        out.flow(f"[picture: {described}]" if described.strip() else "")
    elif shape.element.tag.endswith("}graphicFrame"):
        out.left_out["charts" if shape.has_chart else "diagrams and embedded files"] += 1


def _write_paragraph_texts(text_frame: Any, out: TextBuilder) -> None:
    for paragraph in text_frame.paragraphs:
        out.end_line()
        for piece in paragraph._p.content_children:
            properties = piece.find("{*}rPr")
            if properties is not None and int(properties.get("baseline", "0")) > 0:
                out.append_exponent_sign(piece.text)
            out.add_exact_text(piece.text.replace("\v", "\n"))
