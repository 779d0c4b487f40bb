"""PowerPoint presentations (pptx), by python-pptx: a page a slide, its title the chapter.

Text of boxes, groups and tables in the order of the file, then the speaker's notes. Pictures give
their description. Charts and diagrams are counted.
"""

from __future__ import annotations

import io
from typing import Any

from esa_cli.documents.reader_registry import Reader, damage_error, register
from esa_cli.documents.readers.zip_parts import ZipParts, has_part
from esa_cli.documents.text_builder import ExtractedText, TextBuilder, optional_import

_MAIN = "ppt/presentation.xml"


@register("presentation")
class PresentationReader(Reader):
    what = "a PowerPoint presentation"
    suffixes = (".pptx", ".pptm")
    binary = True

    def sniff(self, head: bytes) -> bool:
        return has_part(head, _MAIN)

    def read(self, data: bytes, name: str) -> ExtractedText:
        ZipParts(data, name, self)  # checks the size that it unpacks to
        pptx = optional_import("pptx", "python-pptx", name, extra="office")
        try:
            slides = [*pptx.Presentation(io.BytesIO(data)).slides]
        except Exception as error:  # python-pptx raises what it meets
            raise damage_error(name, self.what, f"{type(error).__name__}: {error}") from error
        writer = _SlideWriter()
        for number, slide in enumerate(slides, 1):
            writer.slide(slide, number)
        return writer.out.text_of(name, self.what)


class _SlideWriter:
    """Writes the text of slides."""

    def __init__(self) -> None:
        self.out = TextBuilder()

    def slide(self, slide: Any, number: int) -> None:
        title = slide.shapes.title
        words = " ".join(title.text_frame.text.split()) if title is not None else ""
        hidden = slide.element.get("show") == "0"
        self.out.page(number)
        self.out.chapter(f"{words} (hidden)".strip() if hidden else words or None)
        for shape in slide.shapes:
            self._shape(shape)
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        if notes is not None and notes.text.strip():
            self.out.paragraph()
            self.out.lead("Notes: ")
            self._paragraphs(notes)

    def _shape(self, shape: Any) -> None:
        self.out.paragraph()
        if shape.element.tag.endswith("}grpSp"):
            for inner in shape.shapes:
                self._shape(inner)
        elif shape.has_text_frame:
            self._paragraphs(shape.text_frame)
        elif shape.has_table:
            for row in shape.table.rows:
                self.out.end_line()
                self.out.flow(" | ".join(" ".join(cell.text.split()) for cell in row.cells))
        elif shape.element.tag.endswith("}pic"):
            self.out.left_out["pictures"] += 1
            described = shape.element.xpath("string(.//p:cNvPr/@descr)")
            self.out.flow(f"[picture: {described}]" if described.strip() else "")
        elif shape.element.tag.endswith("}graphicFrame"):
            self.out.left_out["charts" if shape.has_chart else "diagrams and embedded files"] += 1

    def _paragraphs(self, frame: Any) -> None:
        for paragraph in frame.paragraphs:
            self.out.end_line()
            for piece in paragraph._p.content_children:
                properties = piece.find("{*}rPr")
                if properties is not None and int(properties.get("baseline", "0")) > 0:
                    self.out.raised(piece.text)
                self.out.exact(piece.text.replace("\v", "\n"))
