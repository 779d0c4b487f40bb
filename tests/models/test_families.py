"""Every family of the table against the same models with stock attention: tiny random models with
random norms and biases, full budget, true positions."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import HYBRID, KINDS, PARTIAL, build_model
from stock_attention import LENGTH, close, everything, in_pieces, tokens
from transformers import PreTrainedModel

from esa_cli.attention.method import Method
from esa_cli.attention.positions import ContiguousPositions
from esa_cli.attention.window import Phase, QueryState, Window
from esa_cli.methods.registry import RECIPES
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach
from esa_cli.models.attachment.fingerprint import compute_model_fingerprint
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.attachment.layer_traits import get_kv_dtype
from esa_cli.models.files.families import FAMILIES, list_layer_cache_kinds
from esa_cli.qa.planning.model_shape import read_model_shape
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import resolve_preset
from esa_cli.storage.library import Layout, Library
from esa_cli.storage.library.stored_cache import KVCacheWriter, StoredKVCache
from esa_cli.storage.memory_store import AppendableKVStoreChain, KVStoreSlice, MemoryKVStore

pytestmark = pytest.mark.families

PLAIN = {"rope_type": "default", "rope_theta": 1000.0}
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 4.0, 8.0], "original_max_position_embeddings": 32,
}  # fmt: skip
ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}
EXPERTS_OF_GEMMA = {
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
}  # fmt: skip
SAME_KEYS_AND_VALUES = {
    "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
}  # fmt: skip
ODD: dict[str, tuple[str, dict[str, Any]]] = {
    # name: family, changes of its tiny configuration
    "longrope": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32}),
    "half of yarn": ("glm4", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}),
    "window beyond the limit": ("phi3", {"sliding_window": 512}),
    "three quarters of a head": (
        "glm4", {"rope_parameters": {**PARTIAL, "partial_rotary_factor": 0.75}}
    ),
    "hunyuan with a fixed alpha": ("hunyuan_v1_dense", {"rope_parameters": ALPHA}),
    "exaone4 with windows": ("exaone4", HYBRID),
    "smollm3 with windows": ("smollm3", {**HYBRID, "use_sliding_window": True}),
    "yarn in full layers": (
        "olmo3", {"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}}
    ),
    "a window after full attention": (
        "gpt_oss", {"layer_types": ["full_attention", "sliding_attention"]}
    ),
    "yarn of latents": (
        "deepseek_v3", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}
    ),
    "latents of halves": ("deepseek_v3", {"rope_interleave": False, "q_lora_rank": None}),
    "granite 4 with rotation": ("granitemoehybrid", {"position_embedding_type": "rope"}),
    "granite 4 without states": ("granitemoehybrid", {"layer_types": ["full_attention"] * 2}),
    "gemma4 with experts": ("gemma4_text", EXPERTS_OF_GEMMA),
    "gemma4 whose keys are values": ("gemma4_text", SAME_KEYS_AND_VALUES),
    "no layer rotates": ("smollm3", {"no_rope_layers": [0, 0]}),
    "the first layer does not rotate": ("smollm3", {"no_rope_layers": [0, 1]}),
}  # fmt: skip
"""Settings of known models that the tiny configurations do not have."""


def family_model(kind: str, **changes: Any) -> PreTrainedModel:
    """A tiny model whose norms and biases are random, too: with norms of ones a norm behind the
    rotation would pass for one before."""
    assert KINDS.keys() == FAMILIES.keys(), "the tiny models are those of the table"
    model = build_model(kind, **changes)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.dim() == 1 or min(parameter.shape) < 9:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def case(name: str) -> PreTrainedModel:
    kind, changes = ODD.get(name, (name, {}))
    return family_model(kind, **changes)


@functools.cache
def tolerance(name: str) -> float:
    """How far other orders of addition may move logits: three times what weights do that are off
    by 1e-7, a rounding of float32. Norms of nearly nothing make a hundred times as much of it, of
    Gemma 4 more than of others; stock attention fed in pieces is as far off stock attention of
    the whole, and in float64 the two are 1e-13 apart."""
    ids, moved = tokens(), 0.0
    want = case(name)(ids).logits
    for seed in range(3):
        model, generator = case(name), torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter *= 1 + 1e-7 * torch.randn(parameter.shape, generator=generator)
        moved = max(moved, (model(ids).logits - want).abs().max().item())
    return min(max(3e-5, 3 * moved), 3e-4)


@pytest.mark.parametrize("name", [*FAMILIES, *ODD])
def test_every_chunk_size_is_stock_attention(name: str) -> None:
    model, ids = case(name), tokens()
    want = model(ids).logits
    for chunk, dense in ((1, 0), (7, 0), (64, 0), (64, None), (1000, 0)):
        length = 40 if chunk == 1 else LENGTH
        with attach(model, everything(chunk, dense)) as attached:
            cache = attached.new_cache()
            got = model(ids[:, :length], past_key_values=cache).logits
            close(got, want[:, :length], tolerance(name))
            assert cache.get_seq_length() == length
    assert torch.equal(model(ids).logits, want)


@pytest.mark.parametrize("name", [*FAMILIES, *ODD])
def test_cropped_and_replayed(name: str) -> None:
    model, ids = case(name), tokens()
    want = model(ids).logits
    with attach(model, everything(7)) as attached:
        cache, apart = attached.new_cache(), tolerance(name)
        close(in_pieces(model, cache, ids[:, :40], 13), want[:, :40], apart)
        cache.store_state_snapshot()
        close(in_pieces(model, cache, ids[:, 40:], 13), want[:, 40:], apart)
        cache.crop(-30)
        model(ids[:, :25], past_key_values=cache)
        cache.truncate(40)
        close(in_pieces(model, cache, ids[:, 40:64], 13), want[:, 40:64], apart)
        cache.store_state_snapshot()
        model(ids[:, 64:], past_key_values=cache)
        cache.truncate(64)
        close(in_pieces(model, cache, ids[:, 64:], 1), want[:, 64:], apart)


@pytest.mark.parametrize("name", [*FAMILIES, *ODD])
def test_stored_and_reopened(name: str, tmp_path: Path) -> None:
    model, ids = case(name), tokens()
    want = model(ids).logits
    # Its score reads whole keys: no reduced ones need to be stored.
    method = dataclasses.replace(everything(16), score=VoteScore())
    with attach(model, method) as attached:
        cache = attached.new_cache()
        model(ids[:, :60], past_key_values=cache)
        again = attached.new_cache()
        rows, states = stored(cache, ids[0, :60].tolist(), tmp_path)
        again.use_filled_kv_stores(rows, None, recurrent_states=states)
        got = model(ids[:, 60:], past_key_values=again).logits
        close(got, want[:, 60:], tolerance(name))
        assert torch.equal(got, model(ids[:, 60:], past_key_values=cache).logits)


def stored(
    cache: EsaCache, ids: list[int], path: Path
) -> tuple[list[AppendableKVStoreChain], list[dict[str, torch.Tensor]]]:
    """The cached rows of all layers, from a library on disk, each with an empty tail; and the
    states of those that keep one."""
    kept = [one.store for one in cache.layer_kv_caches]
    first = kept[0]
    shapes = tuple((one.heads, one.dim) for one in kept)
    states = cache.states.copy_states()
    layout = Layout(
        len(kept), *shapes[0], "float32", segment=16, shared=first.shared, states=len(states),
        shapes=shapes if len({*shapes}) > 1 else (),
    )  # fmt: skip
    library = Library(path)
    key = library.compute_key("model", "text")
    with library.open_writer(KVCacheWriter, key, "model", ids, layout) as writer:
        for layer, store in zip(writer.layers, kept, strict=True):
            layer.append(*store.span(0, len(ids)))
        writer.write_complete_segments(None)
        entry = writer.finish_document(
            text="text", offsets=[(0, 1)] * len(ids), projections=[None] * len(kept), states=states
        )
    opened = StoredKVCache(library.open_document(entry))
    stores = opened.layers
    place = torch.float32, torch.device("cpu")
    tails = [MemoryKVStore(*shape, *place, first.shared) for shape in shapes]
    joined = [
        AppendableKVStoreChain([KVStoreSlice(store, 0, len(ids))], tail)
        for store, tail in zip(stores, tails, strict=True)
    ]
    return joined, opened.states


@pytest.mark.parametrize("name", [*FAMILIES, *ODD])
def test_generate_is_stock_generate(name: str) -> None:
    """The text crosses the 32 tokens where longrope would change."""
    model, ids = case(name), tokens(40 if name != "longrope" else 60)
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    want = model.generate(ids, **options)
    with attach(model, everything(7)) as attached:
        cache = attached.new_cache()
        model(ids[:, :25], past_key_values=cache)
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), want)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_method_runs_and_text_is_read_beside_it(family: str) -> None:
    """A small budget gives other logits; suspended, plain text gives the model's own."""
    model, ids = family_model(family), tokens()
    want = model(ids).logits
    window = Window(initial=4, selected=12, local=8, chunk=8)
    with attach(model, Method(window=window, position=ContiguousPositions(40))) as attached:
        got = model(ids, past_key_values=attached.new_cache()).logits
        with attached.suspend_method():
            close(model(ids).logits, want)
    assert torch.isfinite(got).all()
    assert (got[:, 40:] - want[:, 40:]).abs().max() > 0.05 * min(1, float(want.std()))


MANY = [
    "half of yarn",
    "the first layer does not rotate",
    "deepseek_v3",
    "lfm2",
    "nemotron_h",
    "hunyuan_v1_dense",
    "gemma3n_text",
]


@pytest.mark.parametrize("name", MANY)
def test_every_method_runs(name: str) -> None:
    """On models whose heads or layers rotate in part, on latents, beside states, and in layers that
    read others' rows."""
    sizes = ("initial=4", "selected=16", "local=8", "chunk=8")
    overrides = [*(f"window.{size}" for size in sizes), "position.distance=40"]
    model, ids = case(name), tokens(44)
    for recipe in [*RECIPES.values()]:  # the first use of a part loads all parts
        method = resolve_preset(load_preset("tiny-random", overrides), recipe.name, 44).method
        with attach(model, method) as attached:
            cache = attached.new_cache()
            cache.begin_query(QueryState(Phase.PREFILL))
            model(ids[:, :36], past_key_values=cache)
            cache.begin_query(QueryState(Phase.QUESTION))
            logits = in_pieces(model, cache, ids[:, 36:], 7)
        assert torch.isfinite(logits).all(), recipe.name


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_model_is_made_of(family: str) -> None:
    model = family_model(family)
    found, before = compute_model_fingerprint(model), model.config.to_dict()
    rows = sum(one in ("attention", "both") for one in list_layer_cache_kinds(model.config))
    assert (found.kind, found.layers, found.heads) == (
        family,
        rows,
        model.config.num_attention_heads,
    )
    assert get_kv_dtype(model) == torch.float32
    with attach(model, everything(7)) as attached:
        cache = attached.new_cache()
        model(tokens(5), past_key_values=cache)
        store = cache.get_layer_kv_cache(attached.method_layers[0]).store
        assert (store.heads, store.dim) == (found.groups, found.dim)
        shape = read_model_shape(before)
        assert (store.heads, store.dim) == (shape.groups, shape.dim)
        state_bytes = sum(tensor.nbytes for tensor in cache.states.list_state_tensors())
        assert cache.nbytes - state_bytes == 5 * shape.numbers * 4
        assert state_bytes == shape.count_recurrent_state_bytes(4)
    assert model.config.to_dict() == before
