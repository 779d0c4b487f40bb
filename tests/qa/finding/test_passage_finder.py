"""The ranking of windows: words, earlier turns, and no two of the same text."""

from __future__ import annotations

import pytest
import torch

from esa_cli.qa.finding.passage_finder import (
    VAGUE,
    PassageFinder,
    ReducedQueries,
    WindowScores,
    standardised,
    token_bounds,
)
from esa_cli.qa.finding.windows import FoundPassage
from esa_cli.qa.finding.words import LexicalIndex

FILLER = "A grey boat lies at the pier and nobody in the town knows whose boat it is. " * 40
GATE = "Captain Ahab opens the northern gate at nine. "
BOTH = FILLER + GATE + FILLER


def spans_of(text: str, width: int = 4) -> torch.Tensor:
    return torch.tensor([(at, min(at + width, len(text))) for at in range(0, len(text), width)])


def finder(*texts: str) -> PassageFinder:
    return PassageFinder(texts, [spans_of(text) for text in texts])


def shown(found: FoundPassage, *texts: str) -> str:
    return texts[found.document][found.start : found.end]


def test_scores_are_in_standard_deviations() -> None:
    index, question = LexicalIndex([BOTH]), "When does Ahab open the gate?"
    want = index.scores(question)
    want = (want - want.mean()) / want.std()
    for one in finder(BOTH).find(question, 100):
        at = [(w.start, w.end) for w in index.windows].index((one.start, one.end))
        assert one.score == pytest.approx(float(want[at]), abs=1e-5)


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
        scores = WindowScores(ranking, ranking, ranking > 0, read=False)
        picked = [(one.document, one.start, one.end) for one in made.pick(scores, count)]
        assert picked == by_loop(made.index, ranking, count)


@pytest.mark.parametrize("question", ["Who was it that had been there?", "?!...", "Zzz?"])
def test_without_words_the_text_comes_in_its_order(question: str) -> None:
    found = finder(BOTH).find(question, 3)
    assert [one.score for one in found] == [0.0] * 3
    assert [one.start for one in found] == sorted(one.start for one in found)
    assert found[0].start == 0
    assert finder(GATE).find(question, 3) == [FoundPassage(0, 0, len(GATE) - 1, 0.0)]
    for texts in ((), ("",), ("", "\n\n")):
        assert finder(*texts).find(question, 3) == []


def test_earlier_turns_count_half() -> None:
    index, question, earlier = LexicalIndex([BOTH]), "boat?", "Who is Ahab? The captain."
    want = index.scores(question) + 0.5 * index.scores(earlier)
    best = index.windows[int(want.argmax())]
    found = finder(BOTH).find(question, 1, earlier=earlier)[0]
    assert (found.start, found.end) == (best.start, best.end)
    assert found.score == pytest.approx(float(standardised(want).max()), abs=1e-5)


def test_token_bounds_are_the_tokens_with_a_character_in_the_window() -> None:
    # " a", "b", two halves of one character, nothing, "d"
    spans = torch.tensor([(0, 2), (2, 3), (3, 4), (3, 4), (4, 5)], dtype=torch.int32)
    characters = torch.tensor([(0, 5), (1, 3), (2, 4), (3, 4), (4, 5), (4, 4)])
    first, last = token_bounds(spans, characters)
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == [
        (0, 5), (0, 2), (1, 4), (2, 4), (4, 5), (4, 4),
    ]  # fmt: skip
    empty = token_bounds(torch.empty(0, 2, dtype=torch.long), characters)
    assert [one.tolist() for one in empty] == [[0] * 6] * 2


def test_reduced_keys_find_what_shares_no_words() -> None:
    text = FILLER + "The skipper unlocks the way north at nine. " + FILLER
    spans = spans_of(text)
    keys = torch.zeros(len(spans), 3)
    keys[:, 0] = 1.0
    at = int((spans[:, 0] <= text.index("skipper")).nonzero()[-1])
    keys[at] = torch.tensor([0.0, 1.0, 0.0])
    reduced = ReducedQueries(torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([1.0]))
    found = PassageFinder([text], [spans], [keys]).find(
        "When is the gate opened?", 3, reduced=reduced
    )
    assert "skipper" in shown(found[0], text)
    assert found[0].score > found[2].score + 2


def test_what_is_near_counts_beside_a_window() -> None:
    """Of two windows that answer alike the one whose neighbours are about the subject is first."""
    told = "The skipper unlocks the way north at nine. "
    text = FILLER + told + FILLER + "Here it is all about the gate. " + FILLER[:160] + told + FILLER
    spans = spans_of(text)
    keys = torch.zeros(len(spans), 3)
    keys[:, 0] = 1.0
    starts = [at for at in range(len(text)) if text.startswith(told, at)]
    for at in (*starts, text.index("gate")):
        place = int((spans[:, 0] <= at).nonzero()[-1])
        keys[place] = torch.tensor([0.0, 0.0, 1.0] if text[at] == "g" else [0.0, 1.0, 0.0])
    reduced = ReducedQueries(torch.eye(3)[1:], torch.tensor([0.5, 0.5]))
    found = PassageFinder([text], [spans], [keys]).find("When?", 8, reduced=reduced)
    places = [one.start <= starts[1] < one.end for one in found]
    assert places.index(True) < [one.start <= starts[0] < one.end for one in found].index(True)


def test_the_ends_of_a_text_are_found() -> None:
    """Where nearly all windows see one largest product around them, those at the ends do not."""
    told = "The skipper unlocks the way north at nine. "
    idle = "Grey boats lie at the old pier and nobody in the town knows whose. "
    text = f"{told}{idle * 393}End."
    spans, found = spans_of(text), 0
    for seed in range(12):
        torch.manual_seed(seed)
        keys = torch.nn.functional.normalize(torch.randn(len(spans), 8), dim=1)
        queries = torch.nn.functional.normalize(torch.randn(8, 8), dim=1)
        keys[[2, 5, 8, -1]] = queries[:4]
        reduced = ReducedQueries(queries, torch.full((8,), 0.125))
        made = PassageFinder([text], [spans], [keys])
        assert 129 < len(made.index) < 135
        passages = made.find("When?", 7, reduced=reduced)
        found += any(told.strip() in shown(one, text) for one in passages)
    assert found >= 11


def test_words_count_less_where_they_single_out_no_passage() -> None:
    made = finder(BOTH)
    scores = made.index.scores
    assert made.singled_out(scores("When does Ahab open the gate?")) == 1
    assert made.singled_out(scores("Whose boat lies at the pier?")) == VAGUE
    assert made.singled_out(scores("xyzzy")) == VAGUE
    assert made.singled_out(torch.zeros(0)) == VAGUE
    twice = finder(BOTH, GATE + FILLER)
    assert twice.singled_out(twice.index.scores("Captain Ahab's gate")) < 0.5
    alike = finder(*(f"The pier {word}. " for word in ("one two", "three", "four five six")))
    assert alike.singled_out(torch.tensor([0.2830, 0.2834, 0.2843])) == VAGUE
    one = finder(GATE)
    assert one.singled_out(one.index.scores("Captain Ahab's gate")) == VAGUE


def test_one_passage_in_eight_is_the_best_by_words() -> None:
    text = FILLER + GATE + FILLER + "The skipper unlocks the way north at nine. " + FILLER
    spans = spans_of(text)
    torch.manual_seed(3)
    keys = torch.nn.functional.normalize(torch.randn(len(spans), 3), dim=1)
    keys[int((spans[:, 0] <= text.index("Captain")).nonzero()[-1]) :][:12] = torch.tensor(
        [-1.0, 0, 0]
    )
    reduced = ReducedQueries(torch.eye(3)[:1], torch.tensor([1.0]))
    found = PassageFinder([text], [spans], [keys]).find("Captain Ahab's gate?", 8, reduced=reduced)
    assert len(found) == 8
    assert all(GATE.strip() not in shown(one, text) for one in found[:7])
    assert GATE.strip() in shown(found[7], text)
