"""Which documents a request may name, their list and texts, and the books that stay open."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from fake_asker import FakeAsker, fake_book
from live_server import TOKEN, LiveServer, Start, user
from quoting_asker import QuotingAsker
from test_library import ingest

from esa_cli.apps.server import session_documents
from esa_cli.apps.server.allowed_documents import (
    AllowedDocuments,
    RequestableDocument,
    make_documents_json,
)
from esa_cli.apps.server.session_documents import SessionDocuments, parse_sent_document
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document
from esa_cli.documents.readers.text_builder import Mark
from esa_cli.errors import LibraryError, UsageError
from esa_cli.qa.ingestion.library_texts import LibraryText
from esa_cli.storage.library import Library

TEXT = "Page one.\nIts second line. \U0001f600\nPage two begins here.\n"
MARKS = (Mark(0, 1, "One"), Mark(28, 2, "Two"))
PAGED = Document("paged.pdf", TEXT, "/home/me/paged.pdf", "", 99, MARKS, ("page 3 has no text",))


def text_of(live: LiveServer, **query: Any) -> tuple[int, Any]:
    status, _, body = live.raw("GET", f"/v1/documents/text?{urlencode(query)}")
    return status, body


def ids_of(documents: AllowedDocuments) -> list[str]:
    return [one["id"] for one in make_documents_json(documents)["data"]]


def test_a_file_may_be_named_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But no file outside the allowed folders, and a name in an allowed folder comes first."""
    for name in ("docs/a.txt", "docs/docs/a.txt", "docs/b.txt", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, "utf-8")
    documents = AllowedDocuments(FakeAsker(), [], [tmp_path / "docs"])
    monkeypatch.chdir(tmp_path)
    found = documents.resolve_documents(["b.txt", "docs/b.txt", "docs/a.txt"])
    first = str(tmp_path / "docs/b.txt")
    assert [one.path for one in found] == [first, first, str(tmp_path / "docs/docs/a.txt")]
    refuse(403, documents.resolve_documents, ["../c.txt"])
    refuse(404, documents.resolve_documents, ["c.txt"])
    refuse(404, documents.resolve_documents, ["docs/c.txt"])


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


def test_a_given_document_may_be_named_by_its_name_or_path() -> None:
    """But not by what two documents have."""
    given = [
        fake_book(path, Document(Path(path).name, path, path, "", 9))
        for path in ("a/one.txt", "b/one.txt", "b/two.txt")
    ]
    documents = AllowedDocuments(FakeAsker(), given, [])
    found = documents.resolve_documents(["two.txt", "b/one.txt", "esa:1"])
    assert [one.id for one in found] == ["esa:3", "esa:2", "esa:1"]
    refuse(403, documents.resolve_documents, ["one.txt"])


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
    for name in ("library:dddddddddddd", "library:../x"):
        refuse(404, documents.read_named_document, name)
    said = refuse(403, documents.read_named_document, "x.pdf")
    assert "only documents such as esa:1 or library:ID" in said
    refuse(403, AllowedDocuments(FakeAsker(), [], [], library).resolve_documents, [one])
    (library.root / "documents" / f"{first.key}.text").write_bytes(b"")
    left_out: list[str] = []
    fresh = AllowedDocuments(asker, [], [], library, with_library=True)
    assert [
        book.id for book in fresh.open_documents(fresh.resolve_documents(None), left_out=left_out)
    ] == [other]
    assert left_out == [f"left out: {one} is damaged in the library"]
    with pytest.raises(LibraryError):
        fresh.open_documents(fresh.resolve_documents([one]))


def test_no_text_is_guessed_from_a_name_that_several_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ["/a/__init__.py", "/b/__init__.py", "/b/util.py"]
    stored = {path: RequestableDocument(path, text=LibraryText(path, path)) for path in paths}
    documents = AllowedDocuments(FakeAsker(), [], [tmp_path], Library(tmp_path), with_library=True)
    monkeypatch.setattr(documents, "list_stored_texts", lambda: stored)
    assert [one.id for one in documents.resolve_documents([*paths, "util.py"])] == [
        *paths,
        paths[2],
    ]
    assert "2 documents" in refuse(400, documents.resolve_documents, ["__init__.py"])


SESSION, OTHER = "s" * 16, "t" * 16


def refuse(status: int, do: Any, *given: Any) -> str:
    """What the error with this status says."""
    with pytest.raises(ApiError) as caught:
        do(*given)
    assert caught.value.status == status
    return caught.value.message


def send(live: LiveServer, data: bytes, **query: str) -> tuple[int, Any]:
    status, _, body = live.raw("POST", f"/v1/documents?{urlencode(query)}", data)
    return status, body


def ids(live: LiveServer, session: str) -> list[str]:
    body = live.raw("GET", f"/v1/documents?session={session}")[2]
    return [one["id"] for one in body["data"] if one["kind"] == "session"]


def make_document(text: str) -> Document:
    return Document("a.txt", text, "session:a.txt", "utf-8", len(text))


def test_a_document_of_a_session(start: Start, asker: FakeAsker, tmp_path: Path) -> None:
    live = start(fixed=[])
    (tmp_path / "open/mine.txt").write_text("a file of the server", "utf-8")
    status, sent = send(live, b"my own text", name="../open/mine.txt", session=SESSION)
    assert (status, sent["name"], sent["bytes"]) == (201, "mine.txt", 11)
    assert sent["id"].startswith(f"session:{SESSION}:")
    assert (ids(live, SESSION), ids(live, OTHER)) == ([sent["id"]], [])
    for name in (sent["id"], f"session:{SESSION}:*"):
        assert live.post({**user("one"), "documents": [name]})[0] == 200
        assert asker.calls[-1]["books"] == ["my own text"]
    assert asker.ingested == ["session:mine.txt"], "it is read once"
    assert (tmp_path / "open/mine.txt").read_text("utf-8") == "a file of the server"
    path = f"/v1/documents/text?document={sent['id']}"
    assert live.raw("GET", path)[2]["text"] == "my own text"
    assert live.raw("DELETE", f"/v1/documents?document={sent['id']}")[0] == 204
    assert (live.raw("GET", path)[0], ids(live, SESSION)) == (404, [])
    for name in (sent["id"], "a.txt", f"session:{SESSION}:*"):
        assert live.raw("DELETE", f"/v1/documents?document={name}")[0] == 404
    assert live.post({**user("one"), "documents": [f"session:{OTHER}:*"]})[0] == 404


@pytest.mark.parametrize(
    ("data", "query", "status"),
    [
        (b"x", {"name": "a.txt"}, 400),
        (b"x", {"name": "a.txt", "session": "short"}, 400),
        (b"x", {"name": "a.txt", "session": SESSION + "\n"}, 400),
        (b"x", {"name": "a/..", "session": SESSION}, 400),
        (b"x", {"name": "", "session": SESSION}, 400),
        (b"x", {"name": "a.txt", "session": SESSION, "keep": "disk"}, 400),
        (b"", {"name": "a.txt", "session": SESSION}, 400),
        (b"a\0b" * 60, {"name": "a.txt", "session": SESSION}, 400),
        (b"%PDF-1.7 broken", {"name": "a.txt", "session": SESSION}, 400),
        (b"x" * 201, {"name": "a.txt", "session": SESSION}, 413),
        (b"x", {"name": "a.txt", "keep": "library"}, 403),
    ],
)
def test_documents_that_are_not_taken(
    start: Start, data: bytes, query: dict[str, str], status: int
) -> None:
    live = start(max_document=200)
    found, body = send(live, data, **query)
    assert found == status
    assert body["error"]["message"]
    assert ids(live, SESSION) == []


def test_who_may_send(start: Start) -> None:
    guarded, live = start(token=TOKEN), start()
    path = f"/v1/documents?name=a.txt&session={SESSION}"
    assert guarded.raw("POST", path, b"x")[0] == 401
    assert guarded.raw("POST", path, b"x", Authorization=f"Bearer {TOKEN}")[0] == 201
    for headers in ({"Origin": "https://evil.org"}, {"Sec-Fetch-Site": "cross-site"}):
        for method in ("POST", "DELETE"):
            assert live.raw(method, path, b"x", **headers)[0] == 403
    assert ids(live, SESSION) == []


def test_sessions_are_limited_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now, forgotten = [0.0], list[str]()
    # Not `time.monotonic` itself: the server of the test before is just ending by it.
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(session_documents, "time", clock)
    kept = SessionDocuments(forgotten.append)
    most = session_documents.MAX_DOCUMENTS
    names = [kept.add_document(SESSION, make_document(f"{number}")) for number in range(most)]
    assert list(kept.list_documents(SESSION)) == names
    refuse(413, kept.add_document, SESSION, make_document("more"))
    monkeypatch.setattr(session_documents, "MAX_CHARACTERS", 100)
    refuse(413, kept.add_document, OTHER, make_document("x" * 99))
    now[0] += session_documents.LIFE_S
    other = kept.add_document(OTHER, make_document("x"))
    kept.list_documents(SESSION)  # a use
    now[0] += session_documents.LIFE_S
    assert list(kept.list_documents(SESSION)) == names
    now[0] += 1.0
    assert kept.list_documents(OTHER) == {}
    assert forgotten == [other]


def test_a_document_for_the_library(tmp_path: Path) -> None:
    class StoringAsker(FakeAsker):
        entry: Any = SimpleNamespace(id="abc")

        def ingest(self, source: Any, progress: Any = None, *, keep: Any = None) -> Any:
            assert keep
            book = fake_book(source.text, source)
            book.entry = self.entry  # type: ignore[attr-defined]
            return book

    asker, library = StoringAsker(), Library(tmp_path / "library")
    documents = AllowedDocuments(asker, [], [], library, with_library=True)
    document = parse_sent_document(b"text", "C:\\papers\\a.txt", "library:")
    assert (document.name, document.source) == ("a.txt", "library:a.txt")
    assert documents.store_document(document) == "library:abc"
    asker.entry = None
    with pytest.raises(UsageError):
        documents.store_document(document)


def test_groups_of_documents(tmp_path: Path) -> None:
    """A document is in one group, and a group's name stands for what its list shows."""
    library = Library(tmp_path / "library")
    stored = {f"library:{ingest(library, [*span]).id}" for span in (range(40), range(50, 70))}
    for name in ("one/a.txt", "one/sub/b.txt", "two/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, "utf-8")
    folders = [tmp_path / "one", tmp_path / "two", tmp_path / "one/sub"]
    given = [fake_book("alpha"), fake_book("beta")]
    documents = AllowedDocuments(FakeAsker(), given, folders, library, with_library=True)
    sent = documents.sent.add_document(SESSION, make_document("sent"))
    listed = make_documents_json(documents, SESSION)
    expected = {
        "esa:*": {"esa:1", "esa:2"}, f"session:{SESSION}:*": {sent}, "library:*": stored,
        "folder:1:*": {"a.txt", "sub/b.txt"}, "folder:2:*": {"c.txt"},
    }  # fmt: skip
    assert [group["id"] for group in listed["groups"]] == list(expected)
    for name, members in expected.items():
        assert {one["id"] for one in listed["data"] if one["group"] == name} == members
        assert {one.id for one in documents.resolve_documents([name])} == members
    for name in (f"session:{OTHER}:*", "folder:3:*", "folder:9:*"):
        refuse(404, documents.resolve_documents, [name])
