"""The catalogue: what it says is what the files say, whatever happens to it; its lexical search is
BM25 in plain loops."""

from __future__ import annotations

import errno
import math
import os
import random
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from forked import killed, taken
from test_library import files, ingest

from esa_cli.errors import LibraryError
from esa_cli.storage.library import Catalogue, FileRecord, Library
from esa_cli.storage.library.catalogue import PASSAGE_WORDS, WHOLE_TEXT_WEIGHT
from esa_cli.system import files as system_files
from esa_cli.system.files import LIBRARY_MARKER
from esa_cli.system.text import digest_text, find_content_words

NAME = "catalogue-1.sqlite"
TEXTS = [f"The {word} stands in hall {at}." for at, word in enumerate(("harp", "anvil", "loom"))]


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stamps of files that changed a moment ago are trusted."""
    monkeypatch.setattr(system_files, "SETTLED_NS", -(10**18))


@pytest.fixture
def library(tmp_path: Path) -> Library:
    made = Library(tmp_path / "library")
    for number in range(3):
        ingest(made, [number, *range(20)])
    return made


def make_catalogue(library: Library) -> None:
    with library.open_catalogue() as catalogue:
        assert catalogue.index_stored_texts() == []


def test_documents_come_go_and_change(library: Library) -> None:
    all_ = library.entries()
    assert library.match_entries("book.txt") == library.match_entries("/books/book.txt") == all_
    assert [library.match_entries(one.key[:6].upper()) for one in all_] == [[one] for one in all_]
    assert library.match_entries("zzzz") == library.match_entries("boo") == []
    assert library.list_text_digests() == {one.text_sha256 for one in all_}
    new = ingest(library, [9, 8, 7])
    assert {entry.key for entry in library.entries()} >= {new.key}
    library.remove(new)
    assert new.key not in {entry.key for entry in library.entries()}
    gone, broken = library.entries()[:2]
    (library.root / "documents" / f"{gone.key}.doc").unlink()
    path = library.root / "documents" / f"{broken.key}.doc"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    damages = {entry.key: entry.damage_reason for entry in library.entries()}
    assert gone.key not in damages
    assert "checksum is wrong" in damages[broken.key]
    assert [one.key for one in library.match_entries(broken.id)] == [broken.key]


@pytest.mark.parametrize("damage", ["cut", "empty", "flips", "missing", "folder", "begun"])
def test_a_damaged_catalogue_is_made_again(library: Library, damage: str) -> None:
    """Records of synchronised folders come from their own file, whatever happens to it."""
    record = FileRecord("/town/a.txt", "1", digest_text(TEXTS[0]), 3, folder="/town")
    wanted = library.entries()
    make_catalogue(library)
    with library.open_catalogue() as catalogue:
        with catalogue.run_transaction():
            catalogue.store_record(record)
        catalogue.save_file_records_of_folder("/town")
    path, draw = library.root / NAME, random.Random(3)
    for _ in range(20 if damage == "flips" else 1):
        data = bytearray(path.read_bytes())
        if damage == "flips":
            for _ in range(20):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        if damage in ("missing", "folder"):
            path.unlink()
        if damage == "folder":
            path.mkdir()
        elif damage == "begun":  # by a process that has made the tables, and no more
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("DELETE FROM files")
                db.execute("PRAGMA user_version = 0")
        elif damage != "missing":
            path.write_bytes({"cut": data[:5000], "empty": b""}.get(damage, bytes(data)))
        assert damage == "flips" or library.synced_file_count == 1
        with suppress(LibraryError), library.open_search_catalogue() as catalogue:
            catalogue.texts.rank_texts("anvil")  # damage may only be met here
        assert library.entries() == wanted
        assert library.match_entries(wanted[0].id) == wanted[:1]
        assert damage == "flips" or library.synced_file_count == 1
        with library.open_search_catalogue() as catalogue:
            assert damage == "flips" or catalogue.list_records() == [record]
            assert catalogue.index_stored_texts() == []
            assert damage == "flips" or len(catalogue.texts.list_digests()) == 3
    if damage == "folder":
        for change in (lambda: library.remove(wanted[0]), library.prune, make_catalogue):
            with pytest.raises(LibraryError, match="cannot be written"):
                change(library) if change is make_catalogue else change()  # type: ignore[call-arg]
        assert library.entries() == wanted[1:], "it is removed"
        with library.open_catalogue(keep_on_disk=False) as catalogue:
            assert catalogue.index_stored_texts() == []
            assert len(catalogue.texts.list_digests()) == 2
        assert list(path.iterdir()) == []


def test_words_go_with_their_document(library: Library) -> None:
    with library.open_catalogue() as catalogue:
        assert catalogue.index_stored_texts() == []
        assert len(catalogue.texts.list_digests()) == 3
        assert catalogue.index_stored_texts(lambda *_: pytest.fail("again")) == []
    first, second = library.entries()[:2]
    library.remove(first)
    with library.open_catalogue() as catalogue:
        assert catalogue.texts.list_digests() == {one.text_sha256 for one in library.entries()}
    (library.root / "documents" / f"{second.key}.doc").unlink()
    library.prune(dry_run=True)
    with library.open_catalogue() as catalogue:
        assert len(catalogue.texts.list_digests()) == 2
    library.prune()
    with library.open_catalogue() as catalogue:
        assert len(catalogue.texts.list_digests()) == 1


def test_names_that_are_not_utf_8(library: Library, tmp_path: Path) -> None:
    make_catalogue(library)
    inode = (library.root / NAME).stat().st_ino
    path, text = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"), "one \udce9 harp"
    record = FileRecord(path, "1", digest_text(text), 3, why=path, folder=str(tmp_path))
    with library.open_catalogue() as catalogue, catalogue.run_transaction():
        catalogue.texts.add_text(text, record.digest)
        catalogue.store_record(record)
        assert catalogue.find_record(path) == record
        synced = catalogue.list_records_of_synced_files()
        assert synced == catalogue.list_records() == [record]
        assert len(catalogue.texts.rank_texts("harp")) == 1
    assert library.synced_file_count == 0, "the file does not exist"
    with library.open_catalogue() as catalogue, catalogue.run_transaction():
        catalogue.remove_records([path])
        assert catalogue.find_record(path) is None
        catalogue.texts.remove_text(record.digest)
    assert library.match_entries(path) == []
    assert (library.root / NAME).stat().st_ino == inode, "it is not made again"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE texts SET words = x'00'",
        "UPDATE files SET path = x'ff'",
        "DELETE FROM passages_data WHERE id = 10",
    ],
)
def test_damage_that_only_the_work_meets_is_mended(library: Library, damage: str) -> None:
    make_catalogue(library)
    with library.open_catalogue() as catalogue, catalogue.run_transaction():
        catalogue.store_record(FileRecord("/town/a.txt", "1", "", 3))
    with sqlite3.connect(library.root / NAME) as db:
        db.execute(damage)
    assert len(library.entries()) == 3
    with suppress(LibraryError), library.open_search_catalogue() as catalogue:
        catalogue.list_records()
        catalogue.texts.rank_texts("anvil")
    library.remove(library.entries()[0])
    with library.open_catalogue() as catalogue:
        assert catalogue.index_stored_texts() == []
        assert len(catalogue.texts.rank_texts("w1")) == len(catalogue.texts.list_digests()) == 2


def add_texts(library: Library, count: int) -> None:
    texts = (f"{text} {number}" for number in range(count) for text in TEXTS)
    with library.open_catalogue() as catalogue:
        add = catalogue.texts.add_text
        catalogue.write_changes_in_batches(partial(add, one, digest_text(one)) for one in texts)


def test_threads_with_files_of_one_text_keep_its_words(library: Library) -> None:
    digest = digest_text(TEXTS[0])

    def use(number: int) -> int:
        record, lost = FileRecord(f"/town/{number}.txt", "1", digest, 3), 0
        with library.open_catalogue() as catalogue:
            for _ in range(25):
                with catalogue.run_transaction():
                    catalogue.texts.add_text(TEXTS[0], digest)
                    catalogue.store_record(record)
                lost += not catalogue.texts.has_text(digest)
                with catalogue.run_transaction():
                    catalogue.remove_records([record.path])
                catalogue.remove_unused_texts()
        return lost

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(use, range(4))) == [0] * 4
    with library.open_catalogue() as catalogue:
        assert len(catalogue.texts.list_digests()) == 0


@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="no fork, no SIGKILL")
def test_a_killed_writer_leaves_a_whole_catalogue(tmp_path: Path) -> None:
    draw, library = random.Random(1), Library(tmp_path / "library")
    whole = Library(tmp_path / "whole")
    for one in (library, whole):
        with one.open_catalogue():
            assert (one.root / LIBRARY_MARKER).is_file()
    needs = taken(partial(add_texts, whole, 300))
    for _ in range(15):
        killed(partial(add_texts, library, 300), draw.uniform(0, needs))
        with sqlite3.connect(library.root / NAME) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    add_texts(library, 300)
    found = []
    for one in (library, whole):
        with one.open_catalogue() as catalogue:
            assert len(catalogue.texts.list_digests()) == 900
            found.append(catalogue.texts.rank_texts("harp in hall 7"))
    assert found[0] == found[1]
    assert files(library) == files(whole)


def test_a_catalogue_on_a_read_only_disk_is_searched_as_a_copy(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_catalogue(library)
    real, path, before = os.open, library.root / NAME, (library.root / NAME).read_bytes()
    record = FileRecord("/town/a.txt", "1", digest_text(TEXTS[1]), 3)

    def refuse(place: Path, flags: int, *more: int) -> int:
        if place == path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(place))
        return real(place, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(LibraryError, match=r"be written: Read-only"), library.open_catalogue():
        raise AssertionError("sqlite would open it only to be read")
    with library.open_search_catalogue() as catalogue:
        assert len(catalogue.texts.list_digests()) == 3
        with catalogue.run_transaction():
            catalogue.store_record(record)
            catalogue.texts.add_text(TEXTS[1], record.digest)
        assert [*catalogue.texts.rank_texts("anvil")] == [record.digest]
    with library.open_search_catalogue(always_copy=True) as catalogue:
        assert catalogue.list_records() == []
    assert path.read_bytes() == before
    if os.name != "nt":
        assert path.stat().st_mode & 0o077 == 0


def test_prune_forgets_files_that_are_gone_and_words_that_nothing_needs(
    library: Library, tmp_path: Path
) -> None:
    there, gone, synced = (str(tmp_path / name) for name in ("there", "gone", "synced"))
    Path(there).write_text("", "utf-8")
    records = [
        FileRecord(path, "1", digest_text(text), 1, folder=folder)
        for path, text, folder in zip((gone, synced, there), TEXTS, ("", "/town", ""), strict=True)
    ]
    with library.open_catalogue() as catalogue, catalogue.run_transaction():
        for record, text in zip(records, TEXTS, strict=True):
            catalogue.store_record(record)
            catalogue.texts.add_text(text, record.digest)
    library.prune()
    with library.open_catalogue() as catalogue:
        assert catalogue.list_records() == records[1:]
        assert catalogue.texts.list_digests() == {record.digest for record in records[1:]}


WORDS = [f"{a}{b}" for a in ("ba", "ko", "mi", "tu", "zen") for b in ("lag", "rond", "fip", "dor")]


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    with Library(tmp_path / "library").open_catalogue() as made:
        yield made


def add(catalogue: Catalogue, *texts: str) -> list[str]:
    digests = [digest_text(text) for text in texts]
    with catalogue.run_transaction():
        for text, digest in zip(texts, digests, strict=True):
            catalogue.texts.add_text(text, digest)
    return digests


def some_texts(count: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    weights = [1 / (1 + at) for at in range(len(WORDS))]
    return [
        " ".join(draw.choices(WORDS, weights, k=draw.choice((20, 200, 700)))) for _ in range(count)
    ]


def plain_scores(texts: list[str], question: str) -> dict[str, float]:
    """BM25 as FTS5 defines it (k1 = 1.2, b = 0.75), by loops over words and passages."""
    passages: list[tuple[str, list[str]]] = []
    for text in texts:
        words = find_content_words(text)
        passages += [
            (digest_text(text), words[at : at + PASSAGE_WORDS])
            for at in range(0, len(words), PASSAGE_WORDS)
        ]
    count = len(passages)
    mean = sum(len(words) for _, words in passages) / count
    best: dict[str, float] = {}
    single: dict[tuple[str, str], float] = {}
    for digest, words in passages:
        total = 0.0
        for word in dict.fromkeys(find_content_words(question)):
            having = sum(word in others for _, others in passages)
            idf = max(math.log((count - having + 0.5) / (having + 0.5)), 1e-6) if having else 0.0
            times = words.count(word)
            score = idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * len(words) / mean))
            total += score
            single[digest, word] = max(single.get((digest, word), 0.0), score)
        best[digest] = max(best.get(digest, 0.0), total)
    for (digest, _), score in single.items():
        best[digest] += WHOLE_TEXT_WEIGHT * score
    return {digest: score for digest, score in best.items() if score > 0}


def test_scores_are_those_of_plain_loops(catalogue: Catalogue) -> None:
    texts = some_texts(40)
    add(catalogue, *texts)
    for question in ("zendor mifip", "balag", " ".join(WORDS[5:12]), "zendor zendor"):
        found = catalogue.texts.rank_texts(question)
        assert found == pytest.approx(plain_scores(texts, question))
        assert [*found.values()] == sorted(found.values(), reverse=True)


def test_what_is_removed_leaves_nothing(catalogue: Catalogue, tmp_path: Path) -> None:
    texts, others = some_texts(12), some_texts(12, seed=2)
    add(catalogue, *texts, *others)
    with catalogue.run_transaction():
        for text in others:
            catalogue.texts.remove_text(digest_text(text))
        catalogue.texts.remove_text(digest_text("was never there"))
        for text in texts:
            record = FileRecord(f"/town/{text}", "", digest_text(text), 0, folder="/town")
            catalogue.store_record(record)
    found = catalogue.texts.rank_texts("zendor mifip")
    assert found == pytest.approx(plain_scores(texts, "zendor mifip"))
    catalogue.remove_unused_contents()
    assert catalogue.texts.rank_texts("zendor mifip") == found


def test_words_of_any_script(catalogue: Catalogue) -> None:
    texts = ["O'Neil’s harp's strings", "東京の天気は晴れ", "ÄRGER über Öl", "\ud800 half", "..."]
    made = add(catalogue, *texts)
    for question, at in (
        ("harps of O'Neil's", 0), ("京の天", 1), ("ärger", 2), ("halves half", 3),
    ):  # fmt: skip
        assert [*catalogue.texts.rank_texts(question)] == [made[at]]
    for empty in ("", "the", "...", 'x" OR harp', "NEAR(harp)*"):
        catalogue.texts.rank_texts(empty)
    assert not catalogue.texts.rank_texts("of the")


def test_one_index_of_texts_in_many_languages(catalogue: Catalogue) -> None:
    texts = [
        "The houses of the town were sold, and Dólokhov’s brother was at home.",
        "Die Häuser der Stadt wurden verkauft, und der Kapitän ging nicht auf sein Schiff.",
        "Les chevaux de l’amiral étaient fatigués, et il ne savait pas qui les avait vus.",
        "Он спрятал серебряные ложки в сундуке, и это было тайной.",
    ]
    made = add(catalogue, *texts)
    for question, at in (
        ("Whose house?", 0), ("Dolokhov", 0), ("Haus", 1), ("ein cheval", 2), ("Amiral", 2),
        ("где серебряная ложка", 3),
    ):  # fmt: skip
        assert next(iter(catalogue.texts.rank_texts(question))) == made[at], question
    assert not catalogue.texts.rank_texts("of the, der und, et les, и это")
