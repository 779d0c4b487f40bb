"""Jupyter notebooks: Markdown cells with their headings for chapters, code, printed output.

Code and outputs are fenced as in Markdown. Outputs without a plain text are counted.
"""

from __future__ import annotations

import json
import re
from typing import Any

from esa_cli.documents.readers.plain_text import decode_lines, find_headings
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, label_document
from esa_cli.errors import DocumentError

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EMBEDDED = re.compile(r"data:[\w.+/-]+;base64,[A-Za-z0-9+/=]{64,}")


def read_notebook(data: bytes, name: str) -> ExtractedText:
    """Reads the cells of a notebook in order; JSON of another kind as plain text."""
    text, encoding = decode_lines(data, name)
    notebook = json.loads(text) if text.lstrip("\ufeff \t\n").startswith("{") else {}
    if "nbformat" not in notebook or not notebook.keys() & {"cells", "worksheets"}:
        return ExtractedText(text, encoding=encoding)
    if notebook["nbformat"] != 4:
        raise DocumentError(
            f"{label_document(name)} is a notebook of format {notebook['nbformat']!r}, not 4",
            "open it in Jupyter and save it",
        )
    out = TextBuilder()
    language = notebook.get("metadata", {}).get("language_info", {}).get("name")
    language = language if re.fullmatch(r"[\w+#.-]+", str(language or "")) else ""
    for cell in notebook["cells"]:
        words = _join_lines(cell["source"]).replace("\r\n", "\n")
        if cell.get("cell_type") == "code":
            _write_fenced(words, language, out)
            outputs = [_output_text(output, out) for output in cell.get("outputs", [])]
            _write_fenced("\n".join(filter(None, outputs)), "output", out)
        elif words.strip():
            _write_markdown(words.strip("\n"), cell.get("cell_type") == "markdown", out)
    return out.result()


def _join_lines(value: str | list[str]) -> str:
    """Joins the lines of a text. Raises TypeError: the value is no text."""
    return "".join(value if isinstance(value, list) else ["", value])


def _write_markdown(words: str, titled: bool, out: TextBuilder) -> None:
    words = _EMBEDDED.sub("picture", words)
    out.paragraph()
    begins = 0
    # A line before it: at the beginning of a cell --- is a rule, not the frame of settings.
    for start, title in find_headings("\n" + words) if titled else ():
        out.exact(words[begins : start - 1])
        out.chapter = title
        begins = start - 1
    out.exact(words[begins:])


def _write_fenced(text: str, what: str, out: TextBuilder) -> None:
    text = text.strip("\n")
    if text.strip():
        fence = "`" * (max(map(len, re.findall("`{3,}", text)), default=2) + 1)
        out.paragraph()
        out.exact(f"{fence}{what}\n{text}\n{fence}")


def _output_text(output: dict[str, Any], out: TextBuilder) -> str:
    """Returns the plain text of one output; empty for pictures and widgets."""
    kind = output.get("output_type")
    if kind == "stream":
        text = _join_lines(output["text"])
    elif kind == "error":
        text = f"{_join_lines(output['ename'])}: {_join_lines(output['evalue'])}"
    else:
        picture = any(form.startswith("image/") for form in output["data"])
        text = _join_lines(output["data"].get("text/plain", ""))
        if picture or not text:
            out.left_out["pictures" if picture else "outputs without plain text"] += 1
    return _COLOURS.sub("", text).replace("\r\n", "\n").strip("\n")
