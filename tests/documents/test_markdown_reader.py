"""Markdown, and what notes of Obsidian and Zotero add to it."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import properties  # noqa: F401
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from reader_checks import refused

from esa_cli.documents import readers
from esa_cli.documents.readers import ExtractedText

LINK = "zotero://select/library/items/ABCD2345"


def read(text: str) -> ExtractedText:
    return readers.extract_text(text.encode(), "note.md")


def test_headings_are_chapters() -> None:
    text = (
        "---\na list\n---\nlead\n\n# One #\nalpha\n```\n# no heading\n```\n"
        "Two\n---\nbeta\n\n- item\n---\n\n    # code\n#no\n### Three\ngamma\nFour\n==\n"
    )
    found = read(text)
    assert found.text == text
    assert [(text[m.start :].split("\n")[0], m.chapter, m.level) for m in found.marks] == [
        ("# One #", "One", 1), ("Two", "Two", 2), ("### Three", "Three", 3), ("Four", "Four", 1),
    ]  # fmt: skip


def test_a_note_has_the_title_and_link_of_its_front_matter() -> None:
    """Lines keep their numbers, and what the front matter says is a row of a table."""
    head = (
        f'---\ntitle: "Ohm\'s law: a note"\naliases:\n  - Resistance\n  - "[[URI|U = RI]]"\n'
        f"citekey: ohm1827\ntags: []\nzotero: {LINK}\nurl: example.org\nof: {{a: b}}\n---\n"
    )
    found = read(f"{head}Lead.\n\n## Use\n\nBody.\n")
    before, after = head.split("\n"), found.text.split("\n")
    assert after.index("Lead.") == len(before) - 1
    assert after[:3] == [
        "# Ohm's law: a note", "",
        f"aliases: Resistance, U = RI; citekey: ohm1827; zotero: {LINK}; url: example.org",
    ]  # fmt: skip
    assert [mark.chapter for mark in found.marks] == ["Ohm's law: a note", "Use"]
    assert {(mark.title, mark.link) for mark in found.marks} == {
        ("Ohm's law: a note (@ohm1827)", LINK)
    }


@pytest.mark.parametrize(
    ("front", "title", "link"),
    [
        ("url: https://a.org/x\nbanner: https://a.org/p.png", None, "https://a.org/x"),
        ("link: javascript:alert(1)", None, None),
        ("source: [[Book]]\nrelated: ['zotero://open-pdf/a']", None, "zotero://open-pdf/a"),
        ("title: 2020-13-45\nCiteKey: '@a20'", "2020-13-45 (@a20)", None),
        ("citekey: a20", "(@a20)", None),
        ("Title: One", "One", None),
    ],
)
def test_fields(front: str, title: str | None, link: str | None) -> None:
    found = read(f"---\n{front}\n---\n# One\n")
    mark = found.marks[0]
    assert (mark.title, mark.link) == (title, link)
    assert found.text.count("# One") == 1, "a title that the text repeats"
    assert found.text.split("\n").index("# One") in (0, front.count("\n") + 3)


def test_toml_is_read_as_yaml_is() -> None:
    toml = (
        f"title = 'Ohm'\ndate = 1827-05-01\ndraft = false\nweight = 3\n"
        f"tags = ['a', 'b']\nzotero = '{LINK}'\n[[menu.main]]\nname = 'x'\n[params]\nof = 1\n"
    )
    yaml = (
        f"title: Ohm\ndate: 1827-05-01\ndraft: False\nweight: 3\n"
        f"tags: [a, b]\nzotero: '{LINK}'\nmenu:\n  main: []\nparams:\n  of: 1\n"
    )
    body = "Lead, a [[note]].\n\n## Use\n\nBody.\n"
    one, other = read(f"+++\n{toml}+++\n{body}"), read(f"---\n{yaml}---\n{body}")
    assert "Lead, a note." in one.text
    assert (one.text, one.marks) == (other.text, other.marks)


@pytest.mark.parametrize(
    "text",
    [
        "+++\ntitle = a b\n+++\nx\n",
        "+++\ntitle = 'x'\n",
        "---\ntitle: a: b\n---\nx\n",
        "---\n" + "[" * 9999 + "\n---\nx\n",
        "---\na: &a [x]\nb: *c\n---\nx\n",
        "---\ntitle: " + "x" * (1 << 16) + "\n---\n",
        "---\ntitle: x\n",
        "Prose.\n\n---\ntitle: x\n---\n",
    ],
    ids=["no toml", "open toml", "colon", "deep", "anchor", "long", "open", "below"],
)
def test_what_is_no_front_matter_stays(text: str) -> None:
    found = read(text)
    assert found.text == text
    assert [mark for mark in found.marks if mark.title] == []


def test_fields_without_values_leave_empty_lines() -> None:
    assert read("---\ntags:\naliases: []\n---\nx\n").text == "\n\n\n\nx\n"


def test_wiki_links_are_their_words() -> None:
    before = "The [[Voltage|voltage]] of a [[Resistor]], [[a\\|b]] |, ![[plot.png|300]], [[A#B]]\n"
    kept = "`[[x]]` [x] [[ ]\n```sh\n[[ -f x ]] && [[y]]\n```\n~~~\n[[z]]\n```\n[[z]]\n"
    after = "The voltage of a Resistor, b |, plot.png, A#B\n"
    assert read(before + kept).text == after + kept


@pytest.mark.parametrize(
    "text",
    [
        "See [the guide](http://a.b/c_(d)), **bold words** and <b>more</b>.",
        "A [**bold** link](x 'title'), **a [link](y) in bold**, [![badge](i.png)](z), ![alt](i).",
        "Two ** stars ** stay, `**code** [a](b)` too, 2 < 3, f(a) and [x] (y).",
        "The *Fram* sailed (*north*), *to [the ice](x)*. **Two** *small ships*: 2 * 3 * 4.",
        "One <a id='x'></a>tag, <span class=\"y\">a span</span> and [[1]](http://a).",
    ],
)
def test_words_are_those_that_a_peer_shows(text: str) -> None:
    shown = re.sub(r"<img[^>]*alt=\"(.*?)\"[^>]*>", r"\1", MarkdownIt().render(text))
    words = html.unescape(re.sub(r"<[^>]+>", "", shown)).split()
    assert read(text + "\n").text.replace("`", "").split() == words


def test_rows_of_tables_name_their_columns() -> None:
    table = "# T\n| Model | Price | |\n|---|:-:|-|\n| A \\| B | 3 | x |\n| C | | y | z\n\nText\n"
    rows = "# T\n\n\nModel: A | B; Price: 3; x\nModel: C; y; z\n\nText\n"
    assert read(table).text == rows
    assert read("a | b\n--|--\n1 | 2").text == "\n\na: 1; b: 2"
    code = "```\na | b\n--|--\n1 | 2\n```\n"
    for no_table in (code, "a | b\n---\n1 | 2\n", "a|b\n--|--\ntext\n"):
        assert read(no_table).text == no_table


def test_what_is_no_markup_stays() -> None:
    text = "list[int], Array<string>, a**b**c**d, <https://a.b>, [a][b] <!-- open\n"
    assert read(text).text == text.replace("a**b**c", "abc")
    assert read("a<br>b <!-- hidden\ntwo --> c\n```\n**x** <b>\n```\n").text == (
        "a b \n c\n```\n**x** <b>\n```\n"
    )


@given(st.lists(st.sampled_from(
    ["---", "\n", "title: x", "a: [", "[[", "]]", "|", "!", "`", "```", "~~~", "# ", "y",
     "zotero://z", "\n--|--\n", "](", ")", "**", "*", "<b", ">", "<!--", "-->"]
)))  # fmt: skip
def test_any_text_keeps_its_lines(pieces: list[str]) -> None:
    text = "x".join(pieces) + "\nz"
    for one in (text, f"---\n{text}", f"---\ntitle: x\n---\n{text}"):
        found = read(one)
        assert found.text.count("\n") == one.count("\n")
        assert found.text.endswith("z")


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
    cells = [markdown(7), markdown([7]), code("x", display(text_plain={}))]
    for odd in (*cells, code("x") | {"outputs": 1}):
        assert "damaged" in refused(raw(odd), "a.ipynb").message
    assert "damaged" in refused(b"{" + b'"a":[' * 100_000, "a.ipynb").message
