"""Which documents a request may name, their list and texts, and the books that stay open."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fake_asker import FakeAsker, fake_book
from live_server import TOKEN, LiveServer, Start, user
from quoting_asker import QuotingAsker
from test_library import ingest

from esa_cli.apps.server.allowed_documents import AllowedDocuments, make_documents_json
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document
from esa_cli.documents.readers.text_builder import Mark
from esa_cli.errors import LibraryError
from esa_cli.storage.library import Library

TEXT = "Page one.\nIts second line. \U0001f600\nPage two begins here.\n"
MARKS = (Mark(0, 1, "One"), Mark(28, 2, "Two"))
PAGED = Document("paged.pdf", TEXT, "/home/me/paged.pdf", "", 99, MARKS, ("page 3 has no text",))


def text_of(live: LiveServer, **query: Any) -> tuple[int, Any]:
    status, _, body = live.raw("GET", f"/v1/documents/text?{urlencode(query)}")
    return status, body


def ids_of(documents: AllowedDocuments) -> list[str]:
    return [one["id"] for one in make_documents_json(documents)["data"]]


def test_documents_of_the_request(live: LiveServer, asker: FakeAsker, tmp_path: Path) -> None:
    for _ in range(2):
        live.ask(extra_body={"documents": ["a.txt", "sub/b.txt", "a.txt"]})
    live.ask(extra_body={"documents": [str(tmp_path / "open/a.txt"), "sub/../a.txt"]})
    assert [call["books"] for call in asker.calls] == [["text a", "text b"]] * 2 + [["text a"]]
    assert len(asker.ingested) == 2, "each is read once"
    (tmp_path / "open/a.txt").write_text("text new", "utf-8")
    (tmp_path / "open/inner.txt").symlink_to(tmp_path / "open/sub/b.txt")
    (tmp_path / "open/esa:1").write_text("a file", "utf-8")
    live.ask(extra_body={"documents": ["a.txt", "inner.txt", "esa:1", "./esa:1"]})
    assert asker.calls[-1]["books"] == ["text new", "text b", "alpha", "a file"]


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        *((name, {403}) for name in ("../secret.txt", "../nothing.txt", "sub/../../secret.txt")),
        *((name, {403}) for name in ("{root}/secret.txt", "{root}/open-not/c.txt", "/etc/passwd")),
        *((name, {403}) for name in ("link.txt", "linked/c.txt")),
        *((name, {404}) for name in ("~/x", "-", "*.txt", "none.txt", "sub", ".")),
        *((name, {403, 404}) for name in ("loop", "a\0.txt", "x" * 5000)),
        *((f"esa:{number}", {403, 404}) for number in ("0", "2", "0000000019999", "9" * 900)),
    ],
)
def test_no_way_leads_out(
    live: LiveServer, asker: FakeAsker, tmp_path: Path, name: str, statuses: set[int]
) -> None:
    (tmp_path / "open/link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "open/linked").symlink_to(tmp_path / "open-not")
    (tmp_path / "open/loop").symlink_to("loop")
    named = name.replace("{root}", str(tmp_path))
    status, _, body = live.post({**user("one"), "documents": [named]})
    assert status in statuses
    assert body["error"]["param"] == "documents"
    assert text_of(live, document=named)[0] in statuses
    assert not asker.ingested
    assert not asker.calls


def test_what_may_be_named(start: Start, asker: FakeAsker) -> None:
    live = start(fixed=["alpha", "beta"], allowed=[])
    assert live.post({**user("one"), "documents": ["a.txt"]})[0] == 403
    assert live.post({**user("one"), "documents": ["esa:2"]})[0] == 200
    assert asker.calls[-1]["books"] == ["beta"]
    live = start(fixed=[])
    status, _, body = live.post(user("one"))
    assert (status, body["error"]["param"]) == (400, "documents")
    assert live.post({**user("one"), "documents": ["a.txt"]})[0] == 200


def test_a_document_that_cannot_be_read(live: LiveServer, tmp_path: Path) -> None:
    """Where the folders are is not told."""
    (tmp_path / "open/sub/bad.txt").write_bytes(b"a\0b" * 100)
    for status, body in (
        live.post({**user("one"), "documents": ["sub/bad.txt"]})[::2],
        text_of(live, document="sub/bad.txt"),
    ):
        assert (status, body["error"]["code"]) == (400, "document")
        assert " sub/bad.txt " in body["error"]["message"]
        assert str(tmp_path) not in body["error"]["message"]


def test_the_list(start: Start, tmp_path: Path) -> None:
    live = start(fixed=[fake_book(TEXT, PAGED)])
    (tmp_path / "open/.hidden").write_text("x", "utf-8")
    (tmp_path / "open/zero.bin").write_bytes(b"a\0b" * 100)
    (tmp_path / "open/out.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "open/copy.txt").symlink_to(tmp_path / "open/a.txt")
    _, headers, body = live.raw("GET", "/v1/documents")
    common, sub = {"object": "document", "bytes": 6, "kind": "file", "group": "folder:1:*"}, "sub"
    assert body["data"] == [
        {**common, "id": "esa:1", "name": "paged.pdf", "bytes": 99, "kind": "given", "folder": "",
         "group": "esa:*"},
        {**common, "id": "a.txt", "name": "a.txt", "folder": ""},
        {**common, "id": "sub/b.txt", "name": "b.txt", "folder": sub},
    ]  # fmt: skip
    assert body["groups"] == [
        {"id": "esa:*", "name": "Given to esa serve"}, {"id": "folder:1:*", "name": "open"},
    ]  # fmt: skip
    assert body["sending"]["keep"] == ["session"]
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    left_out = " ".join(live.raw("GET", "/v1/documents")[2]["left_out"])
    for words in ("1 hidden", "zero.bin"):
        assert words in left_out
    assert str(tmp_path) not in left_out


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
    assert (pieces[4]["line"], pieces[4]["marks"][0]["page"]) == (2, 2)
    assert text_of(live, document="esa:1", start=999)[1]["text"] == ""
    for wrong in ({}, {"start": -1}, {"start": "9" * 5000}, {"length": 0}, {"length": 100_001}):
        query = {"document": "esa:1", **wrong} if wrong else {}
        assert text_of(live, **query)[0] == 400


def test_documents_need_the_token_and_the_pages_own_origin(start: Start) -> None:
    guarded, live = start(token=TOKEN), start()
    for path in ("/v1/documents", "/v1/documents/text?document=esa:1"):
        assert guarded.raw("GET", path)[0] == 401
        assert guarded.raw("GET", path, Authorization=f"Bearer {TOKEN}")[0] == 200
        for headers in (
            {"Origin": "https://evil.org"}, {"Host": "evil.org"},
            {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        ):  # fmt: skip
            assert live.raw("GET", path, **headers)[0] == 403
        for site in ("same-origin", "none"):
            assert live.raw("GET", path, **{"Sec-Fetch-Site": site})[0] == 200


def test_heat_maps_and_their_ids(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    for name, text in {"mill": "The mill burned. Rain fell.", "other": "Nothing of it."}.items():
        (tmp_path / f"open/{name}.txt").write_text(text, "utf-8")
    (tmp_path / "open/copy.txt").write_text("The mill burned. Rain fell.", "utf-8")
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
    finally:
        live.close()


def test_texts_that_stay_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one", "utf-8")

    class ChangingAsker(FakeAsker):
        def ingest(self, source: Any, progress: Any = None, *, keep: Any = None) -> Any:
            path.write_text("changed while it was read", "utf-8")
            return super().ingest(source, progress, keep=keep)

    documents = AllowedDocuments(FakeAsker(), [], [tmp_path])
    opened = documents.open_documents(documents.resolve_documents(["a.txt"]))
    assert documents.read_named_document("a.txt") is opened[0].book.document
    path.write_text("another", "utf-8")
    assert documents.read_named_document("a.txt").text == "another", "a changed file is read"
    documents = AllowedDocuments(ChangingAsker(), [], [tmp_path])
    documents.open_documents(documents.resolve_documents(["a.txt"]))
    assert documents.read_named_document("a.txt").text == "changed while it was read"


def test_documents_of_the_library(tmp_path: Path) -> None:
    library, asker = Library(tmp_path), FakeAsker()
    first, second = ingest(library, [*range(40)]), ingest(library, [*range(50, 70)])
    one, other = f"library:{first.id}", f"library:{second.id}"
    documents = AllowedDocuments(asker, [fake_book("alpha")], [], library, with_library=True)
    assert set(ids_of(documents)) == {"esa:1", one, other}
    opened = documents.open_documents(documents.resolve_documents([other, "esa:1", one, other]))
    assert [book.id for book in opened] == [other, "esa:1", one]
    documents.open_documents(documents.resolve_documents([one]))
    assert len(asker.ingested) == 2, "each is opened once"
    for name, status in {"library:dddddddddddd": 404, "library:../x": 404, "x.pdf": 403}.items():
        with pytest.raises(ApiError) as caught:
            documents.read_named_document(name)
        assert caught.value.status == status
    assert "only documents such as esa:1 or library:ID" in caught.value.message
    with pytest.raises(ApiError) as caught:
        AllowedDocuments(FakeAsker(), [], [], library).resolve_documents([one])
    assert caught.value.status == 403
    (library.root / "documents" / f"{first.key}.text").write_bytes(b"")
    left_out: list[str] = []
    fresh = AllowedDocuments(asker, [], [], library, with_library=True)
    assert [
        book.id for book in fresh.open_documents(fresh.resolve_documents(None), left_out=left_out)
    ] == [other]
    assert left_out == [f"left out: {one} is damaged in the library"]
    with pytest.raises(LibraryError):
        fresh.open_documents(fresh.resolve_documents([one]))
