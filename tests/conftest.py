"""Tiny random models and a torch that behaves the same in every run.

What takes seconds to import is imported in functions: the process that only hands tests to others
loads this file too, and needs none of it.
"""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from esa_cli.attention.parts import Score
    from esa_cli.attention.rope import Rope
    from esa_cli.attention.step import Projection, Step
    from esa_cli.models.loading.load import LoadedModel

if not any(Path("/dev", name).exists() for name in ("nvidiactl", "dxg")):
    # Before anything imports Triton: its interpreter then runs kernels on the processor.
    os.environ.setdefault("TRITON_INTERPRET", "1")

VOCABULARY = 61
SEED = 1234
LIBRARIES = itertools.count()

ModelFactory = Callable[..., "PreTrainedModel"]

GROUPED: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 2}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
PARTIAL = {**PLAIN, "partial_rotary_factor": 0.5}
EAGER = {"attn_implementation": "eager"}
HYBRID = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
# Smaller weights than others have: these layers make much of rounding, in pieces 1e-4 of logits.
DELTA: dict[str, Any] = {
    **GROUPED,
    "initializer_range": 0.05,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
}
READING = {
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 12,
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
    "num_kv_shared_layers": 3,
    "sliding_window": 12,
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": VOCABULARY,
}
"""The last three layers read the rows of the first two, which are of two sizes."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

# Query heads, key heads and head dimension: grouped 1:1, 3:1 and 8:1.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}),
    "mistral": (
        "Mistral",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 16,
            "sliding_window": None,
        },
    ),
    "qwen2": ("Qwen2", {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3", {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16}),
    "granite": (
        "Granite",
        {
            **GROUPED,
            "attention_multiplier": 0.6,
            "embedding_multiplier": 2.0,
            "logits_scaling": 4.0,
        },
    ),
    "olmo2": ("Olmo2", GROUPED),
    "phi3": ("Phi3", {**GROUPED, "rope_parameters": PARTIAL}),
    "glm4": ("Glm4", {**GROUPED, "head_dim": 8, "attention_bias": True}),
    "smollm3": ("SmolLM3", {**GROUPED, "no_rope_layers": [1, 0]}),
    "mixtral": ("Mixtral", {**GROUPED, "num_local_experts": 4}),
    "qwen2_moe": ("Qwen2Moe", {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3_moe": ("Qwen3Moe", {**GROUPED, **EXPERTS, "head_dim": 8}),
    "starcoder2": ("Starcoder2", {**GROUPED, "sliding_window": None}),
    "stablelm": ("StableLm", {**GROUPED, "rope_parameters": PARTIAL, "qk_layernorm": True}),
    "seed_oss": ("SeedOss", {**GROUPED, "head_dim": 8}),
    "ernie4_5": ("Ernie4_5", {**GROUPED, "head_dim": 8}),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {**GROUPED, "head_dim": 8, "moe_num_experts": 16, "moe_k": 2, "moe_intermediate_size": 16},
    ),
    "arcee": ("Arcee", {**GROUPED, "head_dim": 8}),
    "apertus": ("Apertus", {**GROUPED, "rope_parameters": PLAIN}),
    "helium": ("Helium", {**GROUPED, "head_dim": 8}),
    "granitemoe": (
        "GraniteMoe",
        {
            **GROUPED,
            "attention_multiplier": 0.6,
            "embedding_multiplier": 2.0,
            "logits_scaling": 4.0,
            "num_local_experts": 4,
        },
    ),
    "granitemoeshared": (
        "GraniteMoeShared",
        {
            **GROUPED,
            "attention_multiplier": 0.6,
            "logits_scaling": 4.0,
            "num_local_experts": 4,
            "shared_intermediate_size": 16,
        },
    ),
    "glm": ("Glm", {**GROUPED, "head_dim": 8}),
    "glm4_moe": (
        "Glm4Moe",
        {
            **GROUPED,
            "head_dim": 8,
            "use_qk_norm": True,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "minimax_m2": (
        "MiniMaxM2",
        {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "olmo": ("Olmo", {**GROUPED, "clip_qkv": 1.5}),
    "olmoe": ("Olmoe", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "flex_olmo": ("FlexOlmo", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("Gemma", {**GROUPED, "head_dim": 16}),
    "phi": ("Phi", {**GROUPED, "rope_parameters": PARTIAL, "qk_layernorm": True}),
    "phimoe": ("Phimoe", {**GROUPED, "num_local_experts": 4}),
    "nemotron": ("Nemotron", {**GROUPED, "head_dim": 8, "initializer_range": 0.1}),
    "cohere": ("Cohere", {**GROUPED, "use_qk_norm": True, "logit_scale": 0.5}),
    "dots1": (
        "Dots1",
        {
            **GROUPED,
            "head_dim": 8,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "nanochat": ("NanoChat", {**GROUPED}),
    "hyperclovax": (
        "HyperCLOVAX",
        {
            **GROUPED,
            "head_dim": 8,
            "attention_multiplier": 0.6,
            "logits_scaling": 0.5,
            "embedding_multiplier": 2.0,
        },
    ),
    "jais2": ("Jais2", {**GROUPED, "head_dim": 8}),
    "solar_open": (
        "SolarOpen",
        {
            **GROUPED,
            "head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "bitnet": ("BitNet", {**GROUPED}),
    "hy_v3": (
        "HYV3",
        {
            **GROUPED,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "hunyuan_v1_dense": ("HunYuanDenseV1", {**GROUPED, "head_dim": 8}),
    "hunyuan_v1_moe": ("HunYuanMoEV1", {**GROUPED, "head_dim": 8, "num_experts": 4, "moe_topk": 2}),
    "exaone4": (
        "Exaone4",
        {**GROUPED, "head_dim": 8, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "gemma2": (
        "Gemma2",
        {**GROUPED, **EAGER, **HYBRID, "head_dim": 8, "attn_logit_softcapping": 2.0},
    ),
    "gemma3_text": ("Gemma3Text", {**GROUPED, **HYBRID, "head_dim": 8}),
    "gemma3n_text": (
        "Gemma3nText",
        {
            **{name: READING[name] for name in READING if "global" not in name},
            "altup_num_inputs": 2,
            "laurel_rank": 4,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0],
        },
    ),
    "gemma4_text": ("Gemma4Text", {**READING, "use_double_wide_mlp": True}),
    "gemma4_unified_text": (
        "Gemma4UnifiedText",
        {name: READING[name] for name in READING if "per_layer_input" not in name},
    ),
    "gpt_oss": (
        "GptOss",
        {
            **GROUPED,
            **EAGER,
            **HYBRID,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "initializer_range": 0.15,
        },
    ),
    "olmo3": ("Olmo3", {**GROUPED, **HYBRID}),
    "cohere2": ("Cohere2", {**GROUPED, **HYBRID, "head_dim": 8, "logit_scale": 0.5}),
    "cwm": ("Cwm", {**GROUPED, **HYBRID, "head_dim": 8, "bos_token_id": 1}),
    "ministral": ("Ministral", {**GROUPED, **HYBRID, "head_dim": 8}),
    "ministral3": (
        "Ministral3",
        {
            **GROUPED,
            "head_dim": 8,
            "sliding_window": None,
            "rope_parameters": {
                **PLAIN,
                "llama_4_scaling_beta": 0.2,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "deepseek_v3": ("DeepseekV3", {**LATENT, **ROUTED}),
    "deepseek_v2": ("DeepseekV2", {**LATENT, **ROUTED}),
    "glm4_moe_lite": ("Glm4MoeLite", {**LATENT, **ROUTED}),
    "minicpm3": ("MiniCPM3", {**LATENT, "dim_model_base": 12, "scale_emb": 2, "q_lora_rank": None}),
    "youtu": ("Youtu", LATENT),
    "mistral4": (
        "Mistral4",
        {
            **LATENT,
            **ROUTED,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.2,
            },
        },
    ),
    "longcat_flash": (
        "LongcatFlash",
        {
            **LATENT,
            "head_dim": 8,
            "num_layers": 1,
            "ffn_hidden_size": 64,
            "expert_ffn_hidden_size": 16,
            "n_routed_experts": 4,
            "zero_expert_num": 1,
            "moe_topk": 2,
        },
    ),
    "axk1": ("AXK1", {**LATENT, **ROUTED}),
    "lfm2": ("Lfm2", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": (
        "Lfm2Moe",
        {
            **GROUPED,
            **EXPERTS,
            "layer_types": ["full_attention", "conv"],
            "num_dense_layers": 1,
            "conv_bias": True,
        },
    ),
    "lfm3": (
        "Lfm3",
        {
            **GROUPED,
            "head_dim": 8,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "sliding_attention", "full_attention"],
            "sliding_window": 12,
        },
    ),
    "qwen3_next": ("Qwen3Next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3_5_text": ("Qwen3_5Text", DELTA),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeText",
        {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        {
            **GROUPED,
            **MAMBA,
            "layer_types": ["linear_attention", "full_attention"],
            "attention_multiplier": 0.6,
            "logits_scaling": 4.0,
            "num_local_experts": 4,
            "shared_intermediate_size": 16,
        },
    ),
    "nemotron_h": (
        "NemotronH",
        {
            **GROUPED,
            "head_dim": 8,
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "mamba_num_heads": 6,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 2,
            "chunk_size": 8,
            "n_routed_experts": 4,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
        },
    ),
    "falcon_h1": (
        "FalconH1",
        {**GROUPED, **MAMBA, "mamba_d_ssm": 96, "key_multiplier": 0.7, "lm_head_multiplier": 0.5},
    ),
    "olmo_hybrid": ("OlmoHybrid", DELTA),
    "afmoe": (
        "Afmoe",
        {
            **GROUPED,
            **HYBRID,
            **EXPERTS,
            "head_dim": 8,
            "num_dense_layers": 1,
            "num_shared_experts": 1,
        },
    ),
    "cohere2_moe": (
        "Cohere2Moe",
        {
            **GROUPED,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "logit_scale": 0.5,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "sliding_window": 12,
        },
    ),
    "exaone_moe": (
        "ExaoneMoe",
        {
            **GROUPED,
            **HYBRID,
            **EXPERTS,
            "head_dim": 8,
            "num_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "laguna": (
        "Laguna",
        {
            **GROUPED,
            **HYBRID,
            **EXPERTS,
            "head_dim": 8,
            "num_attention_heads_per_layer": [4, 6],
            "shared_expert_intermediate_size": 16,
        },
    ),
    "mellum": ("Mellum", {**GROUPED, **HYBRID, **EXPERTS, "head_dim": 8}),
    "kolibri1": (
        "Kolibri1",
        {
            **GROUPED,
            **HYBRID,
            **EXPERTS,
            **ROUTED,
            "first_k_dense_replace": 0,
            "head_dim": 8,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "flint": (
        "Flint",
        {
            **GROUPED,
            **EAGER,
            **HYBRID,
            **EXPERTS,
            "num_experts": 16,
            "mlp_only_layers": [0],
            "head_dim": 8,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "vaultgemma": (
        "VaultGemma",
        {**GROUPED, **EAGER, **HYBRID, "head_dim": 8, "attn_logit_softcapping": 2.0},
    ),
    "gpt_neox": ("GPTNeoX", {"num_attention_heads": 6, "rope_parameters": PARTIAL}),
    "persimmon": (
        "Persimmon",
        {"num_attention_heads": 6, "rope_parameters": PARTIAL, "qk_layernorm": True},
    ),
}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected and imported stays to the end: looking through it for garbage again and
    again would take a third of the time of collecting, and later a tenth of the tests'."""
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries whose objects are still there when Python ends say that they leaked."""
    gc.unfreeze()


def copy_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    from esa_cli.methods import plugin_loading
    from esa_cli.system import registry

    assert plugin_loading
    for one in registry._REGISTRIES:
        monkeypatch.setattr(one, "_entries", dict(one._entries))


def seed_everything(seed: int) -> None:
    """As `torch.manual_seed`, which reads the files of its whole call stack where there is no GPU:
    milliseconds, thousands of times."""
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def build_model(kind: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model of a few thousand parameters; larger weights than usual, so that attention is
    far from uniform and a wrong position or a missing key shows."""
    import transformers

    family, shape = KINDS[kind]
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        **shape,
        **changes,
    }
    config = getattr(transformers, f"{family}Config")(**options)
    seed_everything(seed)
    model: PreTrainedModel = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(
        config
    )
    return model.float().eval()


@pytest.fixture(scope="session")
def make_model() -> ModelFactory:
    """`make_model(kind, seed=0, **config)`: a new model each time, never shared between tests."""
    return build_model


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    """The tiny random model with its tokenizer, and a home of its own for the whole module."""
    from esa_cli import models

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESA_HOME", str(tmp_path_factory.mktemp("home")))
        yield models.load("random:llama", device="cpu", dtype="float32")


FSYNC = os.fsync


@pytest.fixture(autouse=True)
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that kill processes wait for the disk as users' processes do: their kills are to fall
    among the writes."""
    if request.node.get_closest_marker("process"):
        monkeypatch.setattr(os, "fsync", FSYNC)


@pytest.fixture(scope="session", autouse=True)
def once() -> Iterator[None]:
    """One thread; and what a program does once when it starts is not done for every test: making
    the commands, parsing the presets, and a while of arithmetic to see how fast the machine is.
    Nothing waits for the disk: no test cuts the power."""
    import torch

    from esa_cli.apps.cli import cli_app as app
    from esa_cli.qa.planning import plan
    from esa_cli.qa.presets import preset_files
    from esa_cli.storage.library import catalogue as catalogue_file

    torch.set_num_threads(1)
    parsed = functools.cache(preset_files.load_yaml)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "command", functools.cache(app.command))
        patch.setattr(preset_files, "load_yaml", lambda text: copy.deepcopy(parsed(text)))
        patch.setattr(plan, "SECONDS", 0.001)
        patch.setattr(os, "fsync", os.fstat)
        tables = "PRAGMA synchronous = OFF;" + catalogue_file._TABLES
        patch.setattr(catalogue_file, "_TABLES", tables)
        yield


@pytest.fixture(autouse=True)
def own_library(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands keep what a preset's finder reads: a library of the test's own, made when used."""
    root = tmp_path_factory.getbasetemp() / f"library-{next(LIBRARIES)}"
    monkeypatch.setenv("ESA_LIBRARY", str(root))


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """A shell's background jobs start with SIGINT ignored, and esa ignores it while it ends after
    one; tests of Ctrl-C need it heeded."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """A fixed seed, no gradients, and NaN in memory nobody wrote to."""
    import torch

    seed_everything(SEED)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    with torch.no_grad():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tokens: a random model goes on to the last one that it is allowed, of hundreds."""
    from esa_cli.qa.answering.session import Answer, Session

    ask = Session.ask

    def short(self: Session, *given: Any, max_new_tokens: int = 8, **options: Any) -> Answer:
        return ask(self, *given, max_new_tokens=min(max_new_tokens, 8), **options)

    monkeypatch.setattr(Session, "ask", short)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row segments of 8, 8, 16, 32, 32, ... so that a few dozen tokens cross several borders."""
    monkeypatch.setattr("esa_cli.storage.memory_store.FIRST_SEGMENT", 8)
    monkeypatch.setattr("esa_cli.storage.memory_store.LAST_SEGMENT", 32)


def build_rope(dim: int, **changes: Any) -> Rope:
    """The host's rotary module for one head dimension; theta 10000 unless told otherwise."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from esa_cli.attention.rope import Rope

    config = LlamaConfig(
        hidden_size=dim, num_attention_heads=1, head_dim=dim, max_position_embeddings=256, **changes
    )
    return Rope(LlamaRotaryEmbedding(config))


def build_step(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    low: int = 0,
    after: int = 0,
    distance: int = 29,
    score: Score | None = None,
    projection: Projection | None = None,
    rope: Rope | None = None,
) -> Step:
    """A step of queries q (H, C, D) over the middle keys k (G, M, D).

    Args:
        low: random tokens put before the middle ones. after: and after them.
    """

    import torch

    from esa_cli.attention.selection import SumScore
    from esa_cli.attention.step import Step
    from esa_cli.storage.memory_store import MemoryStore

    groups, middle, dim = k.shape
    store = MemoryStore(groups, dim, k.dtype, k.device)
    before, after_keys = torch.randn(groups, low + after, dim, dtype=k.dtype).split([low, after], 1)
    keys = torch.cat((before, k, after_keys), dim=1)
    store.append(keys, torch.randn_like(keys))
    if projection is not None:
        flat = keys.transpose(0, 1).reshape(len(store), groups * dim)
        store.append_features(projection.keys(flat))
    return Step(
        layer=0,
        start=low + middle + after,
        queries=q,
        store=store,
        low=low,
        high=low + middle,
        local=after,
        distance=distance,
        scale=0.3,
        rope=rope or build_rope(dim),
        score=score or SumScore(),
        projection=projection,
    )
