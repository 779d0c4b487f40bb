"""Files that Zotero stores have the titles and links of their items."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_files as make

from esa_cli.documents.document import Document, read_document

ENTRY = """@article{{{key},
  title = {{{{{{BERT}}}}: Pre-training \\& {name}}},
  booktitle = {{Not this}},
  abstract = {{A
  title = of two lines}},
  file = {{{file}}}
}}

"""


def store(home: Path, name: str, data: bytes) -> Document:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return read_document(str(path))


@pytest.mark.parametrize(
    "file",
    [
        "/home/ann/Zotero/storage/ABCD2345/Paper.pdf",
        "Full Text:storage/ABCD2345/Paper.pdf:application/pdf",
        r"C\:\\Zotero\\storage\\ABCD2345\\Paper.pdf;D\:\\storage\\ZZZZ2345\\b.html",
    ],
)
def test_an_export_gives_the_title(tmp_path: Path, file: str) -> None:
    entries = [("other", "/storage/ABCD2346/Paper.pdf"), ("devlin", file)]
    text = "".join(ENTRY.format(key=key, name=key.title(), file=one) for key, one in entries)
    (tmp_path / "library.bib").write_text(text, "utf-8")
    document = store(tmp_path, "storage/ABCD2345/Paper.pdf", make.pdf(["One", "Two"]))
    for number, word in enumerate(("One", "Two"), 1):
        place = document.place(document.text.index(word))
        assert place.title == "BERT: Pre-training & Devlin (@devlin)"
        assert place.link == f"zotero://open-pdf/library/items/ABCD2345?page={number}"
    page = store(tmp_path, "storage/ABCD2345/Page.html", b"<p>x</p>").place(0)
    assert page.link == "zotero://select/library/items/ABCD2345"
    (tmp_path / "library.bib").unlink()
    assert store(tmp_path, "storage/ABCD2345/Paper.pdf", make.pdf(["One"])).place(0).title is None


@pytest.mark.parametrize("folder", ["storage/20240101", "storage/abcd2345", "store/ABCD2345", "."])
def test_other_folders_are_no_folders_of_zotero(tmp_path: Path, folder: str) -> None:
    text = ENTRY.format(key="a", name="B", file=f"{folder}/a.txt")
    (tmp_path / "library.bib").write_text(text, "utf-8")
    assert store(tmp_path, f"{folder}/a.txt", b"words").marks == ()


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Attention Is All You Need", "Attention Is All You Need"),
        ("Microsoft Word - final draft", None), ("my paper v2.docx", None), ("untitled", None),
        ("Untitled document", None), ("", None),
    ],
)  # fmt: skip
def test_a_pdf_has_the_title_of_its_metadata(
    tmp_path: Path, title: str, expected: str | None
) -> None:
    data = make.pdf(["One"], title=title)
    place = store(tmp_path, "1706.03762.pdf", data).place(0)
    assert (place.title, place.link) == (expected, None)
