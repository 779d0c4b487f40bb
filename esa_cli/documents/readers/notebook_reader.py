"""Jupyter notebooks: Markdown cells with their headings for chapters, code, outputs.

Code and outputs are fenced as in Markdown. Of an output in several forms one is read: plain text,
unless that only names a Python object. Pictures and widgets are counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from esa_cli.documents.reader_registry import Reader, damage_error, register
from esa_cli.documents.readers.html_reader import parse_html, write_html
from esa_cli.documents.readers.text_reader import headings, plain_text
from esa_cli.documents.text_builder import ExtractedText, TextBuilder, label
from esa_cli.errors import DocumentError

T = TypeVar("T")
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
        if not _BEGINS.match(data):
            return ExtractedText(text, encoding=encoding)
        try:
            notebook = _checked(json.loads(text), dict)
            if "nbformat" not in notebook or not notebook.keys() & {"cells", "worksheets"}:
                return ExtractedText(text, encoding=encoding)
            if notebook["nbformat"] != 4:
                raise DocumentError(
                    f"{label(name)} is a notebook of format {notebook['nbformat']!r}, which is not "
                    "read",
                    "open it in Jupyter and save it",
                )
            writer = _CellWriter(name, _language(_checked(notebook.get("metadata", {}), dict)))
            for cell in _checked(notebook.get("cells"), list):
                writer.cell(_checked(cell, dict))
        except (ValueError, RecursionError) as error:
            raise damage_error(name, self.what, str(error)) from error
        return writer.out.text_of(name, self.what, writer.missing())


def _checked(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{str(value)[:40]} stands where a {kind.__name__} must")
    return value


def _text(value: Any) -> str:
    """A text, which may be a list of lines."""
    lines = value if isinstance(value, list) else [value]
    return "".join(_checked(line, str) for line in lines)


def _language(metadata: Mapping[str, Any]) -> str:
    """The language of its code, for the fences; empty where it does not say."""
    name = _checked(metadata.get("language_info", {}), dict).get("name")
    language = str(name or _checked(metadata.get("kernelspec", {}), dict).get("language") or "")
    return language if language.isprintable() and "`" not in language else ""


class _CellWriter:
    """Writes the text of cells and their outputs."""

    def __init__(self, name: str, language: str) -> None:
        self.out = TextBuilder()
        self._name, self._language = name, language
        self._others: Counter[str] = Counter()

    def cell(self, cell: Mapping[str, Any]) -> None:
        words, kind = _text(cell.get("source")).replace("\r\n", "\n"), cell.get("cell_type")
        if kind == "code":
            self._fenced(words, self._language)
            self._fenced(
                "\n".join(filter(None, map(self._output, _checked(cell.get("outputs", []), list)))),
                "output",
            )
            return
        words, embedded = _EMBEDDED.subn("picture", words)
        self._leave_out("pictures", embedded + len(_checked(cell.get("attachments", {}), dict)))
        self._markdown(words.strip("\n"), titled=kind == "markdown")

    def missing(self) -> Iterator[str]:
        """What the text lacks besides what is counted."""
        if self._others:
            kinds = ", ".join(sorted(self._others))
            yield f"outputs without a text are left out: {self._others.total()} ({kinds})"

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

    def _output(self, output: Any) -> str:
        """One output's text, without empty lines around; empty for pictures."""
        kind = _checked(output, dict).get("output_type")
        if kind == "stream":
            return _shown(_text(output.get("text")))
        if kind == "error":
            self._leave_out("the tracebacks of errors", bool(output.get("traceback")))
            words = (_text(output.get("ename", "")), _text(output.get("evalue", "")))
            return _shown(": ".join(filter(None, words)))
        return self._best(_checked(output.get("data"), dict))

    def _best(self, data: Mapping[str, Any]) -> str:
        """The text of an output that comes in several forms."""
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
        if forms[0] != "text/html":
            return _shown(_text(data[forms[0]]))
        root, page = parse_html(_text(data[forms[0]]), self._name), TextBuilder()
        write_html(root, page, {})
        return page.result().text.strip("\n")


def _shown(text: str) -> str:
    """As a terminal shows it: colours are none of the text, and lines may be written over."""
    lines = _COLOURS.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n")
