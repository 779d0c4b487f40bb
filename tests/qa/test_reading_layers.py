"""Models whose last layers read the rows of others, from a folder to an answer: tiny ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import build_model
from stock_attention import tokens
from test_stored_families import TEXT, load

from esa_cli.attention.step import ChunkTrace
from esa_cli.attention.window import Phase, QueryState, Window
from esa_cli.errors import ModelError
from esa_cli.models.attachment.attach import attach
from esa_cli.models.files import families
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import resolve_preset

pytestmark = pytest.mark.families

FAMILIES = ["gemma4_text", "gemma3n_text"]
QUESTION = "When does gate 17 open?"
SMALL = Window(initial=4, selected=8, local=8, chunk=8)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_word_of_a_question_selects_in_every_layer(kind: str) -> None:
    """`generate` asks for the last token's logits alone, for which transformers leaves out the
    other tokens in the layers that read others' rows."""
    model, ids = build_model(kind), tokens(60)
    method = dataclasses.replace(resolve_preset("tiny-random").method, window=SMALL)
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
    method = resolve_preset("tiny-random", ["window.dense=8"], "infllm", 60).method
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
    loaded, found, counts = (
        load(kind, tmp_path, vocab_size_per_layer_input=259),
        list[Any](),
        list[int](),
    )
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
    method = resolve_preset("tiny-random", ["score.name=sum", "compressor.fit_tokens=64"]).method
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
        attach(model, resolve_preset("tiny-random").method)
