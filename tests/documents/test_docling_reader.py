"""The worked plugin that reads PDF files with docling, on documents that docling's types hold, and
on web pages, which docling reads without models. Skipped without docling-core, or docling."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sample_files as make
from conftest import copy_registries
from reader_checks import refused

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText
from esa_cli.documents.readers.reader_registry import READERS
from esa_cli.methods import plugin_loading

ROWS = [["Client", "Town", "Sum"], ["Ann", "Ulm", "12"], ["Bob", "", "7"]]
WRITTEN = "Client: Ann; Town: Ulm; Sum: 12\nClient: Bob; Sum: 7"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    copy_registries(monkeypatch)
    plugin_loading.load_file(Path(__file__).parents[2] / "plugins" / "docling_reader.py")
    return sys.modules[READERS["docling"].__module__]


def make_table(types: Any, rows: list[list[str]], heads: int) -> Any:
    cells = [
        types.TableCell(
            start_row_offset_idx=y, end_row_offset_idx=y + 1, start_col_offset_idx=x,
            end_col_offset_idx=x + 1, text=text, column_header=y < heads,
        )
        for y, row in enumerate(rows)
        for x, text in enumerate(row)
    ]  # fmt: skip
    return types.TableData(table_cells=cells, num_rows=len(rows), num_cols=len(rows[0]))


def test_a_document_has_pages_chapters_and_rows(plugin: ModuleType) -> None:
    types = pytest.importorskip("docling_core.types.doc")
    document, labels = types.DoclingDocument(name="a"), types.DocItemLabel
    box = types.BoundingBox(l=0, t=0, r=1, b=1)

    def on(page: int) -> Any:
        return types.ProvenanceItem(page_no=page, bbox=box, charspan=(0, 1))

    document.add_title("The  Report", prov=on(1))
    document.add_text(labels.PAGE_HEADER, "Head", content_layer=types.ContentLayer.FURNITURE)
    document.add_heading("Costs", level=1, prov=on(1))
    document.add_table(make_table(types, ROWS, 1), prov=on(2))
    document.add_heading("By town", level=2, prov=on(2))
    line = document.add_group(label=types.GroupLabel.INLINE)
    for words in ("Ulm", "is", "far."):
        document.add_text(labels.TEXT, words, parent=line, prov=on(2))
    items = document.add_group(label=types.GroupLabel.LIST)
    for number in (1, 2):
        document.add_list_item(f"item {number}", True, f"{number}.", parent=items, prov=on(3))
    document.add_code("a\n  b", prov=on(3))
    document.add_picture(prov=on(3))
    found: ExtractedText = plugin.extract_docling_text(document)
    assert found.text == (
        f"The Report\n\nCosts\n\n{WRITTEN}\n\nBy town\n\nUlm is far.\n1. item 1\n2. item 2\n\n"
        "a\n  b\n"
    )
    assert found.missing == ("pictures are left out: 1",)
    places = [
        (found.text[mark.start :].split("\n")[0], mark.page, mark.chapter, mark.level)
        for mark in found.marks
    ]
    assert places == [
        ("The Report", 1, "The Report", 1), ("Costs", 1, "Costs", 2),
        (WRITTEN.split("\n")[0], 2, "Costs", 2), ("By town", 2, "By town", 3),
        ("1. item 1", 3, "By town", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(("heads", "expected"), [
    (0, WRITTEN), (2, "Client Ann: Bob; Sum 12: 7"),
    (3, "Client | Town | Sum\nAnn | Ulm | 12\nBob | 7"),
])  # fmt: skip
def test_heads_of_a_table(plugin: ModuleType, heads: int, expected: str) -> None:
    types = pytest.importorskip("docling_core.types.doc")
    assert plugin.format_table(make_table(types, ROWS, heads).grid) == expected


def test_a_cell_of_several_columns_is_written_once(plugin: ModuleType) -> None:
    types = pytest.importorskip("docling_core.types.doc")
    table = make_table(types, [*ROWS, ["Sum of all", "", ""]], 1)
    table.table_cells[-3].end_col_offset_idx = 3
    del table.table_cells[-2:]
    written = f"{WRITTEN}\nClient: Sum of all"
    assert plugin.format_table(table.grid) == written


def test_a_page_that_docling_reads(plugin: ModuleType) -> None:
    """Its rows are those that the built-in reader writes."""
    converters = pytest.importorskip("docling.document_converter")
    models = pytest.importorskip("docling.datamodel.base_models")
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in ROWS[1:])
    heads = "".join(f"<th>{cell}</th>" for cell in ROWS[0])
    page = f"<h1>A</h1><p>See <b>it</b> now.</p><h2>B</h2><table><tr>{heads}</tr>{rows}</table>"
    stream = models.DocumentStream(name="a.html", stream=io.BytesIO(page.encode()))
    found = plugin.extract_docling_text(converters.DocumentConverter().convert(stream).document)
    own = readers.extract_text(page.encode(), "a.html")
    assert found.text == own.text
    assert [mark.chapter for mark in found.marks] == [mark.chapter for mark in own.marks]


@pytest.mark.usefixtures("plugin")
def test_the_plugin_reads_pdf_files_alone_and_names_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "docling.document_converter", None)
    assert refused(make.pdf(["x"]), "a.pdf").hint == "pip install docling"
    assert readers.extract_text(b"x", "a.txt").text == "x"


@pytest.mark.usefixtures("plugin")
def test_what_docling_cannot_do_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its models are not on this machine."""
    converters = pytest.importorskip("docling.document_converter")

    def convert(converter: Any, stream: Any) -> None:
        raise OSError("the hub cannot be reached")

    monkeypatch.setattr(converters.DocumentConverter, "convert", convert)
    error = refused(make.pdf(["x"]), "a.pdf")
    assert "the hub cannot be reached" in error.message
    assert "docling-tools models download" in error.hint
