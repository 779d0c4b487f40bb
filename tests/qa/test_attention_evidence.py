"""What the documents' tokens weigh, against plain loops; and the passages made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import reference
import torch
from conftest import VOCABULARY, ModelFactory
from selectolax.lexbor import LexborHTMLParser

from esa_cli.attention.method import Method
from esa_cli.attention.positions import ContiguousPositions, FixedDistancePositions, TruePositions
from esa_cli.attention.selection import TopKSelector
from esa_cli.attention.step import ChunkTrace
from esa_cli.attention.window import Phase, QueryState, Window
from esa_cli.documents.document import Document
from esa_cli.documents.readers.text_builder import Mark
from esa_cli.methods.consensus import LayerConsensusSelector
from esa_cli.methods.full_attention import ReRopePositions
from esa_cli.methods.per_head import LokiSelector
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import AttachedModel, attach
from esa_cli.qa.answering.reply import Quotation, Reply
from esa_cli.qa.attention_evidence import (
    FOUND,
    AttentionRecorder,
    find_attended_passages,
    find_evidence_passages,
    get_max_sentence_weight,
)
from esa_cli.qa.evidence import compute_passage_weights, make_evidence_page, make_heat_maps
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book, add_token_ranges

TOKENS = 40
WINDOW = Window(initial=3, selected=9, local=6, chunk=8, dense=10)
DENSE = Window(initial=3, selected=9, local=6, chunk=8, dense=400)
DISTANCE = 29


def distances(method: Method, seen: ChunkTrace) -> list[list[tuple[int, list[tuple[int, int]]]]]:
    """For each head and query of a chunk: what it attended to, as (absolute position, distance)."""
    position, out = method.position, []
    for head in range(seen.queries.shape[0]):
        far = (seen.far if isinstance(seen.far, torch.Tensor) else seen.far[head]).tolist()
        rows = []
        for at in range(seen.start, seen.stop):
            near = [(key, at - key) for key in range(seen.start - seen.local, at + 1)]
            if isinstance(position, ReRopePositions):
                near = [(key, min(away, position.distance)) for key, away in near]
                away = [(key, position.distance) for key in far]
            elif isinstance(position, FixedDistancePositions):
                away = [(key, position.distance) for key in far]
            elif isinstance(position, ContiguousPositions):
                stands = len(far) + seen.local + at - seen.start
                away = [(key, stands - rank) for rank, key in enumerate(far)]
            else:
                away = [(key, at - key) for key in far]
            rows.append((at, away + near))
        out.append(rows)
    return out


def probabilities(
    method: Method, scale: float, seen: ChunkTrace
) -> dict[tuple[int, int, int], float]:
    """(head, query, key) -> probability, one softmax a query over all that it attended to."""
    keys, _ = seen.store.span(0, len(seen.store))
    q, k = reference.plain(seen.queries), reference.plain(keys)
    out: dict[tuple[int, int, int], float] = {}
    for head, rows in enumerate(distances(method, seen)):
        group = reference.group_of(head, len(q), len(k))
        for at, seen_by in rows:
            query = q[head][at - seen.start]
            if isinstance(method.position, ReRopePositions):
                sharp = max(1.0, math.log(at + 1) / math.log(method.position.trained))
                query = [sharp * x for x in query]
            logits = [
                scale * reference.dot(reference.rotate(query, away), k[group][key])
                for key, away in seen_by
            ]
            top = max(logits)
            parts = [math.exp(logit - top) for logit in logits]
            for (key, _), part in zip(seen_by, parts, strict=True):
                out[head, at, key] = part / sum(parts)
    return out


class Checked(AttentionRecorder):
    """A witness whose shares are compared with the loops, chunk by chunk."""

    def __init__(self, attachment: AttachedModel, tokens: int) -> None:
        super().__init__(range(len(attachment.body.layers)), tokens)
        self.attachment = attachment
        self.checked = 0
        self.weighed: dict[tuple[int, bool, int], float] = {}

    def __call__(self, seen: ChunkTrace) -> None:
        super().__call__(seen)
        if seen.start < self.tokens:
            return
        want = probabilities(self.attachment.method, self.attachment.traits[0].scale, seen)
        _, _values = seen.store.span(0, len(seen.store))
        got: dict[tuple[int, int, int], float] = {}
        for share in self.compute_attention_to_documents(seen):
            mass = share.logs.exp()
            heads, queries, tokens = mass.shape
            for h in range(heads):
                for c in range(queries):
                    assert float(mass[h, c].sum()) <= 1 + 1e-5
                    for n in range(tokens):
                        at = (share.heads[h], share.start + c, int(share.at[n]))
                        got[at] = got.get(at, 0.0) + float(mass[h, c, n])
        want = {at: value for at, value in want.items() if at[2] < self.tokens}
        assert got.keys() == want.keys()
        assert all(math.isclose(got[at], want[at], rel_tol=2e-3, abs_tol=2e-6) for at in want)
        self.checked += 1
        self.by_head = isinstance(seen.far, list)


def method_of(name: str) -> Method:
    far = {
        "esa": Method(WINDOW, TopKSelector(1), position=FixedDistancePositions(DISTANCE)),
        "contiguous": Method(WINDOW, TopKSelector(1), position=ContiguousPositions(DISTANCE)),
        "true": Method(WINDOW, TopKSelector(1), position=TruePositions(DISTANCE)),
        "dense": Method(DENSE, TopKSelector(1), position=ContiguousPositions(DISTANCE)),
        "rerope": Method(WINDOW, TopKSelector(1), position=ReRopePositions(4, 16)),
        "dense rerope": Method(DENSE, TopKSelector(1), position=ReRopePositions(4, 16)),
        "by head": Method(WINDOW, LokiSelector(), position=FixedDistancePositions(DISTANCE)),
        "by head, contiguous": Method(
            WINDOW, LokiSelector(), position=ContiguousPositions(DISTANCE)
        ),
        "ending": Method(
            Window(3, 9, 6, 8, dense=10, ending=2),
            LayerConsensusSelector(passage=1),
            VoteScore(),
            position=ContiguousPositions(DISTANCE),
        ),
    }
    return far[name]


def prefill_tokens(attachment: AttachedModel, cache: Any, ids: Sequence[int]) -> None:
    attachment.model(input_ids=torch.tensor([list(ids)]), past_key_values=cache)


def ids_of(count: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (count,)).tolist()


def read(attachment: AttachedModel) -> Any:
    cache = attachment.new_cache()
    cache.begin_query(QueryState(Phase.PREFILL))
    prefill_tokens(attachment, cache, ids_of(TOKENS))
    watch(cache, None)
    return cache


def watch(cache: Any, trace: Any) -> Any:
    """A question is asked, and its chunks are traced."""
    cache.begin_query(QueryState(Phase.QUESTION, trace=trace))
    return trace


def ask(attachment: AttachedModel, cache: Any, question: Sequence[int], answer: int = 3) -> None:
    prefill_tokens(attachment, cache, question)
    for token in ids_of(answer):
        prefill_tokens(attachment, cache, [token])


OTHERS = ("esa", "true", "rerope", "dense rerope", "ending", "by head, contiguous")
SHARES = product(("contiguous", "dense", "by head"), ("llama", "mistral", "qwen3"), (11,))


@pytest.mark.parametrize(("name", "kind", "count"), [*SHARES, *product(OTHERS, ["llama"], (7,))])
def test_shares_are_the_attention_that_loops_give(
    name: str, kind: str, count: int, make_model: ModelFactory
) -> None:
    with attach(make_model(kind), method_of(name)) as attachment:
        cache = read(attachment)
        witness = watch(cache, Checked(attachment, TOKENS))
        ask(attachment, cache, ids_of(count))
    chunks = -(-count // WINDOW.chunk)
    assert witness.checked == 2 * (chunks + 3), "two layers; a question, three tokens"
    assert witness.by_head is name.startswith("by head")


def test_few_queries_at_a_time_are_the_same(
    make_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esa_cli.qa.attention_evidence.BLOCK_ELEMENTS", 6 * 3 * 15)
    test_shares_are_the_attention_that_loops_give("contiguous", "llama", 11, make_model)


def weights_by_loops(
    attachment: AttachedModel, notes: Sequence[ChunkTrace], layers: range
) -> list[float]:
    """The rule of the witness, one number after the other."""
    most = {(layer, part): [0.0] * TOKENS for layer in layers for part in (False, True)}
    for seen in notes:
        if seen.layer not in layers:
            continue
        _, values = seen.store.span(0, len(seen.store))
        v = reference.plain(values)
        lengths = [[math.sqrt(reference.dot(x, x)) for x in head] for head in v]
        near = range(seen.start - seen.local, TOKENS)
        far = [at for at in seen.far.tolist() if at < TOKENS]
        means = {}
        for part in (far, near):
            every = [head[at] for head in lengths for at in part]
            means |= {at: sum(every) / len(every) for at in part}
        for (head, _, at), mass in probabilities(
            attachment.method, attachment.traits[0].scale, seen
        ).items():
            if at < TOKENS:
                group = reference.group_of(head, seen.queries.shape[0], len(v))
                one = mass * lengths[group][at] / means[at]
                row = most[seen.layer, seen.decoding]
                row[at] = max(row[at], one)
    return [
        sum(max(most[layer, False][at], most[layer, True][at]) for layer in layers) / len(layers)
        for at in range(TOKENS)
    ]


@pytest.mark.parametrize("name", ["contiguous", "dense"])
def test_weights_are_the_rule(name: str, make_model: ModelFactory) -> None:
    notes: list[ChunkTrace] = []
    with attach(make_model("llama", num_hidden_layers=4), method_of(name)) as attachment:
        cache = read(attachment)
        witness = AttentionRecorder(range(len(attachment.body.layers)), TOKENS)

        def both(seen: ChunkTrace) -> None:
            notes.append(seen)
            witness(seen)

        watch(cache, both)
        ask(attachment, cache, ids_of(5))
        assert witness.layers == range(1, 3), "the middle half"
        want = weights_by_loops(attachment, notes, witness.layers)
    assert torch.allclose(witness.token_weights, torch.tensor(want), rtol=2e-3, atol=2e-6)
    assert bool((witness.question_token_weights <= witness.token_weights).all())
    assert bool((witness.question_token_weights < witness.token_weights).any())


def test_what_was_read_before_the_question_does_not_count(make_model: ModelFactory) -> None:
    """Turns before the question, and a question that is read twice."""
    question, turns = ids_of(5), ids_of(9)
    with attach(make_model("llama"), method_of("contiguous")) as attachment:
        cache = read(attachment)
        prefill_tokens(attachment, cache, turns)
        plain = watch(cache, AttentionRecorder(range(2), TOKENS))
        prefill_tokens(attachment, cache, question)
        want = plain.token_weights
        cache.truncate(TOKENS)
        witness = watch(cache, AttentionRecorder(range(2), TOKENS))
        prefill_tokens(attachment, cache, turns)
        prefill_tokens(attachment, cache, ids_of(5))
        cache.truncate(TOKENS + len(turns))
        prefill_tokens(attachment, cache, question)
    assert torch.equal(witness.token_weights, want)


class Told:
    """Stands in for a witness."""

    def __init__(self, asked: torch.Tensor, weights: torch.Tensor) -> None:
        self.question_token_weights, self.token_weights = asked, weights


def shelf(text: str, first: int = 0, name: str = "a.txt", width: int = 1) -> Book:
    """A book whose tokens have `width` characters."""
    starts = range(0, len(text), width)
    spans = torch.tensor([(at, min(at + width, len(text))) for at in starts]).reshape(-1, 2)
    document = Document(name, text, name, "utf-8", 1, (Mark(0, 7),))
    return Book(document, None, spans, rows=range(first, first + len(spans)))


ONE = "The gate opens at nine. The mayor is deaf.\nNobody came.\n\nA bell rang twice. Then it fell."
TWO = "Mr. Holt keeps bees. They sting."


def weighed(books: Sequence[Book], *heavy: tuple[int, str, float]) -> torch.Tensor:
    weights = torch.zeros(max(book.rows.stop for book in books))
    for book, words, weight in heavy:
        at = books[book].document.text.index(words)
        rows = books[book].rows.start
        weights[rows + at : rows + at + len(words)] += weight / len(words)
    return weights


@pytest.fixture
def books() -> Iterator[list[Book]]:
    first = shelf(ONE, 4)
    return [first, shelf(TWO, first.rows.stop, "b.txt")]


def test_passages_are_whole_sentences_heaviest_first(books: list[Book]) -> None:
    weights = weighed(books, (0, "opens", 2.0), (1, "bees", 3.0), (0, "rang", 1.0))
    weights[:4] = 100.0  # the prompt's head belongs to no book
    evidence, found = find_evidence_passages(Told(weights, weights), books, 3)  # type: ignore[arg-type]
    assert found
    assert [one.text for one in evidence] == [
        "Mr. Holt keeps bees.", "The gate opens at nine.", "A bell rang twice.",
    ]  # fmt: skip
    assert [round(one.weight, 6) for one in evidence] == [0.5, round(1 / 3, 6), round(1 / 6, 6)]
    assert [(one.document, one.page, one.line) for one in evidence] == [
        ("b.txt", 7, 1), ("a.txt", 7, 1), ("a.txt", 7, 4),
    ]  # fmt: skip
    for one in evidence:
        text = {"a.txt": ONE, "b.txt": TWO}[one.document]
        assert text[one.start : one.end] == one.text


def test_sentences_that_weigh_alike_and_follow_each_other_are_one(books: list[Book]) -> None:
    weights = weighed(books, (0, "rang", 2.0), (0, "fell", 1.2), (0, "deaf", 0.4))
    weights += weighed(books, (0, "came", 0.9))
    text, heavy = books[0].document.text, find_attended_passages(weights, books, 3)
    found = [text[p.start : p.end] for p in heavy]
    assert found == ["A bell rang twice. Then it fell.", "Nobody came.", "The mayor is deaf."]
    assert len(find_attended_passages(weights, books, 1)) == 1


def test_found_is_the_strongest_sentence_of_the_question(books: list[Book]) -> None:
    asked = weighed(books, (0, "opens", FOUND - 0.2), (0, "nine", 0.1), (1, "bees", 0.5))
    assert get_max_sentence_weight(asked, books) == pytest.approx(FOUND - 0.1)
    weights = asked * 5  # the answer's words do not make up for the question's
    assert find_evidence_passages(Told(asked, weights), books, 1)[1] is False  # type: ignore[arg-type]
    asked = weighed(books, (0, "opens", FOUND - 0.2), (0, "nine", 0.3), (1, "bees", 0.5))
    assert find_evidence_passages(Told(asked, asked), books, 1)[1] is True  # type: ignore[arg-type]


NASTY = "<script>alert(1)</script> & \"quotes\" 'too' <img src=x onerror=y>"
TEXT = "The gate opens at nine.\n\n  Nobody came.\tA bell rang.\n"


def quote(book: Book, words: str, weight: float = 0.5, **place: Any) -> Passage:
    start = book.document.text.index(words)
    passage = Passage.cut_from(book.document, start, start + len(words), weight=weight)
    return replace(passage, line=3, **place)


def page_of(
    books: Sequence[Book], *evidence: Passage, quotations: tuple[Quotation, ...] = ()
) -> LexborHTMLParser:
    reply = Reply(NASTY, evidence, True, 9, 3, 0.5, 1.0, quotations=quotations)
    return LexborHTMLParser(make_evidence_page(reply, NASTY, books))


def test_weights_are_shared_by_the_tokens_of_a_passage() -> None:
    """Against a loop over tokens; passages may share some of them."""
    books = [shelf(TEXT, width=3), shelf(TEXT * 2, 18, "b.txt", width=3)]
    places = [(0, 2, 9, 1.5), (1, 7, 40, 0.5), (1, 30, 31, -1.0), (1, 3, 3, 2.0)]
    passages = [
        Passage.cut_from(books[book].document, start, end, score=score)
        for book, start, end, score in places
    ]
    weighed, weights = compute_passage_weights(passages, books)
    total = sum(math.exp(score) for *_, score in places)
    want = [0.0] * books[1].rows.stop
    for one, (book, start, end, score) in zip(weighed, places, strict=True):
        assert one.weight == pytest.approx(math.exp(score) / total)
        tokens = [
            at for at, (a, b) in zip(books[book].rows, books[book].spans.tolist(), strict=True)
            if a < end and start < b
        ]  # fmt: skip
        for at in tokens:
            want[at] += one.weight / len(tokens)
    assert weights.tolist() == pytest.approx(want, abs=1e-6)


def test_shades_are_of_the_heaviest_token_of_all() -> None:
    books = [shelf("abcd"), shelf("efgh", name="b.txt"), shelf("", name="c.txt")]
    weights = torch.tensor([0.0, 0.25, 0.25, 0.001, 1.0, 0.0, 0.0, 1 / 64])
    found = make_heat_maps(add_token_ranges(books), weights)
    assert [one.document for one in found] == ["a.txt", "b.txt", "c.txt"]
    assert found[0].spans == ((1, 3, 4),), "tokens of one shade are one span; cold ones none"
    assert found[1].spans == ((0, 1, 8), (3, 4, 1))
    assert found[2].spans == ()
    assert make_heat_maps(add_token_ranges(books), weights * 0)[0].spans == ()


def test_the_whole_text_is_there_to_the_letter_and_passages_are_linked_both_ways() -> None:
    first, second = shelf(TEXT * 3), shelf("Bees sting.", 3 * len(TEXT), "b.txt")
    one, two = quote(first, "The gate opens at"), quote(first, "opens at nine.")
    three = quote(second, "Bees sting.", 0.25, page=4, chapter="Two")
    quotation = Quotation("a.txt", 4, 8)
    page = page_of([first, second], one, two, three, quotations=(quotation,))
    links = {node.attributes["href"] for node in page.css("a")}
    assert links == {"#passage-1", "#passage-2", "#passage-3", "#passages"}
    shown = page.body.text()  # type: ignore[union-attr]
    assert "Bees sting.b.txt, page 4, Two" in shown
    assert "%" not in shown
    assert [node.text() for node in page.css("blockquote mark")] == ["gate"]
    page.strip_tags(["a"])
    assert [node.text() for node in page.css(".text")] == [TEXT * 3, "Bees sting."]
    marks = [(node.attributes["id"], node.text()) for node in page.css(".text mark")]
    assert marks == [
        ("passage-1", "The gate opens at"), ("passage-2", " nine."), ("passage-3", "Bees sting."),
    ]  # fmt: skip


def test_everything_is_escaped_and_nothing_is_fetched() -> None:
    book = shelf(f"One.\n{NASTY}\n\ud800", name=NASTY)
    page = page_of([book], quote(book, NASTY, chapter=NASTY))
    assert not page.css("script, img, link, iframe, object, [src], [onerror], [onload], [onclick]")
    html = page.html or ""
    assert "default-src 'none'" in html
    assert "http" not in html.replace("http-equiv", "")
    page.strip_tags(["a"])
    assert NASTY in page.css_first(".text").text()
