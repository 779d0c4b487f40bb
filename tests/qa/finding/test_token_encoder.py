"""Reduced keys and queries: files, documents in pieces, weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from finder_encoder import new_finder, save_finder

from esa_cli.errors import ModelError
from esa_cli.qa.finding import finder as token_encoder
from esa_cli.qa.finding import finder_choice
from esa_cli.qa.finding.finder import TokenEncoder
from esa_cli.qa.presets.preset import load_preset


def encode_sequences(encoder: TokenEncoder, sequences: list[list[int]]) -> torch.Tensor:
    """The reduced keys (B, T, R) of B zero-padded token sequences."""
    return encoder._project_states(encoder._compute_hidden_states(sequences)[0], "key_map")


@pytest.fixture
def encoder(loaded: Any) -> TokenEncoder:
    made = new_finder(loaded.model, loaded.tokenizer, layers=2, first=1, rank=2, dim=6, seed=3)
    torch.manual_seed(4)
    for _, b in made.adapter.matrices.values():
        b.data.normal_(std=0.2)
    made.maps["query_weight"].normal_()
    return made


def test_queries_have_unit_length_and_weights_sum_to_one(encoder: TokenEncoder) -> None:
    with torch.no_grad():
        queries, weights = encoder.encode_questions(
            ["who is it", "what was the name of the ship at sea"]
        )
    assert queries.shape[:2] == weights.shape
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    assert (weights[:, :2] == 0).all()
    assert (weights[0] == 0).sum() > (weights[1] == 0).sum()
    lengths = queries.norm(dim=-1)
    torch.testing.assert_close(lengths[weights > 0], torch.ones_like(lengths[weights > 0]))


def test_weights_are_softplus_of_the_mapped_states(encoder: TokenEncoder) -> None:
    """Against a loop over the tokens of one question."""
    text = "what was the name of the ship"
    states, lengths = encoder._compute_hidden_states([encoder._tokenise_question(text)])
    row, bias = encoder.maps["query_weight"].flatten(), float(encoder.maps["query_bias"])
    raw = []
    for at in range(2, int(lengths[0])):  # after the prompt's own two tokens
        logit = float(states[0, at] @ row) / token_encoder.WEIGHT_SCALE + bias
        raw.append(math.log1p(math.exp(logit)))
    want = torch.tensor([0.0, 0.0, *(number / sum(raw) for number in raw)])
    with torch.no_grad():
        _, weights = encoder.encode_questions([text])
    torch.testing.assert_close(weights[0, : len(want)], want, atol=1e-5, rtol=1e-4)


def test_a_document_is_the_same_in_every_division(
    encoder: TokenEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_encoder, "SEGMENT_TOKENS", 8)
    monkeypatch.setattr(token_encoder, "CONTEXT_TOKENS", 3)
    ids = [(7 * n + 3) % 50 + 1 for n in range(45)]
    whole = encoder.encode_document(ids, 0, 45)
    parts = torch.cat([encoder.encode_document(ids, 0, 16), encoder.encode_document(ids, 16, 45)])
    assert whole.shape == (45, encoder.dim)
    assert encoder.encode_document([], 0, 0).shape == (0, 6)
    assert all("layers.1." in name for name in encoder.adapter.matrices), "from the first on"
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        one = encode_sequences(encoder, [ids[5:16]])[0, 3:]
    torch.testing.assert_close(whole[8:16], one, atol=1e-5, rtol=1e-5)


def test_saved_and_loaded(encoder: TokenEncoder, tmp_path: Path) -> None:
    save_finder(encoder, tmp_path, "tiny")
    again = TokenEncoder.load(tmp_path, encoder.model, encoder.tokenizer)
    ids = list(range(1, 30))
    assert again.layers == 2
    assert again.prompt == encoder.prompt
    torch.testing.assert_close(
        again.encode_document(ids, 0, 29), encoder.encode_document(ids, 0, 29), atol=2e-2, rtol=0
    )
    assert again.digest == TokenEncoder.load(tmp_path, encoder.model, encoder.tokenizer).digest
    again.maps["key_map"] = again.maps["key_map"] + 0.1
    assert again.digest != encoder.digest


def test_sizes_come_from_the_file_of_the_preset(encoder: TokenEncoder, tmp_path: Path) -> None:
    save_finder(encoder, tmp_path, "tiny")
    chosen = load_preset("tiny-random", ["answer.from=text", f"answer.finder={tmp_path}"])
    sizes = finder_choice.read_finder_sizes(chosen)
    assert (sizes.layers, sizes.dim, sizes.layout) == (2, 6, encoder.layout)
    loaded = finder_choice.load_finder(chosen.answer, encoder.model, encoder.tokenizer)
    assert isinstance(loaded, TokenEncoder)
    assert (loaded.layers, loaded.dim) == (2, 6)
    rows = load_preset("tiny-random")
    assert finder_choice.read_finder_sizes(rows) is None
    assert finder_choice.load_finder(rows.answer, encoder.model, encoder.tokenizer) is None


def test_maps_of_another_model_are_refused(encoder: TokenEncoder, tmp_path: Path) -> None:
    model, tokenizer, adapter = encoder.model, encoder.tokenizer, encoder.adapter
    depth = len(model.base_model.layers)
    assert TokenEncoder(model, tokenizer, adapter, encoder.maps, depth).layers == depth
    wide = {**encoder.maps, "key_map": torch.zeros(model.config.hidden_size + 1, 6)}
    for maps, layers in ((encoder.maps, 0), (encoder.maps, depth + 1), (wide, 1)):
        with pytest.raises(ModelError):
            TokenEncoder(model, tokenizer, adapter, maps, layers)
    encoder.maps["scale"] = torch.tensor([torch.inf])
    save_finder(encoder, tmp_path, "tiny")
    with pytest.raises(ModelError, match="finite"):
        TokenEncoder.load(tmp_path, model, tokenizer)


def test_encoded_keys_are_projected_states_of_unit_length(encoder: TokenEncoder) -> None:
    """Against one forward pass of the model's own layers for each sequence."""
    sequences = [[5, 9, 2], [7, 7, 1, 30, 4], [8]]
    with torch.no_grad():
        found = encode_sequences(encoder, sequences)
        for row, ids in zip(found, sequences, strict=True):
            with encoder.adapter.apply():
                out = encoder.model(torch.tensor([ids]), output_hidden_states=True)
            want = out.hidden_states[encoder.layers][0] @ encoder.maps["key_map"]
            want = want / want.norm(dim=-1, keepdim=True)
            torch.testing.assert_close(row[: len(ids)], want, atol=1e-4, rtol=1e-4)
            assert (row[len(ids) :] == 0).all()
