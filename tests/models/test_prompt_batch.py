"""Batches of prompts against the model's own logits, one prompt at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory

from esa_cli.models.text_passes import text_forward
from esa_cli.models.text_passes.small_decoder import FusedForward
from esa_cli.models.text_passes.text_forward import ModelForward, PromptBatch

LENGTHS = [5, 31, 1, 12, 12, 40, 3, 22, 9, 17, 2]


@pytest.fixture(params=["llama", "mistral", "qwen2", "qwen3"])
def model(request: pytest.FixtureRequest, make_model: ModelFactory) -> Any:
    return make_model(request.param)


@pytest.fixture(params=[ModelForward, FusedForward])
def forward(request: pytest.FixtureRequest, model: Any) -> Any:
    return request.param(model)


def prompts(lengths: list[int]) -> list[list[int]]:
    return [torch.randint(1, VOCABULARY, (length,)).tolist() for length in lengths]


def alone(model: Any, ids: list[int]) -> torch.Tensor:
    out: torch.Tensor = model(torch.tensor([ids])).logits[0, -1]
    return out


@pytest.mark.parametrize("group", [1, 3, 8, 100])
def test_logits_are_those_of_each_prompt_alone(
    model: Any, forward: Any, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    monkeypatch.setattr(text_forward, "GROUP", group)
    given = prompts(LENGTHS)
    batch = PromptBatch(forward, given)
    want = torch.stack([alone(model, ids) for ids in given])
    assert batch.logits.dtype == torch.float32
    torch.testing.assert_close(batch.logits, want, atol=1e-4, rtol=1e-4)


def test_continuations_are_those_of_the_whole_prompt(model: Any, forward: Any) -> None:
    given = prompts(LENGTHS)
    batch = PromptBatch(forward, given)
    for number in (5, 2, 0):
        continuation = batch.continuation(number)
        branches = [[3], [8], [3]]
        logits = continuation.append([0, 0, 0], [3, 8, 3])
        for parents, tokens in (([2, 1], [4, 5]), ([0, 0, 1], [6, 7, 8]), ([1], [9])):
            want = torch.stack([alone(model, given[number] + own) for own in branches])
            torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)
            logits = continuation.append(parents, tokens)
            branches = [[*branches[at], token] for at, token in zip(parents, tokens, strict=True)]
        want = torch.stack([alone(model, given[number] + own) for own in branches])
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shared", [1, 6, 7])
def test_what_prompts_share_is_processed_once(model: Any, shared: int) -> None:
    first = prompts([6])[0]
    given = [first + own for own in prompts([1, 9, 4, 1, 20, 3, 3, 12, 5])]
    widths: list[int] = []
    hook = model.get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: widths.append(inputs[0].shape[1])
    )
    batch = PromptBatch(ModelForward(model), given, min(shared, len(first)))
    hook.remove()
    assert widths == [min(shared, 6), *(width - min(shared, 6) for width in (18, 26))]
    want = torch.stack([alone(model, ids) for ids in given])
    torch.testing.assert_close(batch.logits, want, atol=1e-4, rtol=1e-4)
    for number in (4, 0):
        logits = batch.continuation(number).append([0, 0], [3, 8])
        want = torch.stack([alone(model, [*given[number], token]) for token in (3, 8)])
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)


def test_one_prompt_that_is_all_shared(make_model: ModelFactory) -> None:
    model, given = make_model("llama"), prompts([5])
    for shared in (4, 5, 9):
        logits = PromptBatch(ModelForward(model), given, shared).logits[0]
        torch.testing.assert_close(logits, alone(model, given[0]), atol=1e-4, rtol=1e-4)


def test_a_continuation_leaves_the_others_as_they_were(make_model: ModelFactory) -> None:
    model, given = make_model("llama"), prompts([7, 4])
    batch = PromptBatch(ModelForward(model), given)
    first = batch.continuation(0).append([0], [5])
    batch.continuation(1).append([0, 0], [1, 2])
    assert torch.equal(batch.continuation(0).append([0], [5]), first)
