"""Notebooks: cells in order, outputs, what is missing, refusals."""

from __future__ import annotations

import json
from typing import Any

from reader_checks import refused

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText

PICTURE = "iVBORw0KGgo" + "A" * 80


def code(source: Any, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "source": source, "outputs": list(outputs)}


def markdown(source: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def display(**data: Any) -> dict[str, Any]:
    forms = {form.replace("_", "/", 1): value for form, value in data.items()}
    return {"output_type": "display_data", "data": forms}


def raw(*cells: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"cells": cells, "nbformat": 4, "metadata": {}} | more).encode()


def notebook(*cells: dict[str, Any], **more: Any) -> ExtractedText:
    return readers.extract_text(raw(*cells, **more), "a.ipynb")


def test_notebook_cells_in_order_with_their_headings_for_chapters() -> None:
    found = notebook(
        markdown(["lead\n", "\n", "# One\n", "alpha"]),
        code(["x = 1\n", "x"], {"output_type": "execute_result", "data": {"text/plain": ["1"]}}),
        markdown("```\n# no heading\n```"),
        markdown("---\n## Two\nbeta\n"),
        {"cell_type": "raw", "metadata": {}, "source": "raw"},
        code("", {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]}),
        markdown("  "),
    )
    assert found.text == (
        "lead\n\n# One\nalpha\n\n```\nx = 1\nx\n```\n\n```output\n1\n```\n\n"
        "```\n# no heading\n```\n\n---\n## Two\nbeta\n\nraw\n\n```output\na\nb\n```\n"
    )
    starts = [(found.text[mark.start :].split("\n")[0], mark.chapter) for mark in found.marks]
    assert starts == [("# One", "One"), ("## Two", "Two")]
    assert found.missing == ()


def test_notebook_outputs_of_every_kind() -> None:
    found = notebook(
        code(
            "f()",
            {"output_type": "stream", "text": "\x1b[31m100%\x1b[0m\r\nred\r\n"},
            display(text_plain="<Figure size 1x1>", image_png=PICTURE),
            display(text_plain="   a\n0  1", text_html="<table><tr><td>a</table>"),
            {"output_type": "display_data", "data": {"application/json": {"k": "ü"}}},
            {"output_type": "error", "ename": "ValueError", "evalue": "too few", "traceback": []},
        )
    )
    assert found.text.split("```output\n")[1] == (
        "100%\nred\n<Figure size 1x1>\n   a\n0  1\nValueError: too few\n```\n"
    )
    assert found.missing == (
        "pictures are left out: 1", "outputs without plain text are left out: 1",
    )  # fmt: skip


def test_notebook_refusals() -> None:
    broken = refused(raw(markdown("x"))[:-9], "a.ipynb")
    assert "damaged or cut off" in broken.message
    assert "without text" in refused(raw(code("", display(image_png=PICTURE))), "a").message
    assert "without text" in refused(raw(), "a.ipynb").message
    assert "of format 3" in refused(raw(nbformat=3), "a.ipynb").message
    for odd in (
        markdown(7),
        markdown([7]),
        code("x", display(text_plain={})),
        code("x") | {"outputs": 1},
    ):
        assert "damaged" in refused(raw(odd), "a.ipynb").message
    assert "damaged" in refused(b"{" + b'"a":[' * 100_000, "a.ipynb").message
