"""Jupyter notebooks: Markdown cells with their headings for chapters, code cells, text of outputs.

Code and outputs are fenced as in Markdown. Of an output in several forms one is read: plain text,
unless that only names a Python object. Pictures and widgets are counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from esa_cli.documents.readers.html_text import parse_html, write_html
from esa_cli.documents.readers.reader_registry import damage_error, register
from esa_cli.documents.readers.text_reader import headings, plain_text
from esa_cli.documents.text_builder import ExtractedText, TextBuilder, label
from esa_cli.errors import DocumentError

_VERSION = re.compile(rb'"nbformat"\s*:\s*\d')
_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
_OLD_KINDS = {
    "text": "text/plain", "html": "text/html", "latex": "text/latex", "png": "image/png",
    "jpeg": "image/jpeg", "svg": "image/svg+xml", "json": "application/json",
    "javascript": "application/javascript", "pdf": "application/pdf",
}  # fmt: skip
"""What nbformat 3 calls a kind of output, and nbformat 4."""
_FORMS = ("text/plain", "text/markdown", "text/html", "text/latex", "application/json")
_NAMES_AN_OBJECT = re.compile(r"\s*<[\w.]+ object(?: at 0x[0-9a-fA-F]+)?>\s*")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EMBEDDED = re.compile(r"data:[\w.+/-]+;base64,[A-Za-z0-9+/=]{64,}")


@register("ipynb")
class NotebookReader:
    """Notebooks of nbformat 3 and 4."""

    what: ClassVar[str] = "a Jupyter notebook"
    suffixes: ClassVar[tuple[str, ...]] = (".ipynb",)
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        return _BEGINS.match(head) is not None and _VERSION.search(head) is not None

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = plain_text(data, name)
        if not _BEGINS.match(data):
            return ExtractedText(text, encoding=encoding)
        try:
            notebook = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DocumentError(
                f"{label(name)} cannot be read as {self.what}; its JSON is broken ({error})",
                "fetch it or save it in Jupyter again; a copy whose name ends in .txt is read as "
                "plain text",
            ) from error
        cells = _cells(notebook)
        if cells is None:
            return ExtractedText(text, encoding=encoding)
        writer = _CellWriter(name, _language(notebook))
        for cell in cells:
            writer.cell(cell)
        extracted = writer.out.result(writer.missing())
        if not extracted.text.strip():
            raise DocumentError(
                f"{label(name)} is a notebook without text"
                f"{'; it holds pictures only' if writer.pictures else ''}",
                "give a document with text in it",
            )
        return extracted


def _cells(notebook: Any) -> list[Any] | None:
    """All cells in order; None for JSON that is no notebook."""
    if not isinstance(notebook, dict):
        return None
    sheets = notebook.get("worksheets", [notebook])
    cells: list[Any] = []
    for sheet in sheets if isinstance(sheets, list) else [None]:
        inside = sheet.get("cells") if isinstance(sheet, dict) else None
        if not isinstance(inside, list):
            return None
        cells += inside
    return cells if all(isinstance(c, dict) and "cell_type" in c for c in cells) else None


def _language(notebook: Any) -> str:
    """What its code is written in, for the fences; empty where it does not say."""
    about = notebook.get("metadata")
    for key, what in (("language_info", "name"), ("kernelspec", "language")):
        inside = about.get(key) if isinstance(about, dict) else None
        said = inside.get(what) if isinstance(inside, dict) else None
        if isinstance(said, str) and said.isprintable() and "`" not in said:
            return said
    return ""


class _CellWriter:
    """Writes the text of cells and their outputs."""

    def __init__(self, name: str, language: str) -> None:
        self.out = TextBuilder()
        self.pictures = 0
        self._name, self._language = name, language
        self._tracebacks = 0
        self._others: Counter[str] = Counter()

    def cell(self, cell: dict[str, Any]) -> None:
        kind = cell["cell_type"]
        words = self._text(cell.get("source", ""))
        if kind == "code":
            self._fenced(words or self._text(cell.get("input", "")), self._language)
            outputs = cell.get("outputs", [])
            if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
                raise self._odd("outputs")
            self._fenced("\n".join(filter(None, map(self._output, outputs))), "output")
            return
        self.pictures += len(cell.get("attachments") or ())
        words, embedded = _EMBEDDED.subn("picture", words)
        self.pictures += embedded
        if kind == "heading":
            level = cell.get("level")
            words = f"{'#' * level if isinstance(level, int) else '#'} {' '.join(words.split())}"
        self._markdown(words.strip("\n"), titled=kind in ("markdown", "heading"))

    def missing(self) -> Iterator[str]:
        """What the notebook has and the text has not."""
        if self.pictures:
            yield f"pictures are left out: {self.pictures}"
        if self._tracebacks:
            yield f"the tracebacks of errors are left out: {self._tracebacks}"
        if self._others:
            kinds = ", ".join(sorted(self._others))
            yield f"outputs without a text are left out: {self._others.total()} ({kinds})"

    def _markdown(self, words: str, *, titled: bool) -> None:
        if not words.strip():
            return
        self.out.paragraph()
        begins = 0
        # A line before it: at the beginning of a cell --- is a rule, not the frame of settings.
        for start, title in headings("\n" + words) if titled else ():
            self.out.exact(words[begins : start - 1])
            self.out.chapter(title)
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
            return _shown(self._text(output.get("text", "")))
        if kind in ("error", "pyerr"):
            self._tracebacks += bool(output.get("traceback"))
            parts = (self._text(output.get(key, "")) for key in ("ename", "evalue"))
            return _shown(": ".join(filter(None, parts)))
        data = output.get("data")
        if data is None:  # nbformat 3
            data = {new: output[old] for old, new in _OLD_KINDS.items() if old in output}
        if not isinstance(data, dict):
            raise self._odd("an output")
        return self._best(data)

    def _best(self, data: dict[str, Any]) -> str:
        """The text of an output that comes in several forms."""
        pictures = [form for form in data if form.startswith("image/")]
        self.pictures += bool(pictures)
        forms = [form for form in _FORMS if form in data]
        if len(forms) > 1 and forms[0] == "text/plain":
            named = _NAMES_AN_OBJECT.fullmatch(self._text(data["text/plain"]))
            forms = forms[1:] if named else forms
        if not forms:
            if data and not pictures:
                self._others[next(iter(data))] += 1
            return ""
        if forms[0] == "application/json":
            return json.dumps(data[forms[0]], ensure_ascii=False)
        text = self._text(data[forms[0]])
        if forms[0] != "text/html":
            return _shown(text)
        root, page = parse_html(text, self._name), TextBuilder()
        if root is not None:
            write_html(root, page, self._name, {})
        return page.result().text.strip("\n")

    def _text(self, value: Any) -> str:
        """A notebook has a text whole or as a list of its lines."""
        lines = [value] if isinstance(value, str) else value
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise self._odd("a text")
        return "".join(lines).replace("\r\n", "\n")

    def _odd(self, what: str) -> DocumentError:
        return damage_error(
            self._name, NotebookReader.what, f"{what} of a cell is not what it should be"
        )


def _shown(text: str) -> str:
    """As a terminal shows it: colours are none of the text, and lines may be written over."""
    lines = _COLOURS.sub("", text).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n")
