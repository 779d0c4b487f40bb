"""Forward passes of plain text: several prompts in one call, and models of any family."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory, build_model

from esa_cli.errors import ModelError
from esa_cli.models.text_passes import text_forward
from esa_cli.models.text_passes.layer_calls import before_each_layer
from esa_cli.models.text_passes.small_decoder import FusedForward
from esa_cli.models.text_passes.text_forward import (
    ModelForward,
    PromptBatch,
    WholeForward,
    plain_forward,
    scaled_logits,
)

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


SMALL: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_attention_heads": 4}
LAYERS: dict[str, Any] = {**SMALL, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any], type]] = {
    "gpt2": ("GPT2", {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4}, ModelForward),
    "falcon": ("Falcon", LAYERS, ModelForward),
    "falcon with alibi": ("Falcon", {**LAYERS, "alibi": True}, ModelForward),
    "bloom": ("Bloom", {**SMALL, "n_layer": 2}, ModelForward),
    "gpt_neox": ("GPTNeoX", {**LAYERS, "intermediate_size": 64}, ModelForward),
    "opt": ("OPT", {**LAYERS, "ffn_dim": 64, "word_embed_proj_dim": 32}, ModelForward),
    "mamba": (
        "Mamba",
        {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        WholeForward,
    ),
    "llama4_text": (
        "Llama4",
        {**LAYERS, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32}
        | {"intermediate_size_mlp": 32, "num_local_experts": 2, "attention_chunk_size": 8},
        ModelForward,
    ),
}


def make(kind: str) -> Any:
    import transformers

    name, sizes, _ = MODELS[kind]
    config = getattr(transformers, f"{name}{'Text' if '_text' in kind else ''}Config")(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for one in model.parameters():  # small ones would hide what is left out
            if one.dim() > 1:
                torch.nn.init.normal_(one, std=0.3)
    return model


def alone_by_the_model(model: Any, ids: list[int]) -> torch.Tensor:
    out: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    return out


@pytest.mark.parametrize("kind", MODELS)
@torch.inference_mode()
def test_logits_are_the_models_own(kind: str) -> None:
    model = make(kind)
    forward = plain_forward(model)
    assert type(forward) is MODELS[kind][2]
    first = torch.randint(1, 61, (4,)).tolist()
    prompts = [first + torch.randint(1, 61, (n,)).tolist() for n in (5, 20, 1, 12)]
    batch = PromptBatch(forward, prompts, 4)
    want = torch.stack([alone_by_the_model(model, ids) for ids in prompts])
    torch.testing.assert_close(batch.logits, want, atol=1e-4, rtol=1e-4)
    more, branches = batch.continuation(3), [[3], [8]]
    logits = more.append([0, 0], [3, 8])
    for parents, tokens in (([1, 0, 1], [4, 5, 6]), ([2], [9])):
        want = torch.stack([alone_by_the_model(model, prompts[3] + own) for own in branches])
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)
        logits = more.append(parents, tokens)
        branches = [[*branches[one], token] for one, token in zip(parents, tokens, strict=True)]


def test_the_soft_cap_of_an_unknown_model_is_its_own() -> None:
    known: Any = SimpleNamespace(model_type="new", final_logit_softcapping=0.1)
    logits = torch.tensor([0.05, 3.0])
    torch.testing.assert_close(scaled_logits(logits, known), 0.1 * torch.tanh(logits / 0.1))


def test_models_that_look_at_later_tokens_are_refused() -> None:
    from transformers import BertConfig, BertLMHeadModel

    sizes = {**LAYERS, "intermediate_size": 64}
    model = BertLMHeadModel(BertConfig(**sizes)).eval()
    for one in model.parameters():
        if one.dim() > 1:
            torch.nn.init.normal_(one, std=0.3)
    with pytest.raises(ModelError, match="'bert' look at later tokens"):
        plain_forward(model)


@pytest.mark.parametrize(("dtype", "hint"), [("float16", "--dtype float32"), ("float32", "files")])
def test_logits_that_are_no_numbers_name_the_type(dtype: str, hint: str) -> None:
    """NaN is close to nothing: the model was said to look at later tokens."""
    model = make("gpt2").to(getattr(torch, dtype))
    model.base_model.ln_f.weight.data[0] = torch.nan
    with pytest.raises(ModelError, match=f"got NaN or infinity in {dtype}") as raised:
        plain_forward(model)
    assert hint in raised.value.hint


@pytest.mark.parametrize("last", range(1, 9))
def test_what_ends_a_pass_ends_the_trial(last: int) -> None:
    class StoppedError(Exception):
        pass

    def stop() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise StoppedError

    model, left = make("gpt2"), last
    with before_each_layer(model, stop), pytest.raises(StoppedError):
        plain_forward(model)
    assert type(plain_forward(model)) is ModelForward


def test_logits_that_are_not_the_last_matrix_alone_are_the_models_own() -> None:
    model, ids = make("gpt2"), [1, 2, 3]

    def double(module: Any, inputs: Any, output: Any) -> Any:
        output.logits = 2 * output.logits
        return output

    model.register_forward_hook(double)
    with torch.inference_mode():
        forward = plain_forward(model)
        assert type(forward) is WholeForward
        torch.testing.assert_close(
            PromptBatch(forward, [ids]).logits[0], alone_by_the_model(model, ids)
        )


def test_minus_infinity_is_the_models_own() -> None:
    """A model may give it to tokens that it never writes."""
    model, ids = make("gpt2"), [1, 2, 3]

    def mask(module: Any, inputs: Any, output: Any) -> Any:
        output.logits[..., 7] = -torch.inf
        return output

    model.register_forward_hook(mask)
    with torch.inference_mode():
        forward = plain_forward(model)
        torch.testing.assert_close(
            PromptBatch(forward, [ids]).logits[0], alone_by_the_model(model, ids)
        )


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_next", "granitemoehybrid", "falcon_h1"])
@torch.inference_mode()
def test_prompts_that_begin_alike_do_not_share_what_follows(kind: str) -> None:
    model = build_model(kind)
    forward = plain_forward(model)
    assert type(forward) is ModelForward
    first = torch.randint(1, 50, (4,)).tolist()
    prompts = [first + torch.randint(1, 50, (n,)).tolist() for n in (5, 9, 1)]
    batch = PromptBatch(forward, prompts, 4)
    want = torch.stack([alone_by_the_model(model, ids) for ids in prompts])
    torch.testing.assert_close(batch.logits, want, atol=1e-4, rtol=1e-4)
    for own in (3, 8):
        [logits] = batch.continuation(1).append([0], [own])
        want = alone_by_the_model(model, [*prompts[1], own])
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)
