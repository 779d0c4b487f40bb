"""Forward passes of plain text: several prompts in one call, and models of any family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory, build_model

from esa_cli.errors import ModelError
from esa_cli.models.text_passes import text_forward
from esa_cli.models.text_passes.model_forward import TransformersForward, make_transformers_forward
from esa_cli.models.text_passes.text_forward import FusedForward, PromptBatch

LENGTHS = [5, 31, 1, 12, 12, 40, 3, 22, 9, 17, 2]


def prompts(lengths: list[int]) -> list[list[int]]:
    return [torch.randint(1, VOCABULARY, (length,)).tolist() for length in lengths]


def alone(model: Any, *ids: int) -> torch.Tensor:
    out: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    return out


def close(logits: torch.Tensor, model: Any, texts: list[list[int]]) -> None:
    want = torch.stack([alone(model, *ids) for ids in texts])
    torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)


def check_branches(model: Any, batch: PromptBatch, number: int, prompt: list[int]) -> None:
    """A prompt continued in several ways, some of which go on from the same one."""
    more, branches = batch.start_continuations(number), [[3], [8], [3]]
    logits = more.append_tokens([0, 0, 0], [3, 8, 3])
    for parents, tokens in (([2, 1], [4, 5]), ([0, 0, 1], [6, 7, 8]), ([1], [9])):
        close(logits, model, [prompt + own for own in branches])
        logits = more.append_tokens(parents, tokens)
        branches = [[*branches[at], token] for at, token in zip(parents, tokens, strict=True)]
    close(logits, model, [prompt + own for own in branches])


@pytest.mark.parametrize(
    ("family", "kind", "group"),
    [
        ("llama", TransformersForward, 1), ("mistral", TransformersForward, 3),
        ("qwen2", FusedForward, 8), ("qwen3", FusedForward, 100),
    ],
)  # fmt: skip
def test_prompts_and_continuations_are_those_of_each_alone(
    family: str,
    kind: Callable[[Any], Any],
    group: int,
    make_model: ModelFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_forward, "GROUP", group)
    model, texts = make_model(family), prompts(LENGTHS)
    batch = PromptBatch(kind(model), texts)
    assert batch.logits.dtype == torch.float32
    close(batch.logits, model, texts)
    first = batch.start_continuations(0).append_tokens([0], [5])
    for number in (5, 2, 0):
        check_branches(model, batch, number, texts[number])
    again = batch.start_continuations(0).append_tokens([0], [5])
    assert torch.equal(again, first), "it was left as it was"


SMALL: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_attention_heads": 4}
LAYERS: dict[str, Any] = {**SMALL, "num_hidden_layers": 2}
CHUNKED = {
    **LAYERS, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32,
    "intermediate_size_mlp": 32, "num_local_experts": 2, "attention_chunk_size": 8,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "falcon": ("Falcon", LAYERS),
    "falcon with alibi": ("Falcon", {**LAYERS, "alibi": True}),
    "bloom": ("Bloom", {**SMALL, "n_layer": 2}),
    "opt": ("OPT", {**LAYERS, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "llama4_text": ("Llama4", CHUNKED),
}


def make(kind: str) -> Any:
    import transformers

    name, sizes = MODELS[kind]
    config = getattr(transformers, f"{name}{'Text' if '_text' in kind else ''}Config")(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for one in model.parameters():  # small ones would hide what is left out
            if one.dim() > 1:
                torch.nn.init.normal_(one, std=0.3)
    return model


@pytest.mark.parametrize("kind", [*MODELS, "lfm2", "qwen3_next", "granitemoehybrid", "falcon_h1"])
@torch.inference_mode()
def test_models_of_any_family(kind: str) -> None:
    """Prompts of other lengths that begin alike do not share what follows."""
    model = make(kind) if kind in MODELS else build_model(kind)
    forward = make_transformers_forward(model)
    first = torch.randint(1, 50, (4,)).tolist()
    texts = [first + torch.randint(1, 50, (n,)).tolist() for n in (5, 30, 9, 1)]
    batch = PromptBatch(forward, texts)
    close(batch.logits, model, texts)
    check_branches(model, batch, 1, texts[1])
    for own in (3, 8):
        close(batch.start_continuations(2).append_tokens([0], [own]), model, [[*texts[2], own]])


def test_models_that_look_at_later_tokens_are_refused() -> None:
    from transformers import BertConfig, BertLMHeadModel

    model = BertLMHeadModel(BertConfig(**LAYERS, intermediate_size=64)).eval()
    for one in model.parameters():
        if one.dim() > 1:
            torch.nn.init.normal_(one, std=0.3)
    with pytest.raises(ModelError, match="'bert'"):
        make_transformers_forward(model)


@torch.inference_mode()
def test_logits_that_are_not_the_last_matrix_alone_are_refused() -> None:
    model = make("gpt2")
    model.register_forward_hook(
        lambda module, inputs, output: output.__setitem__("logits", 2 * output.logits)
    )
    with pytest.raises(ModelError, match="'gpt2' in float32"):
        make_transformers_forward(model)


def test_models_without_a_cache_of_transformers_are_refused() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, state_size=4)
    with pytest.raises(ModelError, match="'mamba'"):
        make_transformers_forward(MambaForCausalLM(config).eval())
