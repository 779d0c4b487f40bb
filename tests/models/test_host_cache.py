"""A model whose cache is in host memory computes what it computes with the cache on its device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import ModelFactory

from esa_cli.attention.compression import ClosedFormCompressor
from esa_cli.attention.method import Method
from esa_cli.attention.window import Phase, QueryState, Window
from esa_cli.methods.per_head import QuestSelector
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach

CPU = torch.device("cpu")
VOCABULARY = 300
WINDOW = Window(initial=4, selected=12, local=8, chunk=8)
METHODS = {
    "reduced keys": Method(window=WINDOW, compressor=ClosedFormCompressor(rank=4, fit_tokens=20)),
    "whole keys": Method(window=WINDOW, score=VoteScore()),
    "per head": Method(window=WINDOW, selector=QuestSelector(page=4)),
}


def tokens(count: int, seed: int = 7) -> torch.Tensor:
    """Different ones: equal tokens have equal keys in the first layer, and rounding selects."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(VOCABULARY, generator=generator)[None, :count]


def run(model: Any, method: Method, on_host: bool, pieces: int = 16) -> list[torch.Tensor]:
    """Hidden states of a prefill, a question, an answer, and another question after a crop."""
    found = []
    with attach(model, method) as attached, torch.inference_mode():
        cache = attached.new_cache(on_host)
        cache.begin_query(QueryState(Phase.PREFILL))
        ids = tokens(VOCABULARY)
        for low in range(0, 120, pieces):
            piece = ids[:, low : min(120, low + pieces)]
            found.append(model(piece, past_key_values=cache).logits)
        for first in (120, 150):
            cache.begin_query(QueryState(Phase.QUESTION, turn_start=120))
            found.append(model(ids[:, first : first + 20], past_key_values=cache).logits)
            for at in range(first + 20, first + 26):
                found.append(model(ids[:, at : at + 1], past_key_values=cache).logits)
            cache.truncate(120)
        assert {cache.get_layer_kv_cache(i).store.is_on_device for i in range(2)} == {not on_host}
    return found


@pytest.mark.parametrize(
    ("name", "kind", "pieces"),
    [
        ("reduced keys", "llama", 16), ("whole keys", "llama", 120),
        ("per head", "llama", 16), ("reduced keys", "deepseek_v3", 16),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("small_segments")
def test_answers_are_those_of_a_cache_on_the_device(
    make_model: ModelFactory, name: str, kind: str, pieces: int
) -> None:
    model, method = make_model(kind, vocab_size=VOCABULARY), METHODS[name]
    want = run(model, method, False, pieces)
    got = run(model, method, True, pieces)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
