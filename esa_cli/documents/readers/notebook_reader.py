"""Reads Jupyter notebooks as Markdown: headings become chapters, code and plain-text outputs of
cells are fenced, and outputs without a plain text are counted as missing."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from esa_cli.documents.readers import text_builder
from esa_cli.documents.readers.markdown_reader import find_headings
from esa_cli.documents.readers.plain_text import decode_text_with_lf
from esa_cli.documents.readers.text_builder import ExtractedText, label_document
from esa_cli.errors import DocumentError

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EMBEDDED = re.compile(r"data:[\w.+/-]+;base64,[A-Za-z0-9+/=]{64,}")


def read_notebook(data: bytes, name: str) -> ExtractedText:
    """Reads the cells of a notebook in order; other JSON is read as plain text."""
    text, encoding = decode_text_with_lf(data, name)
    notebook = json.loads(text) if text.lstrip("\ufeff \t\n").startswith("{") else {}
    if "nbformat" not in notebook or not notebook.keys() & {"cells", "worksheets"}:
        return ExtractedText(text, encoding=encoding)
    if notebook["nbformat"] != 4:
        message = f"{label_document(name)} is a notebook of format {notebook['nbformat']!r}, not 4"
        raise DocumentError(message, "open the notebook in Jupyter and save it again")
    parts, left_out = [], Counter[str]()
    for cell in notebook["cells"]:
        words = _join_notebook_lines(cell["source"]).replace("\r\n", "\n")
        if cell.get("cell_type") == "code":
            outputs = (_extract_output_text(output, left_out) for output in cell.get("outputs", []))
            shown = "\n".join(filter(None, outputs))
            parts += [_fence_code(words, ""), _fence_code(shown, "output")]
        else:
            parts.append(_EMBEDDED.sub("picture", words).strip("\n"))
    text = "\n\n".join(map(text_builder.replace_unprintable, filter(str.strip, parts))) + "\n"
    missing = tuple(f"{what} are left out: {count}" for what, count in left_out.items())
    return ExtractedText(text, tuple(find_headings(text)), missing)


def _join_notebook_lines(lines: str | list[str]) -> str:
    """Joins a text that is stored as lines or as one string. Raises TypeError: it is no text."""
    return "".join(lines if isinstance(lines, list) else ["", lines])


def _fence_code(code: str, language: str) -> str:
    code = code.strip("\n")
    fence = "`" * (max(map(len, re.findall("`{3,}", code)), default=2) + 1)
    return f"{fence}{language}\n{code}\n{fence}" if code.strip() else ""


def _extract_output_text(output: dict[str, Any], left_out_counts: Counter[str]) -> str:
    """Returns the plain text of an output of a cell, or "" for pictures and widgets."""
    kind = output.get("output_type")
    if kind == "stream":
        text = _join_notebook_lines(output["text"])
    elif kind == "error":
        text = f"{_join_notebook_lines(output['ename'])}: {_join_notebook_lines(output['evalue'])}"
    else:
        picture = any(form.startswith("image/") for form in output["data"])
        text = _join_notebook_lines(output["data"].get("text/plain", ""))
        if picture or not text:
            left_out_counts["pictures" if picture else "outputs without plain text"] += 1
    return _COLOURS.sub("", text).replace("\r\n", "\n").strip("\n")
