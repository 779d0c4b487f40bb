"""The ranking of windows: words, late interaction, and no two of the same text."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, UsageError
from esa_cli.qa.api import Esa
from esa_cli.qa.finding import model_server
from esa_cli.qa.finding.embedding_finder import EmbeddingFinder
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import (
    AROUND,
    FITS,
    OTHER,
    Book,
    PassageFinder,
    PassageSearch,
    Ranking,
    ReducedQueries,
    WindowScores,
    add_token_ranges,
    drop_duplicate_books,
    find_token_bounds,
)
from esa_cli.qa.finding.word_search import find_passages_with_words
from esa_cli.qa.finding.words import LexicalIndex
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library

FILLER = "A grey boat lies at the pier and nobody in the town knows whose boat it is. " * 40
GATE = "Captain Ahab opens the northern gate at nine. "
BOTH = FILLER + GATE + FILLER


def spans_of(text: str, width: int = 4) -> torch.Tensor:
    return torch.tensor([(at, min(at + width, len(text))) for at in range(0, len(text), width)])


def made_books(*texts: str, keys: Any = ()) -> list[Book]:
    keys = keys or [None] * len(texts)
    return [
        Book(Document(str(n), text, "", "utf-8", 1), None, spans_of(text), index=own)
        for n, (text, own) in enumerate(zip(texts, keys, strict=True))
    ]


def finder(*texts: str, keys: Any = ()) -> PassageFinder:
    return PassageFinder(made_books(*texts, keys=keys))


def places(found: Sequence[Passage]) -> list[tuple[int, int, int]]:
    return [(int(one.document), one.start, one.end) for one in found]


def by_loop(index: LexicalIndex, ranking: torch.Tensor, count: int) -> list[tuple[int, int, int]]:
    """The best windows of which none overlaps a better one by half of the shorter one."""
    out: list[tuple[int, int, int]] = []
    for at in sorted(range(len(index)), key=lambda at: -float(ranking[at])):
        window, document = index.windows[at], index.documents[at]
        for other, start, end in out:
            shared = min(window.end, end) - max(window.start, start)
            shorter = min(window.end - window.start, end - start)
            if document == other and 2 * shared >= shorter:
                break
        else:
            out.append((document, window.start, window.end))
    return out[:count]


def test_no_passage_overlaps_a_better_one_by_half() -> None:
    torch.manual_seed(1)
    words = [f"w{int(n)}" for n in torch.randint(90, (3000,))]
    ends = [". " if n else ".\n\n" for n in torch.randint(3, (3000,))]
    text = "".join(
        f"{word}{end if n % 7 == 0 else ' '}"
        for n, (word, end) in enumerate(zip(words, ends, strict=True))
    )
    made = finder(text, BOTH, text[:900])
    for count in (1, 40, 1000):
        ranking = torch.randn(len(made.index))
        scores = WindowScores(ranking, ranking, ranking > 0)
        picked = made.pick_best_passages(scores, count)
        assert places(picked) == by_loop(made.index, ranking, count)
        windows = [
            (n, *one[:2]) for n, one in zip(made.index.documents, made.index.windows, strict=True)
        ]
        for one, place in zip(picked, places(picked), strict=True):
            assert one.score == float(ranking[windows.index(place)])


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("Which law governs the supply agreement?", ["Penhallow supply_agreement.docx"]),
        ("What do supply agreements say of Penhallow?", ["Penhallow supply_agreement.docx"]),
        (
            "What does the supply agreement say of 2025?",
            ["Penhallow supply_agreement.docx", "May 2025.md", "crew2025.md"],
        ),
        ("What was paid in 2023?", ["fees 2022-23.csv", "fees 2023-24.csv"]),
        ("What was paid in 2022?", ["fees 2022-23.csv"]),
        ("What was paid in 2022/23?", ["fees 2022-23.csv"]),
        ("What was paid in 1912?", []),  # 1999-12-26 is a day
        ("Which agreement is about supply?", []),
        ("What is new in May 2025?", ["May 2025.md", "crew2025.md"]),
        ("Who wrote the 2025 survey?", ["May 2025.md", "crew2025.md"]),
        ("What is new in 2030?", []),
        ("Who knows the old mill?", []),  # two documents
        ("?", []),
    ],
)
def test_the_documents_that_a_question_names_come_first(question: str, named: list[str]) -> None:
    names = [
        "Penhallow supply_agreement.docx", "May 2025.md", "old mill.txt", "Old mill, 2.txt",
        "crew2025.md", "fees 2022-23.csv", "fees 2023-24.csv", "notes 1999-12-26.txt",
    ]  # fmt: skip
    texts = [GATE, BOTH, f"{BOTH} The law governs supply.", FILLER, f"{FILLER} {GATE}"]
    texts += [f"Fee {number} was paid." for number in range(3)]
    books = [
        replace(one, document=replace(one.document, name=name))
        for one, name in zip(made_books(*texts), names, strict=True)
    ]
    made, plain = PassageFinder(books), finder(*texts)
    assert made.find_named_documents(question) == set(named)
    less = made.score_windows(question).total - plain.score_windows(question).total
    others = [bool(named) and names[n] not in named for n in made.index.documents]
    assert less.tolist() == pytest.approx([-OTHER * other for other in others], abs=1e-5)


def test_a_year_that_all_file_names_have_names_none() -> None:
    for texts in ([GATE], [GATE, BOTH]):
        books = [
            replace(one, document=replace(one.document, name=f"survey 2020 {n}.txt"))
            for n, one in enumerate(made_books(*texts))
        ]
        assert PassageFinder(books).find_named_documents("What came in 2020?") == set()


@pytest.mark.parametrize("question", ["Who was it that had been there?", "?!...", "Zzz?"])
def test_without_words_the_text_comes_in_its_order(question: str) -> None:
    found = finder(BOTH).find_passages(question, 3)
    assert [one.score for one in found] == [Ranking().bm25_odds[0]] * 3
    assert [one.start for one in found] == sorted(one.start for one in found)
    assert found[0].start == 0
    assert places(finder(GATE).find_passages(question, 3)) == [(0, 0, len(GATE) - 1)]
    for texts in ((), ("",), ("", "\n\n")):
        assert finder(*texts).find_passages(question, 3) == []


def test_scores_are_those_of_plain_loops() -> None:
    """Words of the question; late interaction of each window, and of the windows around it, where
    a text has reduced keys."""
    torch.manual_seed(4)
    idle = "Grey boats lie at the old pier and nobody in the town knows whose. "
    texts = [BOTH + idle * 300, GATE + FILLER, idle * 90]
    spans = [spans_of(text) for text in texts]
    keys = [torch.nn.functional.normalize(torch.randn(len(one), 5), dim=1) for one in spans]
    queries, weights = torch.nn.functional.normalize(torch.randn(3, 5), dim=1), torch.rand(3)
    made = finder(*texts, keys=[keys[0], None, keys[2]])
    windows, documents = made.index.windows, made.index.documents
    question = "When does Ahab open the gate at the pier?"
    both = made.index.compute_bm25_scores(question).tolist()
    made.ranking = ranking = Ranking((3.0, 2.0, 1.0, 0.5), 7.0, (-4.0, 0.3, 0.9), (-9.0, 8.0))
    words = [one / max(both) for one in both]
    total = [-9.0 + 8.0 * one for one in words]

    def best(at: int) -> list[float]:
        """The largest product of each query with a key of a window."""
        window, number = windows[at], documents[at]
        inside = [
            token for token, (start, end) in enumerate(spans[number].tolist())
            if start < window.end and window.start < end
        ]  # fmt: skip
        return [max(float(query @ keys[number][token]) for token in inside) for query in queries]

    read = [at for at, number in enumerate(documents) if number != 1]
    products = {at: best(at) for at in read}
    sums = [0.0] * len(read)
    for weight, reach in zip(ranking.late, (0, *AROUND), strict=True):
        for n, at in enumerate(read):
            near = [n for n in read if abs(n - at) <= reach and documents[n] == documents[at]]
            most = [max(products[n][query] for n in near) for query in range(3)]
            late = sum(w * one for w, one in zip(weights.tolist(), most, strict=True))
            sums[n] += weight * late
    for n, at in enumerate(read):
        total[at] = -4.0 + 0.3 * sums[n] + 0.9 * (sums[n] - max(sums))
    reduced = ReducedQueries(queries, weights)
    found = made.score_windows(question, reduced=reduced)
    assert found.total.tolist() == pytest.approx(total, abs=2e-3)
    assert found.words.tolist() == pytest.approx(words, abs=1e-4)
    alone = PassageFinder(made_books(*texts), ranking).score_windows(question)
    assert alone.total.tolist() == pytest.approx([-9.0 + 8.0 * one for one in words], abs=1e-4)
    # In another language words count beside late interaction.
    made._is_foreign[:] = True
    foreign = made.score_windows(question, reduced=reduced).total
    sums = [one + 7.0 * words[at] for one, at in zip(sums, read, strict=True)]
    wanted = [-4.0 + 0.3 * one + 0.9 * (one - max(sums)) for one in sums]
    assert foreign[read].tolist() == pytest.approx(wanted, abs=2e-3)


def test_token_bounds_are_the_tokens_with_a_character_in_the_window() -> None:
    # " a", "b", two halves of one character, nothing, "d"
    spans = torch.tensor([(0, 2), (2, 3), (3, 4), (3, 4), (4, 5)], dtype=torch.int32)
    characters = torch.tensor([(0, 5), (1, 3), (2, 4), (3, 4), (4, 5), (4, 4)])
    first, last = find_token_bounds(spans, characters)
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == [
        (0, 5), (0, 2), (1, 4), (2, 4), (4, 5), (4, 4),
    ]  # fmt: skip
    empty = find_token_bounds(torch.empty(0, 2, dtype=torch.long), characters)
    assert [one.tolist() for one in empty] == [[0] * 6] * 2


def test_one_passage_in_eight_is_the_best_by_words() -> None:
    text = FILLER + GATE + FILLER + "The skipper unlocks the way north at nine. " + FILLER
    spans = spans_of(text)
    torch.manual_seed(3)
    keys = torch.nn.functional.normalize(torch.randn(len(spans), 3), dim=1)
    keys[int((spans[:, 0] <= text.index("Captain")).nonzero()[-1]) :][:12] = torch.tensor(
        [-1.0, 0, 0]
    )
    reduced = ReducedQueries(torch.eye(3)[:1], torch.tensor([1.0]))
    found = finder(text, keys=[keys]).find_passages("Captain Ahab's gate?", 8, reduced=reduced)
    assert len(found) == 8
    assert all(GATE.strip() not in one.text for one in found[:7])
    assert GATE.strip() in found[7].text


def test_the_passage_with_the_words_comes_first_in_whichever_document() -> None:
    found = finder(BOTH).find_passages("When does Ahab open the gate?", 5)
    assert GATE.strip() in found[0].text
    assert [one.score for one in found] == sorted([one.score for one in found], reverse=True)
    texts = [FILLER, "", GATE, FILLER + "Starbuck sleeps."]
    assert finder(*texts).find_passages("Ahab's gate?", 1)[0].document == "2"
    assert finder(*texts).find_passages("Who is Starbuck?", 1)[0].document == "3"


def test_every_place_has_as_many_words_as_any() -> None:
    """Against a loop over sentences: a place with fewer words is none."""
    lines = ["Ahab sleeps.", "Ahab opens the gate.", "The gate is red.", "Ahab paints the gate."]
    text = "\n\n".join(f"{line}\n\n{FILLER}" for line in lines)
    document = Document("a.txt", text, "a.txt", "utf-8", len(text))
    book = Book(document, None, spans_of(text))
    passages, most, words = find_passages_with_words("Ahab gate", add_token_ranges([book]))
    want = [line for line in lines if "Ahab" in line and "gate" in line]
    assert (most, words, len(passages)) == (2, 2, len(want))
    assert all(any(line in passage.text for passage in passages) for line in want)
    assert find_passages_with_words("submarine", add_token_ranges([book]))[0] == []


def test_what_fits_a_question_without_its_words() -> None:
    """Where no document has a word, late interaction of `FITS`; else all that was read."""
    torch.manual_seed(8)
    text = FILLER + GATE + FILLER
    keys = torch.nn.functional.normalize(torch.randn(len(spans_of(text)), 3), dim=1)
    made = finder(text, FILLER, keys=[keys, None])
    reduced = ReducedQueries(torch.eye(3)[:1], torch.tensor([0.62]))
    late = made.score_by_late_interaction(reduced)
    assert late.shape == (1 + len(AROUND), len(made.index))
    is_read = torch.tensor(made.index.documents) == 0
    assert torch.equal(~late[0].isnan(), is_read)
    unknown = made.score_windows("zeppelin", reduced=reduced)
    assert unknown.fitting.tolist() == [bool(one >= FITS) for one in late[0]]
    assert 0 < int(unknown.fitting.sum()) < int(is_read.sum())
    known = made.score_windows("Ahab", reduced=reduced)
    having = made.index.compute_bm25_scores("Ahab") > 0
    assert torch.equal(known.fitting, having | is_read)
    assert known.late is not None
    assert unknown.late is not None
    assert made.score_windows("Ahab").late is None
    assert torch.equal(made.score_windows("Ahab").fitting, having)


@pytest.mark.parametrize("count", [1, 7, 8, 15, 16, 40])
def test_so_many_passages_are_of_words_alone(count: int) -> None:
    torch.manual_seed(count)
    made = finder(BOTH * 3)
    total, words = torch.randn(len(made.index)), torch.randn(len(made.index))
    late = torch.zeros(1 + len(AROUND), len(total))
    picked = made.pick_best_passages(WindowScores(total, words, total > 0, late), count)
    by_total = by_loop(made.index, total, count - count // 8)
    assert places(picked)[: len(by_total)] == by_total
    rest = [one for one in places(picked) if one not in by_total]
    best = by_loop(made.index, words, 1)
    assert len(rest) == min(count // 8, len(picked) - len(by_total))
    overlaps = [min(end, best[0][2]) - max(start, best[0][1]) for _, start, end in by_total]
    if rest and max(overlaps) <= 0:
        assert best[0] in rest


def test_the_index_of_the_last_books_is_kept() -> None:
    books = [Book(Document("a", BOTH, "a", "utf-8", 1), None, spans_of(BOTH)) for _ in range(2)]
    search = PassageSearch()
    first = search.get_passage_finder(books[:1])
    assert search.get_passage_finder(books[1:]) is first, "an equal document"
    assert search.get_passage_finder(books) is not first
    keys: Any = torch.zeros(len(books[0].spans), 2)
    indexed = [Book(books[0].document, None, books[0].spans, index=keys)]
    last = search.get_passage_finder(indexed)
    assert search.get_passage_finder(indexed) is last
    assert search.get_passage_finder(books[:1]) is not last, "its keys are others"


def test_other_documents_change_no_score_unless_they_have_a_better_window() -> None:
    torch.manual_seed(6)
    keys = [torch.nn.functional.normalize(torch.randn(len(spans_of(t)), 3), dim=1) for t in (BOTH,)]
    reduced = ReducedQueries(torch.eye(3)[:1], torch.tensor([1.0]))
    alone = finder(BOTH, keys=keys).score_windows("Ahab's gate?", reduced=reduced)
    worse = -torch.ones(len(spans_of(FILLER)), 3)
    with_others = finder(BOTH, *[FILLER] * 4, keys=[*keys, *[worse] * 4])
    total = with_others.score_windows("Ahab's gate?", reduced=reduced).total
    assert total[: len(alone.total)].tolist() == pytest.approx(alone.total.tolist(), abs=1e-4)
    assert float(total[len(alone.total) :].max()) < float(alone.total.max())


@pytest.mark.parametrize("content", ["{", "[]", '{"late": [1, 2], "words": 1}', '{"late": "x"}'])
def test_a_damaged_ranking_is_refused(tmp_path: Path, content: str) -> None:
    assert Ranking.load(tmp_path) == Ranking()
    (tmp_path / "ranking.json").write_text(content, "utf-8")
    with pytest.raises(ModelError, match=r"ranking\.json"):
        Ranking.load(tmp_path)


def book(name: str, source: str, tokens: int = 3, text: str = "", entry: Any = None) -> Book:
    document = Document(name, text or source + str(tokens), source, "utf-8", 1)
    return Book(document, None, torch.zeros(tokens, 2), entry)


class Entry:
    id = "ab12"


def test_names_tell_the_books_apart() -> None:
    named = [
        book("a.txt", "x/a.txt", 1), book("b.txt", "x/b.txt"), book("a.txt", "y/a.txt"),
        book("a.txt", "x/a.txt", 2, entry=Entry()),
    ]  # fmt: skip
    names = [one.document.name for one in add_token_ranges(named)]
    assert names == ["x/a.txt (1)", "b.txt", "y/a.txt", "x/a.txt (ab12)"]
    assert add_token_ranges(named)[1].document is named[1].document, "it knows its lines"


def test_tokens_follow_each_other_in_the_order_of_the_books() -> None:
    rng = random.Random(5)
    sizes = [rng.randrange(6) for _ in range(9)]
    placed = add_token_ranges([book(f"{n}", f"{n}", size) for n, size in enumerate(sizes)])
    for n, one in enumerate(placed):
        assert one.rows == range(sum(sizes[:n]), sum(sizes[: n + 1]))
        assert (one.tokens, one.read) == (sizes[n], False)


def test_each_text_comes_once_where_it_came_first() -> None:
    texts = ["x", "y", "x", "z", "y"]
    books = [book(str(n), str(n), text=text) for n, text in enumerate(texts)]
    assert [one.document.name for one in drop_duplicate_books(books)] == ["0", "1", "3"]
    assert all(one is books[int(one.document.name)] for one in drop_duplicate_books(books))


BOAT = "A grey boat lies at the pier, and nobody knows whose boat it is. " * 30
TEXT = f"{BOAT}\n\nThe northern gate opens at nine.\n\n{BOAT}"
QUESTION = "When does the northern gate open?"


def embed(text: str) -> list[float]:
    numbers = [crc32(word.encode()) % 33 for word in text.lower().rstrip("?").split()]
    return [0.01 + numbers.count(n) for n in range(33)]


class Server(BaseHTTPRequestHandler):
    """Counts words; each request takes the next of `modes`, and the last one stays."""

    modes: tuple[str, ...] = ()
    seen: tuple[tuple[list[str], str | None], ...] = ()

    def log_message(self, *given: Any) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        Server.seen += ((texts, self.headers.get("authorization")),)
        mode, *rest = Server.modes
        Server.modes = tuple(rest) or Server.modes
        data = [{"index": n, "embedding": embed(text)} for n, text in enumerate(texts)]
        self.send_response(int(mode) if mode.isdecimal() else 200)
        self.end_headers()
        body = {"vectors": {"data": data[::-1]}, "short": {"data": data[1:]}}
        for name, number in (("huge", 1e308), ("unnumbered", float("nan"))):
            body[name] = {"data": [{"index": n, "embedding": [number] * 33} for n in range(2)]}
        sent = json.dumps(body.get(mode, "a page"))
        self.wfile.write(b"[" * 100_000 if mode == "nested" else sent.encode())


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(model_server, "BACKOFF_S", 0.001)
    monkeypatch.setenv("ESA_FINDER_KEY", "let-me-in")
    Server.seen, Server.modes = (), ("503", "429", "vectors")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1#tiny"
        server.shutdown()


def test_each_window_has_its_own_vector(address: str, tmp_path: Path) -> None:
    chosen = load_preset("tiny-random", ["answer.from=text", f"answer.finder='{address}'"])
    loaded: Any = models.load("random:llama", device="cpu", dtype="float32")
    document, library = Document("t", TEXT, "t", "utf-8", len(TEXT)), Library(tmp_path / "library")
    with Esa(loaded, chosen, library=library) as esa:
        book, asked = esa.ingest(document), len(Server.seen)
        texts = [TEXT[one.start : one.end] for one in PassageFinder([book]).index.windows]
        assert [text for batch, _ in Server.seen[3:] for text in batch] == texts
        assert {key for _, key in Server.seen} == {"Bearer let-me-in"}
        again = esa.ingest(document)
        assert (again.read_s, len(Server.seen)) == (0.0, asked), "it is stored"
        reduced = esa.search.encode_question(QUESTION, [again])
        assert reduced is not None
        late = PassageFinder([again]).score_by_late_interaction(reduced)[0]
        vectors, query = torch.tensor([embed(text) for text in texts]), embed(QUESTION)
        want = torch.cosine_similarity(vectors, torch.tensor([query]))
        torch.testing.assert_close(late, want, atol=0.02, rtol=0)
        assert "northern gate" in esa.find_passages(QUESTION, [again])[0].text
        assert esa.ask(QUESTION, [again]).read


def test_errors_say_what_is_wrong(address: str) -> None:
    Server.modes = ("vectors", "short")
    finder = EmbeddingFinder(address)
    with pytest.raises(ModelError, match="no vector for each text"):
        finder.encode_questions(["one", "two"])
    for mode in ("huge", "unnumbered"):
        Server.modes = (mode,)
        with pytest.raises(ModelError, match="too large, or none"):
            finder.encode_questions(["one", "two"])
    faults = (("401", "status 401"), ("page", "no vector"), ("nested", "no vector"))
    for mode, message in (*faults, ("503", "status 503")):
        Server.modes = (mode,)
        with pytest.raises(ModelError, match=message):
            EmbeddingFinder(address)
    for wrong, message in (("http://a/v1", "URL#MODEL"), ("http://a/v1#m", "unencrypted")):
        with pytest.raises(UsageError, match=message):
            EmbeddingFinder(wrong)
    with pytest.raises(ModelError, match="cannot be reached"):
        EmbeddingFinder("http://127.0.0.1:1/v1#m")
