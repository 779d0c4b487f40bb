"""Fingerprints: which model, and which queries, a file of maps is for."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from calibration_tools import selective
from conftest import build_model
from saved_projections import save_learned_projections

from esa_cli.attention.compression import LearnedCompressor, Linear
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.errors import PresetError
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.fingerprint import (
    KEY,
    check_compressor_fits,
    compute_model_fingerprint,
    make_query_rotation_metadata,
    read_model_fingerprint,
)


def test_the_fingerprint_knows_the_model() -> None:
    model = build_model("llama")
    found = compute_model_fingerprint(model)
    assert (found.kind, found.layers, found.heads, found.groups, found.dim) == ("llama", 2, 6, 2, 8)
    assert compute_model_fingerprint(build_model("llama")) == found
    assert read_model_fingerprint({KEY: json.dumps(asdict(found))}) == found
    assert read_model_fingerprint({}) is None
    assert compute_model_fingerprint(build_model("llama", seed=1)) != found
    assert compute_model_fingerprint(build_model("llama", num_hidden_layers=3)) != found


def plain_digest(model: Any) -> str:
    """Of a host whose weights are plain, as files of maps have it since the first version."""
    digest = hashlib.sha256()
    for layer in (model.model.layers[0], model.model.layers[-1]):
        for name in ("q_proj", "k_proj"):
            rows = getattr(layer.self_attn, name).weight.tolist()
            signs = (math.copysign(1, number) < 0 for row in rows for number in row)
            digest.update(bytes(signs))
    return digest.hexdigest()


@pytest.mark.parametrize(("kind", "dtype"), [("llama", torch.float32), ("qwen2", torch.bfloat16)])
def test_the_fingerprint_of_plain_weights_is_their_signs(kind: str, dtype: torch.dtype) -> None:
    model = build_model(kind).to(dtype)
    assert compute_model_fingerprint(model).weights == plain_digest(model)


class Packed(torch.nn.Module):
    """A quantised projection: its weight is no tensor."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.register_buffer("scale", linear.weight.abs().max() / 127)
        self.register_buffer("codes", (linear.weight / self.scale).round().to(torch.int8))
        self.weight = lambda: self.codes * self.scale


def packed(seed: int = 0) -> Any:
    model: Any = build_model("llama", seed)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj"):
            setattr(layer.self_attn, name, Packed(getattr(layer.self_attn, name)))
    return model


def test_the_fingerprint_of_quantised_weights() -> None:
    model = packed()
    before = compute_model_fingerprint(model)
    assert compute_model_fingerprint(packed()) == before
    assert compute_model_fingerprint(packed(1)) != before
    model.model.layers[-1].self_attn.k_proj.codes[3, 5] += 1
    changed = compute_model_fingerprint(model)
    assert changed != before
    model.model.layers[0].self_attn.q_proj.scale *= 2
    assert compute_model_fingerprint(model) != changed


def saved(path: Path, metadata: dict[str, str]) -> LearnedCompressor:
    save_learned_projections(path, [Linear(torch.randn(16, 4), torch.randn(16, 4))] * 2, metadata)
    return LearnedCompressor(str(path))


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    mine = build_model("llama")
    text = json.dumps(asdict(compute_model_fingerprint(mine)))
    learned = saved(tmp_path / "maps.safetensors", {KEY: text})
    check_compressor_fits(learned, mine)
    for other in (build_model("qwen3"), build_model("llama", seed=1)):
        with pytest.raises(PresetError, match=r"maps\.safetensors was made for a llama") as refused:
            check_compressor_fits(learned, other)
        assert compute_model_fingerprint(other).weights[:8] in refused.value.message


def test_a_file_for_other_queries_is_refused(tmp_path: Path) -> None:
    model, plain = build_model("llama"), selective()
    near, far = (
        replace(selective(rotate=True), position=FixedDistancePositions(distance))
        for distance in (63, 64)
    )
    for made, used in ((plain, far), (far, plain), (far, near)):
        learned = saved(tmp_path / "a.safetensors", make_query_rotation_metadata(made))
        check_compressor_fits(learned, model, made)
        with pytest.raises(PresetError):
            check_compressor_fits(learned, model, used)
        check_compressor_fits(learned, model, replace(used, score=VoteScore()))
