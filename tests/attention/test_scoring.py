"""Scores, proximity and selection against loops of Eqs. (3), (4) and (8) and of the vote."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import reference
import torch
from conftest import build_rope, build_step

from esa_cli.attention import selection as scores_module
from esa_cli.attention import step as step_module
from esa_cli.attention.compression import Linear
from esa_cli.attention.selection import LogitSum, TopKSelector, proximity, top_k
from esa_cli.attention.step import Step
from esa_cli.attention.window import QueryState, QuestionAndText
from esa_cli.errors import ModelError, PresetError
from esa_cli.methods.voting import VoteScore

GROUPS = [(3, 3), (6, 2), (8, 1)]
DISTANCE = 29
SCALE = 0.3
DIM = 8


def draw(heads: int, groups: int, chunk: int, middle: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(heads, chunk, DIM), torch.randn(groups, middle, DIM)


def turned(q: torch.Tensor, rotate: bool) -> reference.Heads:
    queries = reference.plain(q)
    return reference.rotate_heads(queries, DISTANCE) if rotate else queries


def same(got: torch.Tensor, want: list[float], tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(
        got.double(), torch.tensor(want).double(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize(("heads", "groups"), GROUPS)
def test_sum_is_eq_3_and_4(heads: int, groups: int, chunk: int, rotate: bool) -> None:
    q, k = draw(heads, groups, chunk, 21)
    step = build_step(q, k, low=4, after=6)
    want = reference.sum_scores(turned(q, rotate), reference.plain(k))
    same(LogitSum(rotate=rotate).scores(step), want)
    assert max(want) == pytest.approx(0, abs=1e-12)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduced", [False, True])
def test_sums_of_rounded_numbers_are_not_rounded_again(dtype: torch.dtype, reduced: bool) -> None:
    """Keys that share an offset, as trained ones do: sums beyond what float16 holds, with
    differences far below what bfloat16 tells apart."""
    q, k = ((x + 60).to(dtype) for x in draw(6, 2, 3, 21))
    maps = Linear(torch.eye(2 * DIM), torch.eye(2 * DIM)) if reduced else None
    step = build_step(q, k, low=4, after=6, projection=maps)
    want = reference.sum_scores(reference.plain(q), reference.plain(k))
    assert torch.tensor(want).abs().max() > 100
    same(LogitSum().scores(step), want, tolerance=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", [(), ((0, 1), (0, 4))])
def test_votes_of_rounded_numbers_are_not_rounded_again(
    dtype: torch.dtype, heads: tuple[tuple[int, int], ...]
) -> None:
    q, k = ((x + 60).to(dtype) for x in draw(6, 2, 3, 21))
    step = build_step(q, k, low=4, after=6)
    queries = reference.plain(q)
    some = [queries[head] for _, head in heads] if heads else queries
    keys = reference.plain(k)
    own = [keys[head // 3] for _, head in heads] if heads else keys
    want = reference.vote_scores(some, own, SCALE, "max", "max")
    same(VoteScore(rule="max", rotate=False, heads=heads).scores(step), want, tolerance=2e-3)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize(("heads", "groups"), GROUPS)
def test_sum_with_reduced_keys(heads: int, groups: int, chunk: int, rotate: bool) -> None:
    q, k = draw(heads, groups, chunk, 21)
    maps = Linear(torch.randn(groups * DIM, 3), torch.randn(groups * DIM, 3))
    step = build_step(q, k, low=4, after=6, projection=maps)
    want = reference.reduced_sum_scores(
        turned(q, rotate),
        reference.plain(k),
        reference.plain(maps.query_map),
        reference.plain(maps.key_map),
    )
    same(LogitSum(rotate=rotate).scores(step), want, tolerance=1e-4)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("rule", ["softmax", "max"])
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize(("heads", "groups"), GROUPS)
def test_vote(heads: int, groups: int, chunk: int, rotate: bool, rule: str) -> None:
    q, k = draw(heads, groups, chunk, 21)
    step = build_step(q, k, low=4, after=6)
    want = reference.vote_scores(turned(q, rotate), reference.plain(k), SCALE, rule, "max")
    same(VoteScore(rule=rule, rotate=rotate).scores(step), want)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize(("heads", "groups"), GROUPS)
def test_individual_selection_is_eq_4_with_a_maximum_over_heads(
    heads: int, groups: int, rotate: bool
) -> None:
    """max over c of (max over h of l - max over m' and h of l), head by head, key by key."""
    q, k = draw(heads, groups, 3, 21)
    step = build_step(q, k, low=4, after=6)
    queries, keys = turned(q, rotate), reference.plain(k)
    best = [
        [
            max(
                SCALE * reference.dot(queries[h][c], keys[h * groups // heads][m])
                for h in range(heads)
            )
            for m in range(21)
        ]
        for c in range(3)
    ]
    want = [max(row[m] - max(row) for row in best) for m in range(21)]
    score = VoteScore(rule="max", rotate=rotate, normalise="query")
    same(score.scores(step), want)
    with pytest.raises(ValueError, match="rule must be max"):
        VoteScore(normalise="query")


@pytest.mark.parametrize("shortlist", [0, 9])
def test_contrast_takes_off_what_the_prompts_words_vote_for(shortlist: int) -> None:
    """Queries 1 to 3 of 6 are the question's own; each query votes by itself."""
    q, k = draw(6, 2, 6, 21)
    step = build_step(q, k, low=4, after=6)
    step = replace(step, query=QueryState(question=(step.start + 1, step.start + 4)))
    score = VoteScore(contrast=True, shortlist=shortlist)
    got = score.scores(step)
    if shortlist:
        at = torch.nonzero(got > float("-inf"))[:, 0]
        assert at.shape[0] == shortlist
        k, got = k[:, at], got[at]
    queries, keys = turned(q, True), reference.plain(k)
    own, rest = (
        reference.vote_scores(
            [[head[c] for c in some] for head in queries], keys, SCALE, "softmax", "max"
        )
        for some in ((1, 2, 3), (0, 4, 5))
    )
    same(got, [max(0.0, x - y) for x, y in zip(own, rest, strict=True)])
    assert 0 < int((got > 0).sum()) < got.shape[0]


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("rule", ["softmax", "max"])
@pytest.mark.parametrize("shortlist", [0, 9])
def test_only_chosen_heads_vote(shortlist: int, rule: str, rotate: bool) -> None:
    """Heads 1, 3 and 5 of 6, whose keys are those of heads 0, 0 or 1 of 2."""
    q, k = draw(6, 2, 5, 21)
    step = build_step(q, k, low=4, after=6)
    heads = [(step.layer, 5), (step.layer + 1, 0), (step.layer, 1), (step.layer, 3)]
    got = VoteScore(rule=rule, rotate=rotate, heads=heads, shortlist=shortlist).scores(step)
    if shortlist:
        at = torch.nonzero(got > float("-inf"))[:, 0]
        assert at.shape[0] == shortlist
        k, got = k[:, at], got[at]
    queries, keys = turned(q, rotate), reference.plain(k)
    both = [queries[h] for h in (1, 3, 5)], [keys[h // 3] for h in (1, 3, 5)]
    same(got, reference.vote_scores(*both, SCALE, rule, "max"))


def test_heads_of_another_model_are_named() -> None:
    q, k = draw(6, 2, 5, 21)
    step = build_step(q, k, low=4, after=6)
    with pytest.raises(PresetError, match="head 6 of layer 0"):
        VoteScore(heads=[(step.layer, 6)]).scores(step)


def test_the_answers_first_words_are_on_neither_side() -> None:
    """Two of seven queries are the question, two the prompt behind it, three come after that."""
    q, k = draw(6, 2, 7, 21)
    step = build_step(q, k, low=4, after=6)
    words = (step.start, step.start + 2)
    primed = replace(step, query=QueryState(question=words, answer_start=step.start + 4))
    assert primed.around.tolist() == [False, False, True, True, False, False, False]
    short = replace(step, queries=q[:, :4], query=QueryState(question=words))
    got, want = (VoteScore(contrast=True).scores(one) for one in (primed, short))
    same(got, want.tolist())


@pytest.mark.parametrize("bounds", [None, (0, 3), (0, 500)])
def test_contrast_needs_both_kinds_of_words(bounds: tuple[int, int] | None) -> None:
    """Nobody said which are the question's words, or none of these is, or all are."""
    q, k = draw(6, 2, 3, 21)
    step = build_step(q, k, low=4, after=6)
    query, plain = QueryState(question=bounds), VoteScore().scores(step)
    assert torch.equal(VoteScore(contrast=True).scores(replace(step, query=query)), plain)


@pytest.mark.parametrize("score", [LogitSum(), VoteScore(), VoteScore(rule="max")])
@pytest.mark.parametrize("reduced", [False, True])
def test_blockwise_in_two_passes_is_the_same(
    monkeypatch: pytest.MonkeyPatch, score: LogitSum | VoteScore, reduced: bool
) -> None:
    """Blocks of 256, first kept between the passes and then computed twice."""
    q, k = draw(6, 2, 3, 1400)
    maps = Linear(torch.randn(2 * DIM, 3), torch.randn(2 * DIM, 3)) if reduced else None
    step = build_step(q, k, low=11, after=6, projection=maps)
    whole = score.scores(step)
    monkeypatch.setattr(step_module, "BLOCK_ELEMENTS", 1)
    in_blocks = score.scores(step)
    monkeypatch.setattr(scores_module, "KEEP_ELEMENTS", 1)
    calls: list[bool] = []
    for name in ("sums", "head_logits"):
        original = getattr(Step, name)
        monkeypatch.setattr(
            Step,
            name,
            lambda self, rotate, *heads, of=original: (
                calls.append(rotate) or of(self, rotate, *heads)
            ),
        )
    twice = score.scores(step)
    assert len(calls) == 2
    blocks = list(step.head_logits(False))
    assert len(blocks) > 4
    assert [at for at, _ in blocks][:2] == [0, 256]
    torch.testing.assert_close(in_blocks, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(twice, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("rule", ["softmax", "max"])
@pytest.mark.parametrize("shortlist", [1, 9, 20])
def test_shortlist(shortlist: int, rule: str, rotate: bool, reduced: bool) -> None:
    q, k = draw(6, 2, 3, 21)
    maps = Linear(torch.randn(2 * DIM, 3), torch.randn(2 * DIM, 3)) if reduced else None
    step = build_step(q, k, low=4, after=6, projection=maps)
    queries, keys = turned(q, rotate), reference.plain(k)
    if maps is None:
        sums = reference.sum_scores(queries, keys)
    else:
        both = reference.plain(maps.query_map), reference.plain(maps.key_map)
        sums = reference.reduced_sum_scores(queries, keys, *both)
    chosen = reference.top_k(sums, shortlist)
    want = [-reference.INFINITY] * 21
    votes = reference.vote_scores(queries, reference.only(keys, chosen), SCALE, rule, "max")
    for place, vote in zip(chosen, votes, strict=True):
        want[place] = vote
    score = VoteScore(rule=rule, rotate=rotate, shortlist=shortlist)
    assert score.features
    same(score.scores(step), want)


@pytest.mark.parametrize("score", [LogitSum(), VoteScore(), VoteScore(rule="max")])
def test_scores_of_large_logits_are_finite(score: LogitSum | VoteScore) -> None:
    q, k = draw(6, 2, 3, 30)
    step = build_step(q * 300, k * 300)
    assert torch.isfinite(score.scores(step)).all()


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0}


@pytest.mark.parametrize("rope_parameters", [None, YARN])
def test_rotated_logits_are_those_attention_will_see(
    rope_parameters: dict[str, object] | None,
) -> None:
    """Queries at w against keys at 0. Under yarn, a key at position 0 is scaled too."""
    q, k = draw(6, 2, 3, 12)
    rope = build_rope(DIM, rope_parameters=rope_parameters)
    step = build_step(q, k, rope=rope)
    got = torch.cat([block for _, block in step.head_logits(True)], dim=2)
    query = rope.rotate(q, torch.full((3,), DISTANCE))
    keys = rope.rotate(k, torch.zeros(12, dtype=torch.long)).repeat_interleave(3, 0)
    torch.testing.assert_close(got, SCALE * query @ keys.transpose(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", range(1, 4))
@pytest.mark.parametrize("at", range(4))
def test_nan_has_no_order(k: int, at: int) -> None:
    scores = torch.tensor([1.0, torch.inf, -torch.inf, 3.0])
    scores[at] = torch.nan
    with pytest.raises(ModelError, match="NaN"):
        top_k(scores, k)


@pytest.mark.parametrize("seed", range(10))
def test_top_k_matches_a_stable_sort(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.randint(-3, 4, (40,)).float()
    scores[torch.rand(40) < 0.2] = -torch.inf
    for k in range(43):
        assert top_k(scores, k).tolist() == reference.top_k(scores.tolist(), k)


@dataclass(frozen=True)
class Given:
    """A score that is what the test says."""

    values: torch.Tensor
    features: bool = False

    def scores(self, step: Step) -> torch.Tensor:
        return self.values


@pytest.mark.parametrize("epsilon", [0, 1, 2, 3, 10, 19, 20, 21, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 20])
def test_proximity_is_eq_8(count: int, epsilon: int) -> None:
    scores = torch.randn(count)
    if count:
        assert proximity(scores, epsilon).tolist() == reference.proximity(scores.tolist(), epsilon)
    else:
        assert proximity(scores, epsilon).shape == (0,)


def test_proximity_of_minus_infinity() -> None:
    low = -torch.inf
    scores = torch.tensor([low, low, low, 1.0, low, low, low, low])
    assert proximity(scores, 2).tolist() == [low, 1, 1, 1, 1, 1, low, low]


@pytest.mark.parametrize("score", [LogitSum(), LogitSum(True), VoteScore(), VoteScore(shortlist=9)])
@pytest.mark.parametrize("epsilon", [0, 1, 3])
def test_selection_matches_loops(score: LogitSum | VoteScore, epsilon: int) -> None:
    q, k = torch.randn(6, 3, 8), torch.randn(2, 25, 8)
    step = build_step(q, k, low=3, after=2, score=score)
    settings = reference.Settings(
        initial=3,
        selected=6,
        local=2,
        chunk=3,
        dense=0,
        position="esa",
        distance=29,
        score="sum" if isinstance(score, LogitSum) else "vote",
        rotate=score.rotate,
        scale=0.3,
        epsilon=epsilon,
        shortlist=getattr(score, "shortlist", 0),
    )
    scores = reference.scores_of(settings, reference.plain(q), reference.plain(k))
    want = reference.top_k(reference.proximity(scores, epsilon), 6)
    assert TopKSelector(epsilon).select(step, 6).tolist() == want


def test_neighbours_of_the_best_come_before_lesser_peaks() -> None:
    values = torch.tensor([0.0, 0, 0, 9, 0, 0, 0, 5, 0, 0])
    step = build_step(torch.randn(2, 1, 8), torch.randn(2, 10, 8), score=Given(values))
    assert TopKSelector(0).select(step, 3).tolist() == [0, 3, 7]
    assert TopKSelector(1).select(step, 3).tolist() == [2, 3, 4]
    assert TopKSelector(1).select(step, 6).tolist() == [2, 3, 4, 6, 7, 8]


def test_negative_epsilon_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        TopKSelector(-1)


def test_a_result_for_the_texts_of_a_turn_is_computed_once_a_key() -> None:
    text, calls = QuestionAndText("Who?", lambda: ["a", "b"]), list[str]()

    def compute() -> int:
        calls.append("called")
        return len(text.pieces())

    assert [text.once("size", compute), text.once("size", compute)] == [2, 2]
    assert text.once("other", lambda: 3) == 3
    assert len(calls) == 1
