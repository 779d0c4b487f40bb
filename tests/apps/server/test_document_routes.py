"""The list of documents, their texts in pieces, and answers that name documents by their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fake_asker import FakeAsker, fake_book
from live_server import TOKEN, LiveServer, Start, user
from quoting_asker import QuotingAsker

from esa_cli.apps.open_books import file_stamp
from esa_cli.apps.server import allowed_documents
from esa_cli.apps.server.allowed_documents import AllowedDocuments, DocumentTexts, list_documents
from esa_cli.documents.document import Document, Mark, read_document
from esa_cli.errors import DocumentError

TEXT = "Page one.\nIts second line. \U0001f600\nPage two begins here.\n"
MARKS = (Mark(0, 1, "One"), Mark(28, 2, "Two"))
PAGED = Document("paged.pdf", TEXT, "/home/me/paged.pdf", "", 99, MARKS, ("page 3 has no text",))


def text_of(live: LiveServer, **query: Any) -> tuple[int, Any]:
    status, _, body = live.raw("GET", f"/v1/documents/text?{urlencode(query)}")
    return status, body


def test_the_list(start: Start) -> None:
    live = start(fixed=[fake_book(TEXT, PAGED)])
    status, headers, body = live.raw("GET", "/v1/documents")
    assert status == 200
    assert body["data"] == [
        {"id": "esa:1", "object": "document", "name": "paged.pdf", "bytes": 99, "kind": "given"},
        {"id": "a.txt", "object": "document", "name": "a.txt", "bytes": 6, "kind": "file"},
        {"id": "sub/b.txt", "object": "document", "name": "b.txt", "bytes": 6, "kind": "file"},
    ]
    assert body["left_out"] == []
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_what_is_not_listed_is_said_without_where_it_is(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start()
    (tmp_path / "open/.hidden").write_text("x", "utf-8")
    (tmp_path / "open/zero.bin").write_bytes(b"a\0b" * 100)
    (tmp_path / "open/out.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "open/copy.txt").symlink_to(tmp_path / "open/a.txt")
    monkeypatch.setattr(allowed_documents, "MOST_LISTED", 1)
    body = live.raw("GET", "/v1/documents")[2]
    assert [one["id"] for one in body["data"]] == ["esa:1", "a.txt"]
    said = " ".join(body["left_out"])
    assert "1 hidden" in said
    assert "zero.bin" in said
    assert "files beyond the first 1, which can be named all the same: 1" in said
    assert str(tmp_path) not in said


def test_two_folders_with_files_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_text(name, "utf-8")
    (tmp_path / "two/other.txt").write_text("other", "utf-8")
    documents = AllowedDocuments(FakeAsker(), [], [tmp_path / "one", tmp_path / "two"])
    found = list_documents(documents)
    assert [one["id"] for one in found["data"]] == ["same.txt", "other.txt"]
    assert found["left_out"] == ["files of a name that another allowed folder has: 1"]
    nested = AllowedDocuments(FakeAsker(), [], [tmp_path, tmp_path / "one"])
    ids = [one["id"] for one in list_documents(nested)["data"]]
    assert ids == ["one/same.txt", "two/other.txt", "two/same.txt"]
    assert documents.document("same.txt").text == "one"


def test_too_many_files_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from esa_cli.documents import sources

    (tmp_path / "files").mkdir()
    for number in range(3):
        (tmp_path / f"files/{number}.txt").write_text("x", "utf-8")
    monkeypatch.setattr(sources, "MOST_FILES", 2)
    found = list_documents(AllowedDocuments(FakeAsker(), [], [tmp_path / "files"]))
    assert found["data"] == []
    assert found["left_out"][0].startswith("files has more than 2 readable files")


def test_text_in_pieces(start: Start) -> None:
    live = start(fixed=[fake_book(TEXT, PAGED)])
    status, body = text_of(live, document="esa:1")
    assert status == 200
    assert (body["text"], body["characters"], body["name"]) == (TEXT, len(TEXT), "paged.pdf")
    assert (body["start"], body["end"], body["line"]) == (0, len(TEXT), 1)
    assert body["missing"] == ["page 3 has no text"]
    assert body["marks"] == [
        {"start": 0, "page": 1, "chapter": "One"}, {"start": 28, "page": 2, "chapter": "Two"},
    ]  # fmt: skip
    pieces = [text_of(live, document="esa:1", start=at, length=7)[1] for at in range(0, 56, 7)]
    assert "".join(one["text"] for one in pieces) == TEXT, "offsets count characters"
    assert pieces[2]["line"] == 2
    assert pieces[4]["marks"] == [{"start": 28, "page": 2, "chapter": "Two"}]
    assert text_of(live, document="esa:1", start=10**9)[1]["text"] == ""
    assert text_of(live, document="sub/b.txt")[1]["text"] == "text b"


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ({}, 400, "document must be an id of /v1/documents, got none"),
        ({"document": "esa:1", "start": "-1"}, 400, "start must be a whole number of at least 0"),
        ({"document": "esa:1", "start": "9" * 20}, 400, "start must be a whole number"),
        ({"document": "esa:1", "start": "\u0663"}, 400, "start must be a whole number"),
        ({"document": "esa:1", "length": "0"}, 400, "length must be a whole number from 1 to"),
        ({"document": "esa:1", "length": "100001"}, 400, "to 100000, got '100001'"),
        ({"document": "esa:2"}, 404, "there is no document esa:2"),
        ({"document": "esa:0"}, 404, "there is no document"),
        ({"document": "../secret.txt"}, 403, "not in a folder that requests may read"),
        ({"document": "/etc/passwd"}, 403, "not in a folder that requests may read"),
        ({"document": "none.txt"}, 404, "there is no document none.txt"),
        ({"document": "bad.bin"}, 400, "the document bad.bin "),
    ],
)
def test_texts_that_are_refused(
    live: LiveServer, tmp_path: Path, query: dict[str, str], status: int, said: str
) -> None:
    (tmp_path / "open/bad.bin").write_bytes(b"a\0b" * 100)
    got, body = text_of(live, **query)
    assert got == status
    assert said in body["error"]["message"]
    assert str(tmp_path) not in body["error"]["message"]


def test_documents_need_the_token_and_the_pages_own_origin(start: Start) -> None:
    live = start(token=TOKEN)
    for path in ("/v1/documents", "/v1/documents/text?document=esa:1"):
        assert live.raw("GET", path)[0] == 401
        assert live.raw("GET", path, Authorization=f"Bearer {TOKEN}")[0] == 200
    live = start()
    for path in ("/v1/documents", "/v1/documents/text?document=esa:1"):
        for headers in (
            {"Origin": "https://evil.org"}, {"Host": "evil.org"},
            {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        ):  # fmt: skip
            assert live.raw("GET", path, **headers)[0] == 403
        for site in ("same-origin", "none"):
            assert live.raw("GET", path, **{"Sec-Fetch-Site": site})[0] == 200


def test_documents_of_the_command_line_by_their_ids(start: Start, asker: FakeAsker) -> None:
    live = start(fixed=["alpha", "beta"], allowed=[])
    assert live.post({**user("one"), "documents": ["esa:2"]})[0] == 200
    assert asker.calls[-1]["books"] == ["beta"]
    assert live.post({**user("one"), "documents": ["a.txt"]})[0] == 403
    live = start()
    assert live.post({**user("one"), "documents": ["a.txt", "esa:1"]})[0] == 200
    assert asker.calls[-1]["books"] == ["text a", "alpha"]


@pytest.mark.parametrize(
    "number", ["0", "2", "0000000019999", "000000001" + "0" * 6000, "9" * 6000, "-1", "\u0661", ""]
)
def test_numbers_of_no_document_are_refused(start: Start, number: str) -> None:
    live = start(fixed=["alpha"])
    wanted = {200} if number == "\u0661" else {403, 404}  # the digit 1 of another script
    assert live.post({**user("one"), "documents": [f"esa:{number}"]})[0] in wanted
    assert text_of(live, document=f"esa:{number}"[:5000])[0] in wanted


def test_of_many_files_the_best_are_opened_and_a_scan_is_said(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.txt").write_text(f"The harp {number} of the town.", "utf-8")
    (tmp_path / "217.txt").write_text("The kiln stands at the harbour.", "utf-8")
    (tmp_path / "scan.pdf").write_bytes(b"%PDF-1.4 broken")
    documents = AllowedDocuments(FakeAsker(), [fake_book("alpha")], [tmp_path], most=3)
    names = [one["id"] for one in list_documents(documents)["data"]]
    assert {"esa:1", "217.txt", "scan.pdf"} <= set(names)
    left_out: list[str] = []
    opened = documents.open(documents.find(names), None, "Where is the kiln?", left_out)
    assert [one.id for one in opened[:2]] == ["esa:1", "217.txt"]
    assert len(opened) == 4
    assert left_out == ["left out: 1 files that cannot be read (scan.pdf)"]
    left_out.clear()
    few = documents.open(documents.find(["1.txt", "scan.pdf"]), None, "harp", left_out)
    assert ([one.id for one in few], len(left_out)) == (["1.txt"], 1)
    with pytest.raises(DocumentError):
        documents.open(documents.find(["scan.pdf"]))


def test_a_file_named_as_an_id_can_be_named_by_its_path(
    start: Start, asker: FakeAsker, tmp_path: Path
) -> None:
    live = start()
    (tmp_path / "open/esa:1").write_text("a file", "utf-8")
    assert live.post({**user("one"), "documents": ["./esa:1"]})[0] == 200
    assert asker.calls[-1]["books"] == ["a file"]


def test_heat_maps_and_their_ids(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open/mill.txt").write_text("The mill burned. Rain fell.", "utf-8")
    (tmp_path / "open/copy.txt").write_text("The mill burned. Rain fell.", "utf-8")
    (tmp_path / "open/other.txt").write_text("Nothing of it.", "utf-8")
    live = LiveServer(QuotingAsker(), tmp_path, fixed=[])
    try:
        named = ["other.txt", "mill.txt", "copy.txt"]
        question = {**user("What became of the mill?"), "documents": named}
        message = live.post({**question, "heat": True})[2]["choices"][0]["message"]
        assert message["heat"] == [
            {"document": "other.txt", "id": "other.txt", "spans": []},
            {"document": "mill.txt", "id": "mill.txt", "spans": [[0, 16, 8]]},
        ]
        *_, last = live.ask(
            "What became of the mill?", stream=True, extra_body={"documents": named, "heat": True}
        )
        assert last.model_extra["heat"] == message["heat"]
        assert "heat" not in live.post(question)[2]["choices"][0]["message"]
        assert live.post({**question, "heat": 1})[0] == 400
    finally:
        live.close()


def test_a_text_that_was_asked_about_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one", "utf-8")
    documents = AllowedDocuments(FakeAsker(), [], [tmp_path])
    opened = documents.open(documents.find(["a.txt"]))
    assert documents.document("a.txt") is opened[0].book.document
    (tmp_path / "a.txt").write_text("another", "utf-8")
    assert documents.document("a.txt").text == "another", "a changed file is read"


def test_only_so_many_characters_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowed_documents, "MOST_CHARACTERS", 10)
    paths = [str(tmp_path / f"{name}.txt") for name in "abc"]
    for path in paths:
        Path(path).write_text("x" * 6, "utf-8")
    texts = DocumentTexts()
    kept = {path: texts.read(path, read_document) for path in paths}
    assert texts.read(paths[2], read_document) is kept[paths[2]]
    assert texts.read(paths[0], read_document) is not kept[paths[0]]
    Path(paths[0]).write_text("y" * 99, "utf-8")
    texts.keep(paths[0], read_document(paths[0]), file_stamp(paths[0]))
    again = texts.read(paths[0], read_document)
    assert texts.read(paths[0], read_document) is again, "one alone may have more"


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"

    def change(source: str) -> Document:
        document = read_document(source)
        path.write_text("longer than before", "utf-8")
        return document

    path.write_text("before", "utf-8")
    texts = DocumentTexts()
    assert texts.read(str(path), change).text == "before"
    assert texts.read(str(path), read_document).text == "longer than before"

    class ChangingAsker(FakeAsker):
        def ingest(self, source: Any, progress: Any = None) -> Any:
            path.write_text("and now", "utf-8")
            return super().ingest(source, progress)

    documents = AllowedDocuments(ChangingAsker(), [], [tmp_path])
    documents.open(documents.find(["a.txt"]))
    assert documents.document("a.txt").text == "and now"


def test_a_text_that_another_thread_drops_is_shown(tmp_path: Path) -> None:
    """Between reading and showing, a large document of a question may take its room."""
    path = tmp_path / "a.txt"
    path.write_text("words", "utf-8")

    class FullTexts(DocumentTexts):
        def keep(self, *given: Any) -> None:
            super().keep(*given)
            self._kept.clear()

    assert FullTexts().read(str(path), read_document).text == "words"
