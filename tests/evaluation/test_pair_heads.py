"""`esa heads --pairs`: contexts of nine windows, margins over the best wrong one, the command."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_fixtures import cache, runner, surroundings
from command import Esa
from conftest import build_step
from reader_pairs import write_pairs
from torch import Tensor

from esa_cli.errors import UsageError
from esa_cli.evaluation.calibration import head_ranking as head_votes
from esa_cli.evaluation.calibration.head_ranking import judge_windows, rank_heads, span_sums
from esa_cli.evaluation.calibration.pair_heads import (
    PairContext,
    PairHeads,
    PairVotes,
    draw_pairs,
    find_by_pairs,
    pair_contexts,
)
from esa_cli.evaluation.calibration.question_pairs import TrainingText, read_training_texts
from esa_cli.methods.voting import VoteScore
from esa_cli.models.files.random_model import write_random
from esa_cli.models.loading.load import LoadedModel
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.preset import Preset

__all__ = ["cache", "surroundings"]

VOTING = [
    "score.name=vote", "selector.name=consensus", "selector.passage=16", "reading=local",
    "context=6000", "window.chunk=256",
]  # fmt: skip
PLACES = 24


def write_folders(root: Path) -> tuple[Path, Path]:
    """A text of 24 paragraphs about a keeper each, a reworded, a plain and an absent question on
    every one; returns the folders of pairs and of texts."""
    pairs, texts = root / "pairs", root / "texts"
    pairs.mkdir()
    texts.mkdir()
    text, rows = "", list[dict[str, Any]]()
    for place in range(PLACES):
        start = len(text)
        name = f"Keeper{chr(65 + place)}a"
        text += f"{name} lit lamp {place} on day {place + 40}. "
        answer = [text.index(f"day {place + 40}"), len(text) - 2]
        for day in range(4):
            text += f"Rain {place} and {day} fell upon all the empty hills and lanes out there. "
        text = text.rstrip() + "\n\n"
        for kind, question, span in (
            ("reworded", f"When did {name} bring light?", answer),
            ("plain", f"On which day did {name} light lamp {place}?", answer),
            ("absent", f"Who paid {name}?", None),
        ):
            row = {"id": f"one-{len(rows)}", "kind": kind, "question": question}
            rows.append({**row, "answer": span, "passage": [start, len(text) - 2]})
    (texts / "one.txt").write_text(text, "utf-8")
    write_pairs(pairs / "one.jsonl", rows)
    return pairs, texts


@pytest.fixture
def texts(tmp_path: Path) -> list[TrainingText]:
    return read_training_texts(*write_folders(tmp_path))


def tiny(*settings: str) -> Preset:
    return preset.load("tiny-random", [*VOTING, *settings])


def contexts_of(
    loaded: LoadedModel,
    texts: list[TrainingText],
    samples: int = 8,
    seed: int = 0,
    longest: int = 6000,
) -> list[PairContext]:
    drawn = draw_pairs(texts, ["reworded"], samples, seed)
    prompt = PromptTokens(loaded.tokenizer, tiny().prompt)
    return [*pair_contexts(texts, drawn, prompt, longest, seed)]


# Margins


def test_a_margin_is_over_the_best_wrong_window_in_standard_deviations() -> None:
    sums = torch.tensor([[1.0, 4.0, 2.0], [3.0, 1.0, 2.0], [1.0, 1.0, 1.0], [0.0, 5.0, 0.0]])
    found, margins = judge_windows(sums, 1)
    spread = torch.tensor([1.0, 4.0, 2.0]).std()
    assert found.tolist() == [True, False, False, True]
    assert margins.tolist() == pytest.approx([2 / float(spread), -2.0, 0.0, 3**0.5])


def test_span_sums_are_sums() -> None:
    votes = torch.rand(20)
    wanted = [float(votes[2:5].sum()), float(votes[9:20].sum())]
    assert span_sums(votes, [range(2, 5), range(9, 20)]).tolist() == pytest.approx(wanted)


def test_heads_can_be_ranked_by_margin_first() -> None:
    found, margin = torch.tensor([[5, 1]]), torch.tensor([[0.2, 0.9]])
    assert [one.head for one in rank_heads(found, found, margin)] == [0, 1]
    assert [one.head for one in rank_heads(found, found, margin, by_margin=True)] == [1, 0]


# Pairs and contexts


def test_pairs_are_drawn_one_a_passage(texts: list[TrainingText]) -> None:
    drawn = draw_pairs(texts, ["reworded", "plain"], 100, 0)["one"]
    assert len(drawn) == PLACES == len({pair.passage for pair in drawn})
    assert {pair.kind for pair in drawn} == {"reworded", "plain"}
    some = draw_pairs(texts, ["reworded"], 5, 0)["one"]
    assert len(some) == 5
    assert {pair.kind for pair in some} == {"reworded"}
    assert some == draw_pairs(texts, ["reworded"], 5, 0)["one"]
    assert some != draw_pairs(texts, ["reworded"], 5, 1)["one"]


@pytest.mark.parametrize("kind", ["rewordde", "absent"])
def test_a_kind_without_answers_is_refused(texts: list[TrainingText], kind: str) -> None:
    with pytest.raises(UsageError, match=f"--kind must be .* got '{kind}'"):
        draw_pairs(texts, [kind], 5, 0)


def test_the_answering_window_is_among_eight_wrong_ones(
    loaded: LoadedModel, texts: list[TrainingText]
) -> None:
    whole, pairs = texts[0].text, {one.question: one for one in texts[0].pairs}
    contexts = contexts_of(loaded, texts)
    assert len(contexts) == 8
    for one in contexts:
        pair = pairs[one.question]
        assert pair.answer is not None
        said = [loaded.tokenizer.decode(one.ids[w.start : w.stop]) for w in one.windows]
        assert len(said) == 9
        places = [(whole.index(window), whole.index(window) + len(window)) for window in said]
        assert whole[slice(*pair.answer)] in said[one.right]
        assert places[one.right][0] <= pair.answer[0] < pair.answer[1] <= places[one.right][1]
        for (start, end), (low, high) in combinations(places, 2):
            assert end <= low or high <= start
        first, last = pair.passage
        for at, (start, end) in enumerate(places):
            assert at == one.right or end <= first or last <= start
        assert loaded.tokenizer.decode(one.ids).endswith(said[-1])
        assert one.lexical, "its name is in no other window"
    assert len({one.right for one in contexts}) > 2, "in random order"


def test_contexts_follow_the_seed(loaded: LoadedModel, texts: list[TrainingText]) -> None:
    assert contexts_of(loaded, texts) == contexts_of(loaded, texts)
    assert contexts_of(loaded, texts) != contexts_of(loaded, texts, seed=1)


def test_longer_prompts_are_left_out(loaded: LoadedModel, texts: list[TrainingText]) -> None:
    lengths = [len(one.ids) for one in contexts_of(loaded, texts)]
    assert contexts_of(loaded, texts, longest=max(lengths)) != []
    assert len(contexts_of(loaded, texts, longest=max(lengths))) < 8
    assert contexts_of(loaded, texts, longest=100) == []


# Votes


def test_windows_get_the_votes_that_the_score_has_for_them() -> None:
    score, windows = VoteScore(contrast=True), [range(5, 12), range(13, 30)]
    context, sets = PairContext("", [], windows, 1, False), [((0, 1), (0, 4)), ((0, 2),)]
    votes = PairVotes(context, sets, score)
    step = build_step(torch.randn(6, 5, 8), 2 * torch.randn(2, 40, 8), low=3, after=2, score=score)
    step.query.question = (step.start + 1, step.start + 4)
    votes.select(step, 0)
    for heads, row in [*zip(sets, votes.together[0], strict=True)] + [
        (((0, head),), votes.alone[0][head]) for head in range(6)
    ]:
        tokens = VoteScore(contrast=True, heads=heads).scores(step)
        wanted = [float(tokens[one.start - 3 : one.stop - 3].sum()) for one in windows]
        assert row.tolist() == pytest.approx(wanted)


# A model in which one head finds

ASKED: list[int] = []


@pytest.fixture
def one_finds(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Head 2 of layer 1 votes for the middle of the answering window, which the fixture tells it;
    all others vote for the first token of the first wrong one, and less."""
    finder = (1, 2)

    def scores(self: VoteScore, step: Any) -> Tensor:
        out = torch.zeros(step.middle)
        voters = [head for layer, head in self.heads if layer == step.layer]
        for voter in voters or ([] if self.heads else range(step.queries.shape[0])):
            if (step.layer, voter) == finder:
                out[ASKED[0] - step.low] += 1.0
            else:
                out[ASKED[1] - step.low] += 0.01
        return out

    monkeypatch.setattr(VoteScore, "scores", scores)
    collect = head_votes.PrefilledText.collect

    def told(self: Any, one: Any, question: str) -> Any:
        windows, right = one.context.windows, one.context.right
        ASKED[:] = [sum(windows[right]) // len(windows[right]), windows[int(right == 0)].start]
        return collect(self, one, question)

    monkeypatch.setattr(head_votes.PrefilledText, "collect", told)
    return finder


def test_the_head_that_finds_is_found(
    loaded: LoadedModel, texts: list[TrainingText], one_finds: tuple[int, int]
) -> None:
    told: list[tuple[int, int]] = []
    contexts = contexts_of(loaded, texts)
    before = loaded.model.config._attn_implementation
    found = find_by_pairs(loaded, tiny(), contexts, 9, lambda *at: told.append(at))
    assert found.heads[0].pair == one_finds
    assert (found.heads[0].found, found.heads[0].held_out) == (4, 4)
    assert found.heads[0].margin == pytest.approx(3.0)
    assert all(one.found == 0 and one.margin == pytest.approx(-3) for one in found.heads[1:])
    assert len(found.chosen) == 4
    assert one_finds in found.chosen
    assert (found.hits, found.all_hits, found.ranked_by, found.held_out) == (4, 4, 4, 4)
    assert (found.preset_hits, found.lexical_hits, found.left_out) == (None, 4, 1)
    assert not found.weak
    assert found.passage < found.tokens / 8
    assert told == [(at, 8) for at in range(1, 9)]
    assert loaded.model.config._attn_implementation == before


def test_the_presets_own_heads_are_tried_too(
    loaded: LoadedModel, texts: list[TrainingText], one_finds: tuple[int, int]
) -> None:
    contexts = contexts_of(loaded, texts, 4)
    good = find_by_pairs(loaded, tiny("score.heads=[[1, 2]]"), contexts, 4)
    poor = find_by_pairs(loaded, tiny("score.heads=[[0, 1]]"), contexts, 4)
    assert (good.preset_hits, poor.preset_hits) == (2, 0)
    assert good.chosen == poor.chosen


@pytest.mark.parametrize("settings", [[], ["score.contrast=true", "window.ending=5"]])
def test_all_windows_are_voted_for(
    loaded: LoadedModel, texts: list[TrainingText], settings: list[str]
) -> None:
    """Whatever the preset keeps in view, and up to which length it attends to all."""
    contexts = contexts_of(loaded, texts, 4)
    more = ["window.initial=200", "window.selected=0", "window.dense=5000", "score.shortlist=8"]
    plain = find_by_pairs(loaded, tiny(*settings), contexts, 4)
    other = find_by_pairs(loaded, tiny(*settings, *more), contexts, 4)
    for found in (plain, other):
        assert len(found.heads) == 8
        assert all(abs(one.margin) <= 3 for one in found.heads)
        assert len({one.margin for one in found.heads}) > 4


def test_too_few_pairs_are_refused(loaded: LoadedModel, texts: list[TrainingText]) -> None:
    with pytest.raises(UsageError, match="got 3 of 9"):
        find_by_pairs(loaded, tiny(), contexts_of(loaded, texts, 3), 9)


def test_weak_is_less_than_a_third() -> None:
    def of(hits: int) -> PairHeads:
        return PairHeads([], (), 9, 9, hits, 9, {}, 900, 90, 0, None, 9)

    assert of(2).weak
    assert not of(3).weak


# The command


def write_long_model(folder: Path) -> None:
    """The tiny random model, for 8,192 tokens."""
    folder.mkdir()
    write_random(folder)
    config = folder / "config.json"
    values = {**json.loads(config.read_text("utf-8")), "max_position_embeddings": 8192}
    config.write_text(json.dumps(values), "utf-8")


TINY = [
    "--preset", "tiny-random", "--model", "./model", "--device", "cpu", "--dtype", "float32",
]  # fmt: skip
FEW = [word for one in VOTING for word in ("--set", one)]


@pytest.fixture
def esa(surroundings: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Esa:
    write_folders(tmp_path)
    write_long_model(tmp_path / "model")
    return runner(capsys, "heads", *TINY)


BY_PAIRS = [*FEW, "--pairs", "pairs", "texts", "--samples", "8"]


def test_the_table_names_pairs(esa: Esa, one_finds: tuple[int, int]) -> None:
    result = esa(*BY_PAIRS, "--set", "score.heads=[[0, 0]]")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[1].split() == ["1", "2", "4", "4", "3.00", "yes"]
    assert "of 4 held-out pairs: 4 first by these 4 heads" in lines[-3]
    assert lines[-2] == "0 by the preset's heads, 4 by BM25"
    assert lines[-1].startswith("use them with --set 'score.heads=[[1,2],")


def test_json_and_a_preset(esa: Esa, one_finds: tuple[int, int], tmp_path: Path) -> None:
    kinds = ["--kind", "reworded", "--kind", "plain"]
    result = esa(*BY_PAIRS, *kinds, "--json", "--quiet", "--out", "few.yaml")
    assert (result.code, result.err) == (0, "")
    data = json.loads(result.out)
    assert data["heads"][0] == {
        "layer": 1, "head": 2, "found": 4, "held_out": 4, "margin": 3.0,
    }  # fmt: skip
    assert (data["hits"], data["preset_hits"], data["lexical_hits"]) == (4, None, 4)
    assert (data["pairs"], data["texts"], data["kinds"]) == ("pairs", "texts", kinds[1::2])
    assert preset.load("./few.yaml").score["heads"] == data["chosen"]
    assert "4 of 4 held-out pairs first" in (tmp_path / "few.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([*BY_PAIRS, "--questions", "8"], 2, "--questions must be given without --pairs"),
        ([*BY_PAIRS, "--haystack", "hay.txt"], 2, "--haystack must be given without --pairs"),
        ([*FEW, "--samples", "8"], 2, "--samples must be given with --pairs"),
        ([*BY_PAIRS, "--kind", "rewordde"], 2, "did you mean 'reworded'?"),
        ([*FEW, "--pairs", "texts", "pairs"], 3, "must have files NAME.jsonl"),
        ([*BY_PAIRS, "--set", "context=600"], 2, "must have nine windows, got 0 of 8"),
    ],
)
def test_mistakes(esa: Esa, arguments: list[str], code: int, words: str) -> None:
    result = esa(*arguments)
    assert result.code == code
    assert words in result.err
    assert result.out == ""
