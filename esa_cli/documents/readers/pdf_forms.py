"""Values of a PDF's form fields, and text boxes typed onto its pages.

Neither is part of a page's own text. A field becomes a line `name: value`. Comments are counted.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

_UNSEEN = 2 | 32  # flags of what is not shown
_PART = re.compile(r"\[\d+\]$")


def typed_lines(page: Any, raw: Any) -> tuple[list[str], int]:
    """The lines of one page, in the order of the file, and how many comments it has.

    Args:
        page: of a document whose forms were opened before. raw: PDFium's own functions.
    """
    lines: dict[str, None] = {}
    comments = 0
    for number in range(raw.FPDFPage_GetAnnotCount(page.raw)):
        one = raw.FPDFPage_GetAnnot(page.raw, number)
        kind = raw.FPDFAnnot_GetSubtype(one)
        words = _text(lambda *room, one=one: raw.FPDFAnnot_GetStringValue(one, b"Contents", *room))
        if raw.FPDFAnnot_GetFlags(one) & _UNSEEN:
            pass
        elif kind == raw.FPDF_ANNOT_WIDGET and page.formenv is not None:
            lines[_field(one, page.formenv.raw, raw)] = None
        elif kind == raw.FPDF_ANNOT_FREETEXT:
            lines[words] = None
        elif kind not in (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP):
            comments += bool(words)
        raw.FPDFPage_CloseAnnot(one)
    return [line for line in lines if line], comments


def _field(one: Any, form: Any, raw: Any) -> str:
    """`name: value`; empty where nothing is filled in."""

    def text(what: str) -> str:
        return _text(lambda *room: getattr(raw, f"FPDFAnnot_GetFormField{what}")(form, one, *room))

    kind = raw.FPDFAnnot_GetFormFieldType(form, one)
    value = text("Value")
    if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
        choice = text("ExportValue") if kind == raw.FPDF_FORMFIELD_RADIOBUTTON else ""
        value = (choice or "checked") if raw.FPDFAnnot_IsChecked(form, one) else ""
    elif kind in (raw.FPDF_FORMFIELD_PUSHBUTTON, raw.FPDF_FORMFIELD_SIGNATURE):
        value = ""
    name = text("AlternateName") or _PART.sub("", text("Name").rpartition(".")[2])
    return f"{name}: {value}" if name and value else value


def _text(ask: Callable[..., int]) -> str:
    """Text that PDFium writes into a buffer; a first call returns the length needed."""
    buffer = ctypes.create_string_buffer(ask(None, 0))
    ask(ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), len(buffer))
    return " ".join(buffer.raw.decode("utf-16-le", "replace").replace("\0", " ").split())
