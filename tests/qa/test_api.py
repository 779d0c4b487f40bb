"""The Python interface: books read, stored, found again, asked alone and together. Tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from esa_cli.documents.document import Document
from esa_cli.errors import DiskError, DocumentError, HistoryError, ResourceError, UsageError
from esa_cli.methods.infllm import InfLLMSelector
from esa_cli.qa.answering.reply import Turn
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage_finder import add_token_ranges
from esa_cli.qa.ingestion.ingest import IngestEvents
from esa_cli.qa.ingestion.library_texts import index_files
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library
from esa_cli.storage.library.disk import LibraryPaths

TEXT = "The gate opens at nine and the market closes at dusk. " * 30
OTHER = "A grey boat lies at the pier, and nobody knows whose it is. " * 25
QUESTION = "When does the gate open?"
WITH_KEYS = ["score.name=sum", "selector.name=topk", "reading=local"]


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of a few hundred tokens have several segments."""
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", 64)
    monkeypatch.setattr("esa_cli.qa.ingestion.kv_cache_ingest.SEGMENT", 128)
    monkeypatch.setattr("esa_cli.qa.presets.resolved_preset.SEGMENT", 128)


def files(folder: Path) -> list[str]:
    paths = []
    for name, text in (("gate.txt", TEXT), ("boat.txt", OTHER)):
        (folder / name).write_text(text, "utf-8")
        paths.append(str(folder / name))
    return paths


EVENTS = {"progress": "report_ingest_progress", "waiting": "report_wait_for_process"}


def esa(loaded: Any, library: Library | None, *overrides: str, **options: Any) -> Esa:
    options = {"rows": "native", **options}
    if calls := {name: options.pop(name) for name in EVENTS if name in options}:
        options["events"] = IngestEvents()
        for name, call in calls.items():
            setattr(options["events"], EVENTS[name], call)
    return Esa(loaded, load_preset("tiny-random", overrides), library=library, **options)


@pytest.mark.parametrize("overrides", [[], WITH_KEYS, ["reading=select"]])
def test_a_stored_book_answers_as_one_in_memory(
    loaded: Any, library: Library, tmp_path: Path, overrides: list[str]
) -> None:
    path = files(tmp_path)[0]
    with esa(loaded, None, *overrides) as memory:
        book = memory.ingest(path)
        want = memory.ask(QUESTION, [book])
    with esa(loaded, library, *overrides) as first:
        book = first.ingest(path)
        assert book.entry is not None
        assert first.ask(QUESTION, [book]).text == want.text
    with esa(loaded, library, *overrides) as second:
        found = second.ingest(path)
        assert found.read_s == 0
        reply = second.ask(QUESTION, [found])
    assert reply.text == want.text
    assert reply.evidence == want.evidence
    rows = [torch.cat(store.span(0, len(book.prefilled.ids))) for store in book.prefilled.stores]
    again = [torch.cat(store.span(0, len(found.prefilled.ids))) for store in found.prefilled.stores]
    assert all(torch.equal(mine, yours) for mine, yours in zip(rows, again, strict=True))


def check_it_reads_on(loaded: Any, library: Library, path: str) -> None:
    seen: list[int] = []
    with esa(loaded, library, progress=lambda done, total: seen.append(done)) as two:
        answer = two.ask(QUESTION, [two.ingest(path)]).text
    assert seen[0] > 256
    with esa(loaded, None) as memory:
        assert memory.ask(QUESTION, [memory.ingest(path)]).text == answer


def test_an_interrupted_ingest_goes_on(loaded: Any, library: Library, tmp_path: Path) -> None:
    path = files(tmp_path)[0]

    def stop(done: int, total: int) -> None:
        if done >= 300:
            raise KeyboardInterrupt

    with esa(loaded, library, progress=stop) as one, pytest.raises(KeyboardInterrupt):
        one.ingest(path)
    check_it_reads_on(loaded, library, path)


def test_a_reading_in_memory_that_is_broken_off_leaves_nothing(loaded: Any, tmp_path: Path) -> None:
    gate, boat = files(tmp_path)
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with esa(loaded, None) as one:
        other = one.ingest(boat)
        want = one.ask(QUESTION, [other]).text
        with pytest.raises(InterruptedError):
            one.ingest(gate, stop)
        assert one.session.document_tokens == 0
        assert one.documents.count_tokens_in_memory() == other.tokens
        assert one.ask(QUESTION, [other]).text == want
        book = one.ingest(gate, lambda done, total: seen.append(done))
        assert seen[0] == 64
        assert seen[-1] == book.tokens


def test_the_memory_that_a_reading_takes_is_asked_for_before(
    loaded: Any, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, boat = files(tmp_path)
    asked: list[int] = []
    planner = SimpleNamespace(check_memory_suffices=asked.append)
    with esa(loaded, None, planner=planner) as memory:
        books = [memory.ingest(path) for path in (gate, boat)]
        assert asked == [books[0].tokens, books[0].tokens + books[1].tokens]
        del books[1]
        memory.ingest(boat)
        assert asked[2] == asked[1], "what was let go takes no room"
    monkeypatch.setattr("esa_cli.qa.ingestion.kv_cache_ingest.STORED_AT_ONCE", 200)
    with esa(loaded, library, planner=planner) as one:
        assert one.ingest(gate).tokens > 200
        one.ingest(gate)
    assert asked[3:] == [200], "rows go to the disk, and a book that is found is not read"


def test_load_refuses_what_does_not_fit_before_it_is_read(
    loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = Document("long", "word " * 40_000, "long", "utf-8", 200_000)

    def read(*_: Any) -> None:
        raise InterruptedError

    monkeypatch.setenv("ESA_MEMORY_LIMIT", "430MiB")
    with Esa.load("tiny-random", device="cpu", dtype="float32") as one:
        book = one.ingest(files(tmp_path)[0])
        assert one.ask(QUESTION, [book]).text
        monkeypatch.setattr(one.session, "resume", read)
        with pytest.raises(ResourceError, match=r"ESA_MEMORY_LIMIT allows 430 MiB") as caught:
            one.ingest(long)
        assert "tokens fit" in caught.value.hint
    library = Library(tmp_path / "library")
    with Esa.load("tiny-random", device="cpu", dtype="float32", library=library) as two:
        monkeypatch.setattr(two.session, "resume", read)
        with pytest.raises(InterruptedError):
            two.ingest(long)


def test_a_history_that_is_too_long_is_told_from_a_question(loaded: Any, tmp_path: Path) -> None:
    with esa(loaded, None, "window.ending=0") as one:
        book = one.ingest(files(tmp_path)[0])
        with pytest.raises(HistoryError, match="earlier questions"):
            one.ask(QUESTION, [book], history=[Turn("What? " * 400, "This.")])
        with pytest.raises(UsageError, match="the question and the answer take") as caught:
            one.ask("What? " * 400, [book])
        assert not isinstance(caught.value, HistoryError)
        assert one.ask(QUESTION, [book], history=[Turn("What?", "This.")]).text


def test_a_question_can_be_ended_while_it_is_read(loaded: Any, tmp_path: Path) -> None:
    steps: list[int] = []

    def stop() -> None:
        steps.append(1)
        if len(steps) == 2:
            raise InterruptedError

    with Esa(loaded, load_preset("tiny-random")) as one:
        book = one.ingest(files(tmp_path)[0])
        wanted = one.ask(QUESTION, [book]).text
        with pytest.raises(InterruptedError), one.interruptible(stop):
            one.ask(f"{QUESTION} " * 50, [book])
        assert len(steps) == 2
        assert one.ask(QUESTION, [book]).text == wanted, "the cache and the model are as before"
        assert len(steps) == 2


def test_the_tokens_of_a_question_are_counted_unread(loaded: Any, tmp_path: Path) -> None:
    turns = [Turn("Is there a gate?", "yes"), Turn("And a market?", "yes")]
    with Esa(loaded, load_preset("tiny-random")) as one:
        counted = one.question_tokens(QUESTION), one.question_tokens(QUESTION, turns)
        book = one.ingest(files(tmp_path)[0])
        asked = [one.ask(QUESTION, [book], history=said) for said in ((), turns)]
        assert counted == tuple(reply.question_tokens for reply in asked)
        with pytest.raises(UsageError, match="must not be empty"):
            one.question_tokens(" ")


def test_a_longer_document_reads_only_what_is_new(
    loaded: Any, library: Library, tmp_path: Path
) -> None:
    path = tmp_path / "log.txt"
    path.write_text(TEXT, "utf-8")
    with esa(loaded, library) as one:
        one.ingest(str(path))
    path.write_text(TEXT + OTHER, "utf-8")
    check_it_reads_on(loaded, library, str(path))


def test_books_are_asked_together(loaded: Any, library: Library, tmp_path: Path) -> None:
    paths = files(tmp_path)
    with esa(loaded, library) as one:
        books = [one.ingest(path) for path in paths]
        together = one.ask(QUESTION, books, evidence=5)
        assert {passage.document for passage in together.evidence} <= {"gate.txt", "boat.txt"}
        for passage in together.evidence:
            text = TEXT if passage.document == "gate.txt" else OTHER
            assert text[passage.start : passage.end] == passage.text
        alone = one.ask(QUESTION, books[:1])
        assert {passage.document for passage in alone.evidence} == {"gate.txt"}
        assert one.ask(QUESTION, books).text == together.text
    with esa(loaded, None) as memory:
        kept = [memory.ingest(path) for path in paths]
        assert memory.ask(QUESTION, kept).text == together.text


def test_two_versions_of_one_file_are_told_apart(
    loaded: Any, library: Library, tmp_path: Path
) -> None:
    path = Path(files(tmp_path)[0])
    with esa(loaded, library) as one:
        books = [one.ingest(str(path))]
        path.write_text("Now the gate opens at ten. " + TEXT, "utf-8")
        books.append(one.ingest(str(path)))
        names = [each.document.name for each in add_token_ranges(books)]
        found = {passage.document for passage in one.ask(QUESTION, books, evidence=20).evidence}
    assert names == [f"{path} ({book.entry.id})" for book in books if book.entry]
    assert found == set(names)


def test_who_waits_for_another_process_can_give_up(
    loaded: Any, library: Library, tmp_path: Path
) -> None:
    path, told, waited = files(tmp_path)[0], [], []

    def progress(done: int, total: int) -> None:
        waited.append((done, total))
        if len(waited) == 2:
            raise InterruptedError

    with esa(loaded, library, waiting=lambda: told.append(1)) as one:
        entry = one.ingest(path).entry
        library.remove(entry)
        with LibraryPaths(library.root).hold_lock(entry.key), pytest.raises(InterruptedError):
            one.ingest(path, progress)
        assert told == [1]
        assert waited == [(0, entry.tokens)] * 2
        assert one.ingest(path).read_s > 0


def test_a_library_book_needs_no_file(loaded: Any, library: Library, tmp_path: Path) -> None:
    path = tmp_path / "disk" / "gate.txt"
    path.parent.mkdir()
    Path(files(tmp_path)[0]).rename(path)
    with esa(loaded, library) as one:
        answer = one.ask(QUESTION, [one.ingest(str(path))]).text
    path.unlink()  # the folder is empty now, as that of a disk that is away
    with esa(loaded, library) as two:
        book = two.stored(library.entries()[0])
        assert book.document.name == "gate.txt"
        assert two.ask(QUESTION, [book]).text == answer
    with esa(loaded, library, "window.local=32") as other, pytest.raises(UsageError, match="other"):
        other.stored(library.entries()[0])


def test_no_passages_and_a_report(loaded: Any, tmp_path: Path) -> None:
    path = files(tmp_path)[0]
    with esa(loaded, None) as one:
        book = one.ingest(path)
        with pytest.raises(UsageError, match="no answer"):
            one.report(None, QUESTION)  # type: ignore[arg-type]
        reply = one.ask(QUESTION, [book], evidence=0)
        assert reply.evidence == ()
        assert QUESTION in one.report(reply, QUESTION)
        (heat,) = one.heat_maps()
        assert (heat.document, bool(heat.spans)) == (book.document.name, True)


def test_a_method_with_a_memory_keeps_it_and_asks_one_document(
    loaded: Any, library: Library, tmp_path: Path
) -> None:
    paths = files(tmp_path)
    with esa(loaded, library, "selector.name=infllm", "position.name=infllm") as one:
        books = [one.ingest(path) for path in paths]
        assert books[0].entry is None
        one.ask(QUESTION, books[:1])
        assert one.session.cache.get_layer_kv_cache(0).states[0, InfLLMSelector].mass
        with pytest.raises(UsageError, match="one document"):
            one.ask(QUESTION, books)


def test_the_head_is_the_books_own(loaded: Any, library: Library, tmp_path: Path) -> None:
    """A template that has changed since shifts no evidence."""
    path = files(tmp_path)[0]
    with esa(loaded, library) as one:
        book = one.ingest(path)
        one.session.prompt.head = lambda: [1, 2, 3]  # type: ignore[method-assign]
        rows = add_token_ranges([book])[0].rows
    assert len(rows) == len(book.spans)


def test_without_a_document_the_best_of_the_library_are_asked(
    loaded: Any, library: Library, tmp_path: Path
) -> None:
    gate, boat = files(tmp_path)
    with esa(loaded, library, "answer.from=text", "answer.documents=1") as one:
        one.ingest(gate)
        with library.open_catalogue() as catalogue:  # its words alone, as after ingest --words
            index_files(catalogue, [boat], folder=str(tmp_path))
        for name, path in {"gate": gate, "boat": boat}.items():
            question = f"Where is the {name}?"
            want = one.ask(question, path)
            assert {passage.document for passage in want.evidence} == {f"{name}.txt"}
            reply = one.ask(question)
            assert (reply.text, reply.evidence) == (want.text, want.evidence)
            assert {passage.document for passage in one.find_passages(question)} == {f"{name}.txt"}
        (library.root / "documents" / f"{library.entries()[0].key}.text").write_bytes(b"damaged")
        with pytest.warns(UserWarning, match="left out: .*damaged"):
            assert one.ask("Where is the gate?").evidence[0].document == "boat.txt"
    with (
        esa(loaded, None, "answer.from=text") as one,
        pytest.raises(UsageError, match="there is no document"),
    ):
        one.ask(QUESTION)


def test_what_is_asked_about_may_be_a_path_a_document_or_a_book(
    loaded: Any, library: Library, tmp_path: Path
) -> None:
    gate, boat = files(tmp_path)
    with esa(loaded, library, "answer.from=text") as one:
        book = one.ingest(gate)
        assert repr(book) == f"Book({gate!r}, tokens={book.tokens}, read=True)"
        want = one.ask(QUESTION, [book])
        alone = Document("gate.txt", TEXT, gate, "utf-8", len(TEXT))
        for asked in (book, (book,), gate, Path(gate), alone, [gate, book], iter([book])):
            reply = one.ask(QUESTION, asked)
            assert (reply.text, reply.evidence) == (want.text, want.evidence)
        assert [one.document for one in one.heat_maps()] == ["gate.txt"]
        pattern = str(tmp_path / "*.txt")
        for name in ("gate", "boat"):
            assert one.find_passages(name, pattern)[0].document == f"{name}.txt"
        assert [one.document for one in one.collect(QUESTION, gate)] == [
            one.document for one in one.collect(QUESTION, [book])
        ]
        assert one.ask(QUESTION, [book, boat]).read is False
        for given in (None, 3, [book, None], {gate: 1}.items()):
            with pytest.raises(UsageError, match="a document must be a path or a Document"):
                one.ask(QUESTION, given)  # type: ignore[arg-type]
        with pytest.raises(
            UsageError, match="question must be a text and come first, got list"
        ) as caught:
            one.ask([book], QUESTION)  # type: ignore[arg-type]
        assert "esa.ask(" in caught.value.hint
        for ask in (one.ask, one.find_passages, one.collect):
            with pytest.raises(UsageError, match="there is no document"):
                ask(QUESTION, [])
        wrong: dict[str, Sequence[Any]] = {
            "history": (["x"], [("Who?", "Ann")]),
            "evidence": ("3", -1),
        }
        for name, values in wrong.items():
            for value in values:
                with pytest.raises(UsageError, match=f"{name} must be"):
                    one.ask(QUESTION, book, **{name: value})
        assert one.outline(book) == one.outline(gate) == [], "no headings"
        chapters = "CHAPTER I.\n\nThe gate opens.\n\nCHAPTER II.\n\nThe market closes.\n"
        parts = one.outline(Document("two.txt", chapters, "two.txt", "utf-8", len(chapters)))
        assert [part.number for part in parts] == ["1", "2"]
        with pytest.raises(UsageError, match="got list"):
            one.ingest([gate])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="got the file"):
            one.ask(gate, QUESTION)
        with pytest.raises(DocumentError):
            one.ask(QUESTION, "gone.txt")


def test_the_own_library_is_used_as_on_the_command_line(
    loaded: Any, finder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, boat = files(tmp_path)
    indexed = ["answer.from=text", f"answer.finder={finder}"]
    how: Any = {"device": "cpu", "dtype": "float32"}
    with Esa.load("tiny-random", indexed, library=False, **how) as one:
        assert one.ingest(gate).entry is None
    assert not Library().exists
    with Esa.load("tiny-random", indexed, **how) as one:
        assert one.ingest(gate).entry is not None
    with Esa.load("tiny-random", indexed, **how) as one:
        assert one.ask(QUESTION, gate).read, "it is in the library"
        assert not one.ask(QUESTION, boat).read
    before = len(list(Library().entries()))
    with Esa.load("tiny-random", **how) as one:
        assert one.ingest(boat).entry is None, "a KV cache is large"
    with Esa.load("tiny-random", ["answer.finder=gone"], finder="words", **how) as one:
        assert one.preset.answer.finds_by_bm25_only
    with pytest.raises(UsageError, match="overrides must be a list"):
        Esa.load("tiny-random", "answer.from=text", **how)
    with Esa.load("tiny-random", keep=True, **how) as one:
        assert one.ingest(boat).entry is not None
    assert len(list(Library().entries())) == before + 1

    def full(*given: object, **named: object) -> None:
        raise DiskError("the disk is full", "")

    monkeypatch.setattr(Library, "open_writer", full)
    (tmp_path / "new.txt").write_text(TEXT + OTHER)
    notice = pytest.warns(UserWarning, match="new.txt is not stored: the disk is full")
    with Esa.load("tiny-random", indexed, **how) as one, notice:
        assert one.ingest(str(tmp_path / "new.txt")).read
    with Esa.load("tiny-random", indexed, keep=True, **how) as one, pytest.raises(DiskError):
        one.ingest(str(tmp_path / "new.txt"))
