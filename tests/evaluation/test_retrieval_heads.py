"""`esa heads`: votes, ranking, the smallest set, the preset that is written, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from command import TINY, Esa
from conftest import ModelFactory, build_step
from torch import Tensor

from esa_cli.attention.step import Step
from esa_cli.attention.window import QueryState
from esa_cli.evaluation.calibration.retrieval_heads import (
    ALL,
    HeadHits,
    HeadVoteCollector,
    choose_smallest_head_set_size,
    find_retrieval_heads,
    locate_question_needles,
    rank_heads,
    sum_votes_by_window,
)
from esa_cli.evaluation.tasks import TASKS
from esa_cli.evaluation.tasks.task_sample import Haystack, TaskDocument, TaskRequest
from esa_cli.methods.voting import VoteScore
from esa_cli.models.loading.load import LoadedModel
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.presets.preset import Preset, load_preset

VOTING = [
    "score.name=vote", "selector.name=consensus", "selector.passage=16", "reading=local",
    "window.chunk=128",
]  # fmt: skip


def head(layer: int, number: int, found: int, margin: float = 0.5) -> HeadHits:
    return HeadHits(layer, number, found, 0, margin)


def test_heads_are_ranked_by_what_they_find_then_by_margin() -> None:
    found = torch.tensor([[1, 5, 3], [5, 0, 3]])
    margin = torch.tensor([[0.9, 0.6, 0.4], [0.7, 0.0, 0.4]])
    held_out = torch.tensor([[2, 1, 0], [3, 0, 1]])
    order = rank_heads(found, held_out, margin)
    ranked = [(one.layer, one.head) for one in order]
    assert ranked == [(1, 0), (0, 1), (0, 2), (1, 2), (0, 0), (1, 1)]
    assert (order[0].found, order[0].held_out, order[0].margin) == (5, 3, pytest.approx(0.7))


def test_the_smallest_set_that_finds_as_much_as_all_is_enough() -> None:
    best = [head(n % 3, n, 9) for n in range(7)]
    assert choose_smallest_head_set_size(best, {4: 10, 5: 12, 6: 11, 7: 13}, 12) == 5
    assert choose_smallest_head_set_size(best, {4: 14, 5: 15, 6: 15, 7: 13}, 12) == 4, (
        "more than all is as good"
    )
    assert choose_smallest_head_set_size(best, {4: 8, 5: 11, 6: 11, 7: 10}, 12) == 5, (
        "none is: the fewest of the best"
    )


def votes_of(size: int, sets: list[Any]) -> tuple[HeadVoteCollector, list[Step], VoteScore]:
    """Two layers' steps of 6 heads over 2 key heads, contrasting own words with others."""
    score = VoteScore(contrast=True)
    needle_votes, steps = HeadVoteCollector(range(24, 30), size, sets, score), []
    for layer in range(2):
        step = build_step(
            torch.randn(6, 5, 8), 2 * torch.randn(2, 40, 8), low=3, after=2, score=score
        )
        own = (step.start + 1, step.start + 4)
        step = replace(step, layer=layer, query=QueryState(question=own))
        needle_votes.select(step, 0)
        steps.append(step)
    return needle_votes, steps, score


def test_every_head_votes_alone_as_the_score_has_it() -> None:
    needle_votes, steps, score = votes_of(8, [])
    found, margin = needle_votes.find_heads_hitting_needle()
    assert found.shape == margin.shape == (2, 6)
    for layer, step in enumerate(steps):
        for number in range(6):
            votes = replace(score, heads=((layer, number),)).scores(step)
            sums = [float(votes[at : at + 8].sum()) for at in range(33)]
            best = max(range(33), key=lambda at: sums[at])
            mean = sum(m * float(votes[m]) for m in range(best, best + 8)) / sums[best]
            start = min(32, max(0, round(mean - 3.5)))
            assert bool(found[layer, number]) is (min(start + 8, 27) - max(start, 21) >= 0.6 * 6)
            inside = [min(at + 8, 27) - max(at, 21) for at in range(33)]
            having = max(sums[at] for at in range(33) if inside[at] >= 0.6 * 6)
            elsewhere = max(sums[at] for at in range(33) if inside[at] <= 0)
            assert float(margin[layer, number]) == pytest.approx(
                having / (having + elsewhere), rel=1e-4
            )


def test_a_set_votes_by_the_sum_of_its_layers() -> None:
    sets = [ALL, ((0, 1), (1, 4)), ((0, 1),), ((0, 1), (0, 2), (1, 4))]
    needle_votes, steps, score = votes_of(8, sets)
    for one, row in zip(
        sets, torch.stack([*needle_votes.together.values()]).sum(dim=0), strict=True
    ):
        votes = torch.stack([replace(score, heads=one).scores(step) for step in steps]).sum(dim=0)
        torch.testing.assert_close(row, sum_votes_by_window(votes, 8))
    assert needle_votes.find_head_sets_hitting_needle().shape == (4,)


def tiny(*settings: str) -> Preset:
    return load_preset("tiny-random", [*VOTING, *settings])


def planted(loaded: Any, tokens: int = 1500, questions: int = 8) -> TaskDocument:
    def size(text: str) -> int:
        return len(loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    hay = Haystack.from_chronicle(0)
    request = TaskRequest(tokens, size, hay, questions, 0)
    return next(iter(TASKS["needle"].samples(request)))


@pytest.fixture
def one_finds(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Head 2 of layer 1 votes for the middle of the question's needle, which the fixture tells it;
    all others vote for the first token of M, and less: where few find, the others are not sure."""
    finder = (1, 2)

    def scores(self: VoteScore, step: Any) -> Tensor:
        out = torch.zeros(step.middle)
        voters = [h for layer, h in self.heads if layer == step.layer]
        if not self.heads:
            voters = list(range(step.queries.shape[0]))
        for voter in voters:
            if (step.layer, voter) == finder:
                out[ASKED[0] - step.low] += 1.0
            else:
                out[0] += 0.01
        return out

    monkeypatch.setattr(VoteScore, "scores", scores)
    select = HeadVoteCollector.select

    def note_the_needle(self: HeadVoteCollector, step: Step, budget: int) -> Tensor:
        ASKED[:] = [sum(self.needle) // len(self.needle)]
        return select(self, step, budget)

    monkeypatch.setattr(HeadVoteCollector, "select", note_the_needle)
    return finder


ASKED: list[int] = []


def test_needles_stand_where_the_tokens_say(loaded: LoadedModel) -> None:
    """The positions, read back through the tokenizer, hold the needle's words."""
    sample = planted(loaded)
    prompt = PromptEncoder(loaded.tokenizer, tiny().prompt)
    ids = prompt.encode_document(sample.text)
    facts = {q.text: sample.facts[q.facts[0]].text for q in sample.questions}
    asked = locate_question_needles(prompt, sample)
    assert [needle.start for _, needle in asked] == sorted(needle.start for _, needle in asked)
    for question, needle in asked:
        words = loaded.tokenizer.decode(ids[needle.start : needle.stop])
        assert words.strip() == facts[question]


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "deepseek_v3"])
def test_heads_are_query_heads(kind: str, make_model: ModelFactory, loaded: LoadedModel) -> None:
    """Also where several of them read one key head."""
    size = len(loaded.tokenizer)
    model = make_model(kind, vocab_size=size)
    found = find_retrieval_heads(
        replace(loaded, text_model=model), tiny("window.ending=0"), planted(loaded)
    )
    count = model.config.num_attention_heads
    pairs = {(at, h) for at in range(2) for h in range(count)}
    assert {(one.layer, one.head) for one in found.heads} == pairs
    assert all(0 <= one.margin <= 1 for one in found.heads)
    assert min(4, 2 * count) <= len(found.chosen) <= min(16, 2 * count)


FEW = [word for one in [*VOTING, "window.ending=0"] for word in ("--set", one)]
SHORT = ["--len", "1500", "--questions", "8"]


def test_json_and_a_setting(esa: Esa, one_finds: tuple[int, int]) -> None:
    result = esa("heads", *TINY, *FEW, *SHORT, "--json", "--quiet")
    assert (result.code, result.err) == (0, "")
    data = json.loads(result.out)
    assert data["heads"][0] == {
        "layer": 1, "head": 2, "found": 4, "held_out": 4, "margin": 1.0,
    }  # fmt: skip
    assert data["chosen"][0] == [1, 2]
    assert (data["hits"], data["all_hits"], data["held_out"]) == (4, 4, 4)
    assert not data["weak"]
    assert data["use"].startswith("--set 'score.heads=[[1,2],")
    assert data["layers"] == 2
    setting = data["use"].removeprefix("--set '").removesuffix("'")
    assert load_preset("tiny-random", [setting]).score["heads"] == data["chosen"]
    text = esa("heads", *TINY, *FEW, *SHORT, "--set", "answer.from=text", "--json", "--quiet").data
    assert text["use"] == data["use"] + " --set answer.from=rows", "passages use no heads"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        ([*FEW, "--len", "200"], 2),
        ([*FEW, "--haystack", "none.txt"], 3),
        ([*FEW, *SHORT, "--set", "window.ending=1200"], 2),
    ],
)
def test_mistakes_are_refused_before_the_model_is_loaded(
    esa: Esa, arguments: list[str], code: int
) -> None:
    result = esa("heads", *TINY, *arguments)
    assert (result.code, result.out) == (code, "")
    assert "loading the model" not in result.err
