"""Which files a request may name, and the books that stay open."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
from fake_asker import FakeAsker, fake_book
from live_server import LiveServer, Start, user

from esa_cli.apps.open_books import MOST_RECENT
from esa_cli.apps.server.allowed_documents import AllowedDocuments
from esa_cli.errors import DiskError, DocumentError, ResourceError
from esa_cli.storage.library import Library


def test_documents_of_the_request(live: LiveServer, asker: FakeAsker, tmp_path: Path) -> None:
    for _ in range(2):
        live.ask(extra_body={"documents": ["a.txt", "sub/b.txt", "a.txt"]})
    live.ask(extra_body={"documents": [str(tmp_path / "open/a.txt"), "sub/../a.txt"]})
    assert [call["books"] for call in asker.calls] == [["text a", "text b"]] * 2 + [["text a"]]
    assert len(asker.ingested) == 2, "each is read once"
    (tmp_path / "open/a.txt").write_text("text new", "utf-8")
    live.ask(extra_body={"documents": ["a.txt"]})
    assert asker.calls[-1]["books"] == ["text new"], "a changed file is read again"


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("../secret.txt", 403),
        ("../nothing.txt", 403),
        ("sub/../../secret.txt", 403),
        ("{root}/secret.txt", 403),
        ("{root}/open-not/c.txt", 403),
        ("link.txt", 403),
        ("linked/c.txt", 403),
        ("loop", 403),
        ("/etc/passwd", 403),
        ("~/x", 404),
        ("-", 404),
        ("*.txt", 404),
        ("none.txt", 404),
        ("sub", 404),
        (".", 404),
        ("a\0.txt", 403),
        ("x" * 5000, 403),
    ],
)
def test_no_way_leads_out(
    live: LiveServer, asker: FakeAsker, tmp_path: Path, name: str, status: int
) -> None:
    (tmp_path / "open/link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "open/linked").symlink_to(tmp_path / "open-not")
    (tmp_path / "open/loop").symlink_to("loop")
    named = name.replace("{root}", str(tmp_path))
    got, _, body = live.post({**user("one"), "documents": [named]})
    assert got in ({status, 404} if name in ("loop", "a\0.txt") or len(name) > 99 else {status})
    assert body["error"]["param"] == "documents"
    assert not asker.ingested
    assert not asker.calls


def test_links_that_stay_inside_are_followed(
    live: LiveServer, asker: FakeAsker, tmp_path: Path
) -> None:
    (tmp_path / "open/inner.txt").symlink_to(tmp_path / "open/sub/b.txt")
    live.ask(extra_body={"documents": ["inner.txt"]})
    assert asker.calls[0]["books"] == ["text b"]


def test_without_allowed_folders_nothing_may_be_named(start: Start) -> None:
    live = start(allowed=[])
    assert live.post({**user("one"), "documents": ["a.txt"]})[0] == 403
    assert live.post(user("one"))[0] == 200


def test_without_fixed_documents_some_must_be_named(start: Start) -> None:
    live = start(fixed=[])
    status, _, body = live.post(user("one"))
    assert (status, body["error"]["param"]) == (400, "documents")
    assert live.post({**user("one"), "documents": ["a.txt"]})[0] == 200


def test_a_document_that_cannot_be_read_is_the_requests_mistake(
    live: LiveServer, tmp_path: Path
) -> None:
    (tmp_path / "open/bad.txt").write_bytes(b"x")

    def refuse(source: Any, progress: Any) -> str:
        raise DocumentError(f"{source.name} is broken")

    live.asker.ingest = refuse  # type: ignore[method-assign]
    status, _, body = live.post({**user("one"), "documents": ["bad.txt"]})
    assert (status, body["error"]["code"]) == (400, "document")


def test_where_the_folders_lie_is_not_told(live: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "open/sub/bad.txt").write_bytes(b"a\0b" * 100)
    status, _, body = live.post({**user("one"), "documents": ["sub/bad.txt"]})
    assert status == 400
    assert "the document sub/bad.txt " in body["error"]["message"]
    assert str(tmp_path) not in body["error"]["message"]


@pytest.mark.parametrize("allowed", ["here", "root", "both"])
def test_a_message_names_a_file_from_the_folder_down(tmp_path: Path, allowed: str) -> None:
    """Also where all files may be read, and no more of the message than the name."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "empty.txt").write_bytes(b"")
    root = Path(tmp_path.anchor)
    folders = {"here": [inner], "root": [root], "both": [root, inner]}[allowed]
    documents = AllowedDocuments(FakeAsker(), [], folders)
    with pytest.raises(DocumentError) as caught:
        documents.open([inner / "empty.txt"])
    wanted = (inner / "empty.txt").relative_to(root) if allowed == "root" else "empty.txt"
    assert f" {wanted} " in caught.value.message


def test_only_some_books_stay_open(tmp_path: Path) -> None:
    asker = FakeAsker()
    for number in range(MOST_RECENT + 3):
        (tmp_path / f"{number}.txt").write_text(str(number), "utf-8")
    documents = AllowedDocuments(asker, [], [tmp_path])
    for number in (*range(MOST_RECENT + 3), MOST_RECENT, 0):
        documents.open(documents.find([f"{number}.txt"]))
    assert len(asker.ingested) == MOST_RECENT + 4
    assert Path(asker.ingested[-1]).name == "0.txt", "the one that was longest unused"


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


class Small(FakeAsker):
    """Has room for so many books, and says what was open when each was read."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.books_room, self.alive = room, weakref.WeakSet[Any]()
        self.before: list[set[str]] = []

    def ingest(self, source: Any, progress: Any = None) -> Any:
        self.before.append({book.name for book in self.alive})
        if len(self.alive) >= self.books_room:
            raise ResourceError("no room")
        book = Named(super().ingest(source))
        self.alive.add(book)
        return book


@pytest.fixture
def abc(tmp_path: Path) -> Path:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name, "utf-8")
    return tmp_path


def opened(documents: AllowedDocuments, *names: str) -> list[str]:
    found = documents.find([f"{name}.txt" for name in names])
    return [one.book.name for one in documents.open(found)]


def books(documents: AllowedDocuments, *names: str) -> list[Any]:
    return [one.book for one in documents.open(documents.find(names))]


def test_where_memory_is_short_the_oldest_book_goes(abc: Path) -> None:
    asker = Small(2)
    documents = AllowedDocuments(asker, [], [abc])
    assert opened(documents, "a", "b") == ["a", "b"]
    assert opened(documents, "a") == ["a"]
    assert opened(documents, "c") == ["c"], "in the place of b, longest unused"
    assert {book.name for book in asker.alive} == {"a", "c"}
    assert opened(documents, "a", "d") == ["a", "d"], "what the request uses stays"
    assert asker.ingested.count(str(abc / "a.txt")) == 1


def test_where_a_request_itself_is_too_large_it_is_said(abc: Path) -> None:
    documents = AllowedDocuments(Small(2), [], [abc])
    opened(documents, "d")
    with pytest.raises(ResourceError, match="no room"):
        opened(documents, "a", "b", "c")
    assert opened(documents, "c") == ["c"], "and the next is not the worse for it"


def test_a_full_disk_closes_no_book(abc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asker = Small(2)
    documents = AllowedDocuments(asker, [], [abc])
    opened(documents, "a")
    with monkeypatch.context() as patch:
        patch.setattr(asker, "ingest", lambda *_: Library(abc).check_room(1 << 60))
        with pytest.raises(DiskError):
            opened(documents, "b")
    assert opened(documents, "a") == ["a"]
    assert len(asker.ingested) == 1


def test_a_changed_file_is_read_again_and_its_old_book_let_go_first(abc: Path) -> None:
    asker = Small(1)
    documents = AllowedDocuments(asker, [], [abc])
    assert opened(documents, "a") == ["a"]
    (abc / "a.txt").write_text("another", "utf-8")
    assert opened(documents, "a") == ["another"]
    assert asker.before == [set(), set()]


def test_a_book_is_let_go_before_the_next_is_read(tmp_path: Path) -> None:
    asker = Small(MOST_RECENT)
    for number in range(MOST_RECENT + 1):
        (tmp_path / f"{number}.txt").write_text(f"{number}", "utf-8")
    documents = AllowedDocuments(asker, [], [tmp_path])
    for number in range(MOST_RECENT + 1):
        opened(documents, f"{number}")
    assert len(asker.before) == MOST_RECENT + 1, "it never ran out of room"
    assert "0" not in asker.before[-1]


def test_a_text_in_several_files_is_one_book(abc: Path) -> None:
    asker = FakeAsker()
    (abc / "copy.txt").write_text("a", "utf-8")
    (abc / "fixed.txt").write_text("alpha", "utf-8")
    documents = AllowedDocuments(asker, [fake_book("the fixed book")], [abc], ["alpha"])
    assert books(documents, "a.txt", "copy.txt", "b.txt", "a.txt") == ["a", "b"]
    assert books(documents, "copy.txt") == ["a"]
    assert books(documents, "fixed.txt") == ["the fixed book"]
    assert [Path(source).name for source in asker.ingested] == ["a.txt", "b.txt"]
    (abc / "copy.txt").write_text("another", "utf-8")
    assert books(documents, "copy.txt", "a.txt") == ["another", "a"]
