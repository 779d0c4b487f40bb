"""The queries and keys of each layer that calibration stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from calibration_tools import selective
from conftest import ModelFactory
from torch import Tensor

from esa_cli.attention.compression import ClosedFormCompressor, NoCompression
from esa_cli.attention.method import Method
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.selection import LogitSum
from esa_cli.attention.window import Window
from esa_cli.errors import ResourceError
from esa_cli.evaluation.calibration.fitted_projections import ProjectionFitter, QueryAndKeyFiles
from esa_cli.models.attachment import attach as seam
from esa_cli.models.attachment.fingerprint import compute_model_fingerprint

TOKENS = 100
FEED = 24
IDS = [(7 * i * i + 3 * i) % 61 for i in range(TOKENS)]


@pytest.fixture(autouse=True)
def small_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", FEED)


Model = Any


def read(model: Model, folder: Path, method: Method | None = None) -> QueryAndKeyFiles:
    folder.mkdir()
    of_model, unused = compute_model_fingerprint(model), cast(Any, None)
    stored = QueryAndKeyFiles(folder, of_model.groups * of_model.dim)
    whole_keys = replace(method or selective(), compressor=NoCompression())
    host: Any = SimpleNamespace(model=model)
    ProjectionFitter(host, unused, whole_keys, IDS, stored, of_model).store_queries_and_keys()
    return stored


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_queries_and_keys_are_the_projections(
    kind: str, make_model: ModelFactory, tmp_path: Path
) -> None:
    """Against what the host's own projections gave during the same reading, folded by a loop."""
    model = make_model(kind)
    seen: dict[tuple[int, str], list[Tensor]] = {}
    hooks = []
    for layer, block in enumerate(model.base_model.layers):
        for name in ("q_proj", "k_proj"):
            kept = seen.setdefault((layer, name), [])
            projection = getattr(block.self_attn, name)
            hooks.append(
                projection.register_forward_hook(lambda _m, _i, out, to=kept: to.append(out[0]))
            )
    shards = read(model, tmp_path / "work")
    for hook in hooks:
        hook.remove()
    config = model.config
    heads, groups, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    for layer in range(2):
        queries, keys = shards.load_queries_and_keys(layer)
        assert queries.shape == keys.shape == (TOKENS, groups * dim)
        torch.testing.assert_close(keys, torch.cat(seen[layer, "k_proj"]))
        host = torch.cat(seen[layer, "q_proj"]).tolist()
        for token in range(0, TOKENS, 9):
            for group in range(groups):
                share = range(group * heads // groups, (group + 1) * heads // groups)
                for d in range(dim):
                    want = sum(host[token][head * dim + d] for head in share)
                    assert queries[token, group * dim + d].item() == pytest.approx(want, abs=1e-5)


def test_queries_of_half_precision_are_summed_in_float32(
    make_model: ModelFactory, tmp_path: Path
) -> None:
    """Sums over heads in float16 can be beyond its largest number."""
    model = make_model("llama").half()
    projection = model.base_model.layers[0].self_attn.q_proj
    projection.weight.data[:] = 100000 / model.config.hidden_size
    seen: list[Tensor] = []
    hook = projection.register_forward_hook(lambda _m, _i, out: seen.append(out[0]))
    queries, keys = read(model, tmp_path / "work").load_queries_and_keys(0)
    hook.remove()
    heads, groups = model.config.num_attention_heads, model.config.num_key_value_heads
    host = torch.cat(seen).float().view(TOKENS, groups, heads // groups, -1).sum(2)
    assert host.abs().max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(queries, host.flatten(1))
    assert keys.isfinite().all()


def test_queries_are_rotated_where_the_score_rotates(
    make_model: ModelFactory, tmp_path: Path
) -> None:
    """As the compressor that is fitted while a document is read sees them."""
    model = make_model("llama")
    shards = read(model, tmp_path / "work", selective(rotate=True))
    queries, keys = shards.load_queries_and_keys(0)
    plain, _ = read(model, tmp_path / "plain", selective()).load_queries_and_keys(0)
    assert not torch.allclose(queries, plain)
    fits: list[Any] = []

    class Spy(ClosedFormCompressor):
        def fit(self, layer: int, moments: Any) -> Any:
            fits.append((layer, moments))
            return super().fit(layer, moments)

    method = Method(
        window=Window(initial=2, selected=6, local=90, chunk=10),
        score=LogitSum(rotate=True),
        compressor=Spy(rank=4, fit_tokens=50),
        position=FixedDistancePositions(64),
    )
    with seam.attach(model, method) as attachment:
        cache = attachment.new_cache()
        model.base_model(input_ids=torch.tensor([IDS[:50]]), past_key_values=cache)
        cache.compute_reduced_keys()
    moments = dict(fits)[0]
    assert moments.count == 50
    torch.testing.assert_close(
        moments.queries, (queries[:50].T @ queries[:50]).double(), rtol=1e-4, atol=1e-3
    )
    torch.testing.assert_close(
        moments.keys, (keys[:50].T @ keys[:50]).double(), rtol=1e-4, atol=1e-3
    )


def test_a_disk_that_is_too_small(
    make_model: ModelFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("llama")
    needed = 2 * 2 * 16 * 4 * TOKENS

    class Disk:
        free = needed - 1

    monkeypatch.setattr("shutil.disk_usage", lambda _: Disk)
    with pytest.raises(ResourceError, match=r"take 25\.0 KiB"):
        read(model, tmp_path / "small")
    Disk.free = needed
    assert len(read(model, tmp_path / "work").load_queries_and_keys(1)[0]) == TOKENS
