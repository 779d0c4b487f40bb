"""Reads Jupyter notebooks as Markdown: cells, whose headings are chapters, code and plain output.

Code and outputs are fenced. Outputs without a plain text are counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from esa_cli.documents.readers.plain_text import decode_lines, find_headings
from esa_cli.documents.readers.text_builder import (
    ExtractedText,
    Mark,
    label_document,
    replace_unprintable,
)
from esa_cli.errors import DocumentError

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EMBEDDED = re.compile(r"data:[\w.+/-]+;base64,[A-Za-z0-9+/=]{64,}")


def read_notebook(data: bytes, name: str) -> ExtractedText:
    """Reads the cells of a notebook in order; other JSON is read as plain text."""
    text, encoding = decode_lines(data, name)
    notebook = json.loads(text) if text.lstrip("\ufeff \t\n").startswith("{") else {}
    if "nbformat" not in notebook or not notebook.keys() & {"cells", "worksheets"}:
        return ExtractedText(text, encoding=encoding)
    if notebook["nbformat"] != 4:
        raise DocumentError(
            f"{label_document(name)} is a notebook of format {notebook['nbformat']!r}, not 4",
            "open the notebook in Jupyter and save it again",
        )
    parts, left_out = [], Counter[str]()
    for cell in notebook["cells"]:
        words = _join_lines(cell["source"]).replace("\r\n", "\n")
        if cell.get("cell_type") == "code":
            outputs = (_extract_output_text(output, left_out) for output in cell.get("outputs", []))
            shown = "\n".join(filter(None, outputs))
            parts += [_fence_code(words, ""), _fence_code(shown, "output")]
        else:
            parts.append(_EMBEDDED.sub("picture", words).strip("\n"))
    text = "\n\n".join(replace_unprintable(part) for part in parts if part.strip()) + "\n"
    marks = tuple(Mark(start, chapter=title) for start, title in find_headings(text))
    missing = tuple(f"{what} are left out: {count}" for what, count in left_out.items())
    return ExtractedText(text, marks, missing)


def _join_lines(value: str | list[str]) -> str:
    """Joins the lines of a text. Raises TypeError: the value is no text."""
    return "".join(value if isinstance(value, list) else ["", value])


def _fence_code(text: str, language: str) -> str:
    text = text.strip("\n")
    fence = "`" * (max(map(len, re.findall("`{3,}", text)), default=2) + 1)
    return f"{fence}{language}\n{text}\n{fence}" if text.strip() else ""


def _extract_output_text(output: dict[str, Any], left_out: Counter[str]) -> str:
    """Returns the plain text of one output; the text is empty for pictures and widgets."""
    kind = output.get("output_type")
    if kind == "stream":
        text = _join_lines(output["text"])
    elif kind == "error":
        text = f"{_join_lines(output['ename'])}: {_join_lines(output['evalue'])}"
    else:
        picture = any(form.startswith("image/") for form in output["data"])
        text = _join_lines(output["data"].get("text/plain", ""))
        if picture or not text:
            left_out["pictures" if picture else "outputs without plain text"] += 1
    return _COLOURS.sub("", text).replace("\r\n", "\n").strip("\n")
