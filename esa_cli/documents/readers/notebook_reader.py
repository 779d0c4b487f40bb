"""Jupyter notebooks: Markdown cells with their headings for chapters, code, outputs.

Code and outputs are fenced as in Markdown. Of an output in several forms one is read: plain text,
unless that only names a Python object. Pictures and widgets are counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from esa_cli.documents.readers.html_reader import html_text
from esa_cli.documents.readers.reader_registry import Reader, register
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, label
from esa_cli.documents.readers.text_reader import headings, plain_text
from esa_cli.errors import DocumentError

_VERSION = re.compile(rb'"nbformat"\s*:\s*\d')
_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
_FORMS = ("text/plain", "text/markdown", "text/html", "text/latex", "application/json")
_NAMES_AN_OBJECT = re.compile(r"\s*<[\w.]+ object(?: at 0x[0-9a-fA-F]+)?>\s*")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EMBEDDED = re.compile(r"data:[\w.+/-]+;base64,[A-Za-z0-9+/=]{64,}")


@register("ipynb")
class NotebookReader(Reader):
    what = "a Jupyter notebook"
    suffixes = (".ipynb",)
    binary = False

    def sniff(self, head: bytes) -> bool:
        return _BEGINS.match(head) is not None and _VERSION.search(head) is not None

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = plain_text(data, name)
        notebook = json.loads(text) if _BEGINS.match(data) else {}
        if "nbformat" not in notebook or not notebook.keys() & {"cells", "worksheets"}:
            return ExtractedText(text, encoding=encoding)
        version = notebook["nbformat"]
        if version != 4:
            raise DocumentError(
                f"{label(name)} is a notebook of format {version!r}, which is not read",
                "open it in Jupyter and save it",
            )
        writer = _CellWriter(name, notebook.get("metadata", {}))
        for cell in notebook["cells"]:
            writer.cell(cell)
        return writer.out.text_of(name, self.what, writer.missing())


def _text(value: str | list[str]) -> str:
    """A text, which may be a list of lines. Raises TypeError: it is none."""
    return "".join(value if isinstance(value, list) else ["", value])


class _CellWriter:
    """Writes the text of cells and their outputs."""

    def __init__(self, name: str, metadata: dict[str, Any]) -> None:
        self.out = TextBuilder()
        self._name = name
        language = metadata.get("language_info", {}).get("name")
        language = str(language or metadata.get("kernelspec", {}).get("language") or "")
        self._language = language if language.isprintable() and "`" not in language else ""
        self._others: Counter[str] = Counter()

    def cell(self, cell: dict[str, Any]) -> None:
        words, kind = _text(cell["source"]).replace("\r\n", "\n"), cell.get("cell_type")
        if kind == "code":
            self._fenced(words, self._language)
            outputs = [self._output(output) for output in cell.get("outputs", [])]
            self._fenced("\n".join(filter(None, outputs)), "output")
            return
        words, embedded = _EMBEDDED.subn("picture", words)
        self._leave_out("pictures", embedded + len(cell.get("attachments", {})))
        self._markdown(words.strip("\n"), titled=kind == "markdown")

    def missing(self) -> list[str]:
        """What the text lacks besides what is counted."""
        kinds = ", ".join(sorted(self._others))
        count = self._others.total()
        return [f"outputs without a text are left out: {count} ({kinds})"] if count else []

    def _leave_out(self, what: str, count: int) -> None:
        if count:
            self.out.left_out[what] += count

    def _markdown(self, words: str, *, titled: bool) -> None:
        if not words.strip():
            return
        self.out.paragraph()
        begins = 0
        # A line before it: at the beginning of a cell --- is a rule, not the frame of settings.
        for start, title in headings("\n" + words) if titled else ():
            self.out.exact(words[begins : start - 1])
            self.out.chapter = title
            begins = start - 1
        self.out.exact(words[begins:])

    def _fenced(self, text: str, what: str) -> None:
        text = text.strip("\n")
        if text.strip():
            longest = max(map(len, re.findall("`{3,}", text)), default=2)
            fence = "`" * (longest + 1)
            self.out.paragraph()
            self.out.exact(f"{fence}{what}\n{text}\n{fence}")

    def _output(self, output: dict[str, Any]) -> str:
        """One output's text, without empty lines around; empty for pictures."""
        kind = output.get("output_type")
        if kind == "stream":
            return _shown(_text(output["text"]))
        if kind == "error":
            self._leave_out("the tracebacks of errors", bool(output.get("traceback")))
            words = (_text(output.get("ename", "")), _text(output.get("evalue", "")))
            return _shown(": ".join(filter(None, words)))
        data = output["data"]
        pictures = any(form.startswith("image/") for form in data)
        self._leave_out("pictures", pictures)
        forms = [form for form in _FORMS if form in data]
        if len(forms) > 1 and _NAMES_AN_OBJECT.fullmatch(_text(data.get("text/plain", ""))):
            forms.remove("text/plain")
        if not forms:
            self._others.update([*data][:1] if not pictures else ())
            return ""
        if forms[0] == "application/json":
            return json.dumps(data[forms[0]], ensure_ascii=False)
        text = _text(data[forms[0]])
        return html_text(text, self._name).strip("\n") if forms[0] == "text/html" else _shown(text)


def _shown(text: str) -> str:
    """As a terminal shows it: without colours, and with lines written over."""
    lines = _COLOURS.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n")
