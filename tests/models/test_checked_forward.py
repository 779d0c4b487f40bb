"""Forward passes of models that no method is attached to, against the model's own logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import build_model

from esa_cli.errors import ModelError
from esa_cli.models.text_passes.layer_calls import before_each_layer
from esa_cli.models.text_passes.text_forward import (
    ModelForward,
    PromptBatch,
    WholeForward,
    plain_forward,
    scaled_logits,
)

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


def alone(model: Any, ids: list[int]) -> torch.Tensor:
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
    want = torch.stack([alone(model, ids) for ids in prompts])
    torch.testing.assert_close(batch.logits, want, atol=1e-4, rtol=1e-4)
    more, branches = batch.continuation(3), [[3], [8]]
    logits = more.append([0, 0], [3, 8])
    for parents, tokens in (([1, 0, 1], [4, 5, 6]), ([2], [9])):
        want = torch.stack([alone(model, prompts[3] + own) for own in branches])
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
        torch.testing.assert_close(PromptBatch(forward, [ids]).logits[0], alone(model, ids))


def test_minus_infinity_is_the_models_own() -> None:
    """A model may give it to tokens that it never writes."""
    model, ids = make("gpt2"), [1, 2, 3]

    def mask(module: Any, inputs: Any, output: Any) -> Any:
        output.logits[..., 7] = -torch.inf
        return output

    model.register_forward_hook(mask)
    with torch.inference_mode():
        forward = plain_forward(model)
        torch.testing.assert_close(PromptBatch(forward, [ids]).logits[0], alone(model, ids))


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_next", "granitemoehybrid", "falcon_h1"])
@torch.inference_mode()
def test_prompts_that_begin_alike_do_not_share_what_follows(kind: str) -> None:
    model = build_model(kind)
    forward = plain_forward(model)
    assert type(forward) is ModelForward
    first = torch.randint(1, 50, (4,)).tolist()
    prompts = [first + torch.randint(1, 50, (n,)).tolist() for n in (5, 9, 1)]
    batch = PromptBatch(forward, prompts, 4)
    want = torch.stack([alone(model, ids) for ids in prompts])
    torch.testing.assert_close(batch.logits, want, atol=1e-4, rtol=1e-4)
    for own in (3, 8):
        [logits] = batch.continuation(1).append([0], [own])
        want = alone(model, [*prompts[1], own])
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)
