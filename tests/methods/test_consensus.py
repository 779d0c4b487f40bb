"""Selection by the accumulated scores of the layers, against loops, and in a model.

`told` gives each layer's scores, so that what a selection should be can be said from them: the sum
over the layers so far, averaged, spread, and the best of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory, build_step

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Score
from esa_cli.attention.positions import ContiguousPositions
from esa_cli.attention.step import Step
from esa_cli.attention.window import QueryState, Window
from esa_cli.errors import PresetError
from esa_cli.methods import registry
from esa_cli.methods.consensus import LayerConsensusSelector, select_windows
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import AttachedModel, attach
from esa_cli.models.attachment.kv_cache import EsaCache

LOW, LAYERS, MIDDLE, CHUNK, BUDGET = 3, 4, 40, 5, 9
PASSAGE = 3
INFINITY = float("inf")


@dataclass(frozen=True)
class Given(Score):
    """A score that is what the test says."""

    values: torch.Tensor

    def scores(self, step: Step) -> torch.Tensor:
        return self.values


def best(votes: Sequence[float], count: int, size: int = PASSAGE) -> list[int]:
    return whole_windows(votes, count, size, 0.0)


def added(*rows: torch.Tensor) -> list[float]:
    return [sum(column) for column in zip(*(row.tolist() for row in rows), strict=True)]


def told(
    values: torch.Tensor,
    layer: int,
    shared: QueryState,
    *,
    start: int = 1000,
    chunk: int = CHUNK,
    low: int = LOW,
) -> Step:
    """A step at `start` whose middle tokens have the scores `values` (M,)."""
    q, k = torch.randn(6, chunk, 8), torch.randn(2, values.shape[0], 8)
    step = build_step(q, k, low=low, after=2, score=Given(values))
    decoding = step.queries.shape[1] == 1
    return replace(step, layer=layer, start=start, query=shared, decoding=decoding)


def scores(rows: int = LAYERS, middle: int = MIDDLE) -> torch.Tensor:
    return torch.rand(rows, middle)


def selector(**options: Any) -> LayerConsensusSelector:
    return LayerConsensusSelector(**{"passage": PASSAGE, **options})


def asked(values: torch.Tensor, shared: QueryState, **options: Any) -> list[list[int]]:
    """The question's selection in every layer."""
    method = selector(**options)
    return [
        method.select(told(row, layer, shared), BUDGET).tolist() for layer, row in enumerate(values)
    ]


# Windows


def whole_windows(votes: Sequence[float], count: int, size: int, share: float) -> list[int]:
    """The best window by its sum, moved until its votes' mean place is in its middle; then the
    best of what is left, and so on."""
    size, left, taken, first = min(size, count, len(votes)), [*votes], set(), None
    for _ in range(count // size if size else 0):
        sums = [sum(left[i : i + size]) for i in range(len(votes) - size + 1)]
        best = max(sums)
        first = best if first is None else first
        if best <= 0 or best < share * first:
            break
        start = sums.index(best)
        mean = sum(i * left[i] for i in range(start, start + size)) / best
        start = max(0, min(len(votes) - size, round(mean - (size - 1) / 2)))
        taken |= set(range(start, start + size))
        left = [0.0 if i in taken else vote for i, vote in enumerate(left)]
    return sorted(taken)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 4, 9, 100])
@pytest.mark.parametrize("middle", [1, 2, 9, 60])
def test_windows_are_the_loops(middle: int, size: int, share: float) -> None:
    votes = torch.rand(middle) ** 4
    for count in (0, 1, 3, 8, 20, middle + 5):
        found = select_windows(votes, count, size, share)
        assert found.dtype == torch.int64
        assert found.shape[0] <= count
        assert found.tolist() == whole_windows(votes.double().tolist(), count, size, share)


def test_scores_below_zero_are_votes_too() -> None:
    votes = torch.rand(40)
    shifted = select_windows(votes - votes.min(), 9, 4)
    assert select_windows(votes - 7.0, 9, 4).tolist() == shifted.tolist()
    assert select_windows(votes - 7.0, 9, 4).shape[0] > 4


def test_no_votes_no_window() -> None:
    assert select_windows(torch.zeros(9), 5, 3).tolist() == []
    assert select_windows(torch.empty(0), 5, 3).tolist() == []


def test_the_second_pass_selects_by_the_first_ones_scores() -> None:
    values, shared = scores(), QueryState()
    first = asked(values, shared, rounds=2)
    shared.selector = selector(rounds=2).start_turn_after_survey(shared.selector)
    again = asked(scores(), shared, rounds=2)
    assert again == [first[-1]] * LAYERS
    word = told(scores(1)[0], 0, shared, start=1005, chunk=1)
    answer = selector(rounds=2).select(word, BUDGET)
    assert answer.tolist() == first[-1]
    assert selector(rounds=2).start_turn_after_survey(None).surveyed is None


def test_no_middle_tokens_in_the_survey_pass() -> None:
    """The votes are the same; what they come to is shown the second time."""
    values, shared = scores(), QueryState(surveying=True)
    assert asked(values, shared, rounds=2) == [[]] * LAYERS
    kept = QueryState(selector=selector(rounds=2).start_turn_after_survey(shared.selector))
    assert asked(values, kept, rounds=2) == [asked(values, QueryState())[-1]] * LAYERS


def test_what_has_become_local_since_is_not_selected() -> None:
    """Scores of 40 tokens select in a step with 30 of them in the middle."""
    shared = QueryState()
    votes = torch.zeros(MIDDLE)
    votes[[5, 29, 30, 39]] = 1.0
    flat = LayerConsensusSelector(passage=1)
    flat.select(told(votes, 0, shared), 4)
    word = told(votes[:30], 0, shared, start=1000 + CHUNK, chunk=1)
    assert flat.select(word, 4).tolist() == [5, 29]


# The layers of a question


def test_votes_add_up_through_the_layers() -> None:
    values = scores()
    want = [best(added(*values[: layer + 1]), BUDGET) for layer in range(LAYERS)]
    assert asked(values, QueryState()) == want
    assert len({tuple(row) for row in want}) > 1


def test_a_new_start_begins_afresh() -> None:
    shared = QueryState()
    asked(scores(), shared)
    first, second = scores(2)
    method = selector()
    # Layer 3 of the step before must not be taken for an earlier layer of this one.
    got = method.select(told(first, 0, shared, start=1000 + CHUNK), BUDGET)
    assert got.tolist() == best(first.tolist(), BUDGET)
    got = method.select(told(second, 1, shared, start=1000 + CHUNK), BUDGET)
    assert got.tolist() == best(added(first, second), BUDGET)


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_the_same_start_with_no_later_layer_begins_afresh(layer: int) -> None:
    shared = QueryState()
    asked(scores(), shared)
    (row,) = scores(1)
    got = selector().select(told(row, layer, shared), BUDGET)
    assert got.tolist() == best(row.tolist(), BUDGET)


def test_what_has_no_score_is_never_better_than_what_has_one() -> None:
    """Scores that are logits are below zero; left out are those that a shortlist has not."""
    values = scores(3) - 100.0
    values[:, 10:] = -INFINITY
    for row in asked(values, QueryState()):
        assert max(row) < 10, "BUDGET is less than what has scores"


@pytest.mark.parametrize("budget", [MIDDLE, MIDDLE + 1, 1000])
@pytest.mark.parametrize("chunk", [1, CHUNK])
def test_a_budget_for_everything_takes_everything(budget: int, chunk: int) -> None:
    shared = QueryState()
    asked(scores(), shared)
    step = told(scores(1)[0], 0, shared, start=2000, chunk=chunk)
    assert selector().select(step, budget).tolist() == list(range(MIDDLE))


# The answer's tokens


def test_the_answer_keeps_the_last_layers_passages() -> None:
    shared = QueryState()
    want = asked(scores(), shared)[-1]
    method = selector()
    for token in range(4):
        start = 1000 + CHUNK + token
        for layer in range(LAYERS):
            # The middle grows, one token as each token of the answer pushes one out of L.
            (row,) = scores(1, MIDDLE + token)
            step = told(row, layer, shared, start=start, chunk=1)
            assert method.select(step, BUDGET).tolist() == want


def test_kept_passages_stand_at_their_place_in_the_document() -> None:
    shared = QueryState()
    want = asked(scores(), shared)[-1]
    # With a smaller I, an offset into M is larger by the difference.
    step = told(scores(1, MIDDLE + 2)[0], 0, shared, start=2000, chunk=1, low=LOW - 2)
    assert selector().select(step, BUDGET).tolist() == [place + 2 for place in want]
    # With a larger one, those that are now initial drop out.
    step = told(scores(1, MIDDLE - 10)[0], 0, shared, start=2000, chunk=1, low=LOW + 10)
    left = [place - 10 for place in want if place >= 10]
    assert selector().select(step, BUDGET).tolist() == left


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passage": 0}, "at least 1"),
        ({"share": -0.1}, "from 0 to 1"),
        ({"share": 1.1}, "from 0 to 1"),
    ],
    ids=str,
)
def test_settings_that_do_not_hold(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LayerConsensusSelector(**options)
    with pytest.raises(PresetError):
        registry.build_method_part("selector", {"name": "consensus", **options})


# In a model

DOCUMENT, QUESTION, ANSWER = 60, 9, 8


@pytest.fixture
def attached(make_model: ModelFactory) -> Any:
    method = Method(
        Window(initial=4, selected=10, local=8, chunk=7),
        selector=LayerConsensusSelector(passage=3),
        score=VoteScore(),
        position=ContiguousPositions(20),
        reading="local",
    )
    model = make_model("llama", seed=2, num_hidden_layers=3, initializer_range=0.4)
    with attach(model, method) as found:
        yield found


def answer(attached: AttachedModel, ids: torch.Tensor, cache: EsaCache) -> list[int]:
    out = attached.model.generate(
        ids, past_key_values=cache, max_new_tokens=ANSWER, do_sample=False
    )
    return out[0, ids.shape[1] :].tolist()


def test_stock_generate_begins_a_turn_where_tokens_were_taken_back(attached: AttachedModel) -> None:
    """Without a session nobody says that a turn begins; the cache sees it."""
    ids = torch.randint(1, VOCABULARY, (1, DOCUMENT + QUESTION))
    other = torch.cat((ids[:, :DOCUMENT], ids[:, -QUESTION:].flip(1)), dim=1)
    cache = attached.new_cache()
    attached.model(ids[:, :DOCUMENT], past_key_values=cache)
    first = answer(attached, ids, cache)
    cache.truncate(DOCUMENT)
    answer(attached, other, cache)
    cache.truncate(DOCUMENT)
    assert answer(attached, ids, cache) == first
