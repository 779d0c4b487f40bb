"""Documents that clients send: for one session, in memory, or into the library."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from fake_asker import FakeAsker, fake_book
from live_server import TOKEN, LiveServer, Start, user
from test_library import ingest

from esa_cli.apps.server import session_documents
from esa_cli.apps.server.allowed_documents import AllowedDocuments, make_documents_json
from esa_cli.apps.server.session_documents import SessionDocuments, parse_sent_document
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document
from esa_cli.errors import UsageError
from esa_cli.storage.library import Library

SESSION, OTHER = "s" * 16, "t" * 16


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
    kept = SessionDocuments(forgotten.append, lambda: now[0])
    most = session_documents.MAX_DOCUMENTS
    names = [kept.add_document(SESSION, make_document(f"{number}")) for number in range(most)]
    assert list(kept.list_documents(SESSION)) == names
    with pytest.raises(ApiError) as caught:
        kept.add_document(SESSION, make_document("more"))
    assert caught.value.status == 413
    monkeypatch.setattr(session_documents, "MAX_CHARACTERS", 100)
    with pytest.raises(ApiError) as caught:
        kept.add_document(OTHER, make_document("x" * 99))
    assert caught.value.status == 413
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
        with pytest.raises(ApiError) as caught:
            documents.resolve_documents([name])
        assert caught.value.status == 404
