"""Families of models whose layers differ, from a folder to an answer: tiny random ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import HYBRID, build_model
from stock_attention import tokens
from stored_answers import check_stored_answers

from esa_cli import models
from esa_cli.attention.step import ChunkTrace
from esa_cli.attention.window import Phase, QueryState, Window
from esa_cli.errors import ModelError, PresetError, UsageError
from esa_cli.evaluation.calibration.fitted_projections import (
    METHODS,
    AdamSettings,
    open_projection_fitter,
)
from esa_cli.models.attachment.attach import attach
from esa_cli.models.files import families
from esa_cli.models.files.random_model import write_byte_tokenizer
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import check_method_fits_model, resolve_preset

pytestmark = pytest.mark.families

TEXT = " ".join(f"Gate {n} opens at {n * n % 97} past nine." for n in range(40))
QUESTION = "When does gate 17 open?"
WINDOWS = {**HYBRID, "num_hidden_layers": 4, "layer_types": 2 * HYBRID["layer_types"]}
"""The first and third of four layers have a window of 12 tokens."""
PER_LAYER = {"vocab_size_per_layer_input": 259}
PAPER: list[str] = []
CONSENSUS = ["selector.name=consensus", "score.name=vote"]
LAST_LAYER = ["selector.name=sentences", "score.name=infiniretri"]
CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("gemma3_text", WINDOWS, CONSENSUS),
    ("gpt_oss", WINDOWS, ["selector.name=consensus", "score.name=bm25"]),
    ("nemotron_h", {"layers_block_type": 2 * ["mlp", "attention"]}, LAST_LAYER),
    ("gemma4_text", PER_LAYER, PAPER),
    ("gemma3n_text", PER_LAYER, [*CONSENSUS, "score.heads=[[1, 2], [4, 1]]"]),
    ("deepseek_v3", {}, CONSENSUS),
    ("deepseek_v2", {}, LAST_LAYER),
]
"""Windows, layers of an MLP alone, layers that read the rows of others, latents."""


def load(kind: str, folder: Path, **sizes: Any) -> Any:
    ids = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
    build_model(kind, vocab_size=259, **sizes, **ids).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return models.load(str(folder), device="cpu", dtype="float32")


@pytest.mark.parametrize(("kind", "sizes", "method"), CASES, ids=[case[0] for case in CASES])
def test_a_stored_book_answers_as_one_in_memory(
    tmp_path: Path, kind: str, sizes: dict[str, Any], method: list[str]
) -> None:
    loaded, path = load(kind, tmp_path / kind, **sizes), tmp_path / "gate.txt"
    path.write_text(TEXT, "utf-8")
    check_stored_answers(
        loaded, load_preset("tiny-random", method), path, QUESTION, tmp_path / "library"
    )


def test_heads_in_layers_that_run_no_method_are_refused() -> None:
    model: Any = build_model("gemma3_text", vocab_size=259)
    running = load_preset("tiny-random", [*CONSENSUS, "score.heads=[[1, 2]]"])
    check_method_fits_model(resolve_preset(running).method, model)
    wrong = load_preset("tiny-random", [*CONSENSUS, "score.heads=[[1, 2], [0, 1]]"])
    with pytest.raises(PresetError, match="got layer 0"):
        check_method_fits_model(resolve_preset(wrong).method, model)


def test_maps_are_fitted_to_latents(tmp_path: Path) -> None:
    loaded, chosen = load("deepseek_v3", tmp_path / "model"), load_preset("tiny-random")
    (tmp_path / "work").mkdir()
    job = open_projection_fitter(loaded, chosen, TEXT, 200, tmp_path / "work")
    job.store_queries_and_keys()
    assert job.width == 24
    training = AdamSettings()
    study = job.measure_recall(6, METHODS, training, [8])
    job.save_best_projections(tmp_path / "maps", study, training)
    path = tmp_path / "gate.txt"
    path.write_text(TEXT, "utf-8")
    maps = ["compressor.name=learned", f"compressor.file={tmp_path / 'maps'}"]
    check_stored_answers(
        loaded, load_preset("tiny-random", maps), path, QUESTION, tmp_path / "library"
    )


def test_maps_are_not_fitted_to_layers_with_windows(tmp_path: Path) -> None:
    loaded = load("gemma3_text", tmp_path / "model", **WINDOWS)
    with pytest.raises(UsageError):
        open_projection_fitter(loaded, load_preset("tiny-random"), TEXT, 2000, tmp_path / "work")


FAMILIES = ["gemma4_text", "gemma3n_text"]
SMALL = Window(initial=4, selected=8, local=8, chunk=8)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_word_of_a_question_selects_in_every_layer(kind: str) -> None:
    """`generate` asks for the last token's logits alone, for which transformers leaves out the
    other tokens in the layers that read others' rows."""
    model, ids = build_model(kind), tokens(60)
    method = dataclasses.replace(resolve_preset(load_preset("tiny-random")).method, window=SMALL)
    seen: list[ChunkTrace] = []
    with attach(model, method) as attached:
        cache = attached.new_cache()
        cache.begin_query(QueryState(Phase.PREFILL))
        model(ids[:, :50], past_key_values=cache)
        cache.begin_query(QueryState(Phase.QUESTION, trace=seen.append))
        one = model(ids[:, 50:], past_key_values=cache, logits_to_keep=1).logits
        assert attached.method_layers == [1, 3, 4]
        chunks = [(found.start, found.stop) for found in seen if found.layer == 1]
        for layer in (3, 4):
            assert [(at.start, at.stop) for at in seen if at.layer == layer] == chunks
        cache.truncate(50)
        cache.begin_query(QueryState(Phase.QUESTION))
        every = model(ids[:, 50:], past_key_values=cache).logits
    assert (one.shape[1], every.shape[1]) == (1, 10)
    torch.testing.assert_close(one[0, -1], every[0, -1], atol=1e-5, rtol=0)


def test_what_selectors_keep_of_such_layers_is_cropped_and_kept_with_the_document() -> None:
    model, ids = build_model("gemma4_text"), tokens(60)
    method = resolve_preset(load_preset("tiny-random", ["window.dense=8"]), "infllm", 60).method
    with attach(model, dataclasses.replace(method, window=SMALL)) as attached:
        cache = attached.new_cache()
        cache.begin_query(QueryState(Phase.QUESTION))
        want = model(ids[:, :50], past_key_values=cache).logits
        assert {layer for layer, _ in cache.get_layer_kv_cache(1).states} == {1, 3, 4}
        assert cache.get_layer_kv_cache(3).states is cache.get_layer_kv_cache(1).states
        model(ids[:, 50:], past_key_values=cache)
        cache.truncate(0)
        cache.begin_query(QueryState(Phase.QUESTION))
        torch.testing.assert_close(model(ids[:, :50], past_key_values=cache).logits, want)
        cache.reset()
        cache.begin_query(QueryState(Phase.QUESTION))
        torch.testing.assert_close(model(ids[:, :50], past_key_values=cache).logits, want)


def test_sizes_of_layers_from_every_form_of_the_settings() -> None:
    """Of a configuration in memory, as transformers writes it, and as Google did."""
    from types import SimpleNamespace

    changes = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    config = build_model("gemma4_text", **changes).config
    written = config.to_dict()
    first = {**written, "global_head_dim": 12, **changes}
    del first["per_layer_config"]
    for one in (config, SimpleNamespace(**written), SimpleNamespace(**first)):
        assert families.get_kv_head_shape(one) == (1, 12)
        assert families.list_unequal_kv_heads(one) == [(2, 8), (1, 12)]
        assert families.map_key_source_layers(one) == {2: 0, 3: 1, 4: 1}


@pytest.mark.parametrize("kind", FAMILIES)
def test_while_a_document_is_read_they_compute_one_token_of_each_piece(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model can leave the others out; the rows and the answer are the same."""
    found, counts = list[Any](), list[int]()
    loaded = load(kind, tmp_path, **PER_LAYER)
    reading: Any = loaded.model.base_model.layers[3].self_attn
    reading.register_forward_pre_hook(
        lambda module, inputs, given: counts.append(given["hidden_states"].shape[1]),
        with_kwargs=True,
    )
    for whole in (False, True):
        if whole:
            monkeypatch.setattr(
                "esa_cli.qa.answering.session.get_last_token_only_options", lambda config: {}
            )
        counts.clear()
        with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random")) as session:
            session.read(TEXT)
            pieces = [1024, session.document_tokens - 1024]
            assert counts == (pieces if whole or kind == "gemma3n_text" else [1, 1])
            rows = [one.span(0, len(one)) for one in session.prefilled_document().stores]
            found.append((rows, session.ask(QUESTION).text))
    assert found[0][1] == found[1][1]
    for mine, want in zip(found[0][0], found[1][0], strict=True):
        assert all(map(torch.equal, mine, want))


def test_a_compressor_is_fitted_to_no_fewer_tokens_where_they_are_left_out() -> None:
    """A piece's last token has far tokens earlier than its first chunk, and must not begin the
    fit."""
    model, ids = build_model("gemma4_text"), tokens(110)
    settings = ["score.name=sum", "compressor.fit_tokens=64"]
    method = resolve_preset(load_preset("tiny-random", settings)).method
    method = dataclasses.replace(method, window=dataclasses.replace(SMALL, chunk=32))
    found = []
    for kept in ({}, {"logits_to_keep": 1}):
        with attach(model, dataclasses.replace(method, reading="select")) as attached:
            cache = attached.new_cache()
            cache.begin_query(QueryState(Phase.PREFILL))
            for at in (0, 32, 64):
                model.base_model(ids[:, at : at + 32], past_key_values=cache, **kept)
            cache.begin_query(QueryState(Phase.QUESTION))
            found.append(model(ids[:, 96:], past_key_values=cache).logits)
    assert method.compressor.fit_tokens == 64
    torch.testing.assert_close(found[1], found[0])


def test_models_that_read_in_both_directions_are_refused() -> None:
    model = build_model("gemma4_text", use_bidirectional_attention="all")
    with pytest.raises(ModelError, match="attends to later tokens"):
        attach(model, resolve_preset(load_preset("tiny-random")).method)
