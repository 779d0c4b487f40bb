"""Maps fitted and trained on one layer, their recall, and the study of all layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import reference
import torch
from calibration_tools import selective, small_files
from conftest import ModelFactory, build_model
from torch import Tensor

from esa_cli.attention.compression import (
    ClosedFormCompressor,
    LearnedCompressor,
    Linear,
    NoCompression,
)
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Moments
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.selection import LogitSum
from esa_cli.attention.window import Window
from esa_cli.errors import ResourceError
from esa_cli.evaluation.calibration.fitted_projections import (
    METHODS,
    AdamSettings,
    ProjectionFitter,
    compute_recall_at_k,
    compute_squared_loss,
    fit_projections,
    train_projections,
)
from esa_cli.models.attachment import attach as seam
from esa_cli.models.attachment.fingerprint import compute_model_fingerprint
from esa_cli.qa.presets.preset import load_preset

WIDTH = 12


def samples(count: int = 400, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Queries and keys (count, WIDTH) with uneven spectra and a mean, as real ones have."""
    random = torch.Generator().manual_seed(seed)
    mixed = torch.randn(2, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))
    spread = torch.logspace(0.5, -1.5, WIDTH)
    queries = torch.randn(count, WIDTH, generator=random) * spread @ mixed[0] + 0.3
    keys = torch.randn(count, WIDTH, generator=random) * spread @ mixed[1]
    return queries, keys


def eq6(queries: Tensor, keys: Tensor, maps: Linear) -> float:
    """Eq. (7) over every query with every key."""
    full = queries.double() @ keys.double().T
    short = maps.queries(queries.double()) @ maps.keys(keys.double()).T
    return (full - short).square().sum().item()


def test_square_loss_is_eq_7() -> None:
    queries, keys = (x[:9] for x in samples())
    maps = Linear(torch.randn(WIDTH, 3), torch.randn(WIDTH, 3))
    lists = (reference.plain(x) for x in (queries, keys, maps.query_map, maps.key_map))
    got = compute_squared_loss(queries @ keys.T, maps.queries(queries) @ maps.keys(keys).T)
    assert got.item() * 81 == pytest.approx(reference.eq7_error(*lists), rel=1e-4)


@pytest.mark.parametrize("rank", [1, 4])
def test_training_approaches_the_closed_form_and_never_beats_it(rank: int) -> None:
    queries, keys = samples()
    fitted = fit_projections("closed-form", queries, keys, rank, AdamSettings())
    best = eq6(queries, keys, fitted)
    start = train_projections(queries, keys, rank, AdamSettings(epochs=0))
    trained = train_projections(queries, keys, rank, AdamSettings(epochs=30, lr=2e-2, batch=64))
    assert best * (1 - 1e-4) <= eq6(queries, keys, trained)
    assert eq6(queries, keys, trained) < best + 0.1 * (eq6(queries, keys, start) - best)


@pytest.mark.parametrize("lr", [5e-4, 3.0])
def test_trained_maps_are_no_worse_than_the_first_ones(lr: float) -> None:
    """On the validation tokens, also where descent diverges."""
    queries, keys = samples()
    held_queries, held_keys = queries[360:], keys[360:]
    settings = [AdamSettings(n, 64, lr) for n in (0, 20)]
    start, trained = (train_projections(queries, keys, 4, one) for one in settings)
    assert eq6(held_queries, held_keys, trained) <= eq6(held_queries, held_keys, start)


def recall_by_loops(full: list[list[float]], reduced: list[list[float]], k: int) -> float:
    shares = []
    for f, r in zip(full, reduced, strict=True):
        best = [sorted(range(len(x)), key=lambda i, x=x: -x[i])[:k] for x in (f, r)]
        shares.append(len(set(best[0]) & set(best[1])) / k)
    return sum(shares) / len(shares)


@pytest.mark.parametrize("k", [1, 3, 10, 20])
def test_recall_is_the_loops(k: int) -> None:
    full = torch.randn(6, 20)
    reduced = full + torch.randn(6, 20)
    want = recall_by_loops(reference.plain(full), reference.plain(reduced), k)
    assert compute_recall_at_k(full, reduced, k) == pytest.approx(want)
    assert compute_recall_at_k(full, full * 3, k) == 1.0
    assert compute_recall_at_k(full, -full, k) == pytest.approx(recall_by_loops(
        reference.plain(full), reference.plain(-full), k
    ))  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> ProjectionFitter:
    """Three layers of samples of 300 tokens, the keys of the last one of rank 2."""
    folder = tmp_path / "study"
    folder.mkdir()
    host: Any = SimpleNamespace(device=torch.device("cpu"))
    llama = compute_model_fingerprint(build_model("llama"))
    model = replace(llama, layers=3, groups=1, dim=WIDTH)
    job = ProjectionFitter(host, load_preset("tiny-random"), selective(), [0] * 300, folder, model)
    layers = [samples(300, seed) for seed in range(3)]
    low = torch.randn(WIDTH, 2) @ torch.randn(2, WIDTH)
    layers[2] = (layers[2][0], layers[2][1] @ low)
    for layer, (queries, keys) in enumerate(layers):
        for at in range(0, 300, 100):
            job.append_queries_and_keys(layer, queries[at : at + 100], keys[at : at + 100])
        assert all(map(torch.equal, job.load_queries_and_keys(layer), (queries, keys)))
    return job


QUICK = AdamSettings(epochs=2, lr=1e-2)


def test_study_measures_what_was_not_fitted_on(job: ProjectionFitter) -> None:
    found = job.measure_recall(4, METHODS, QUICK, [8, 1000])
    assert (found.tokens, found.held_out, found.ks, found.ranks) == (300, 60, [8, 30], [4, 4, 4])
    queries, keys = job.load_queries_and_keys(1)
    moments = Moments()
    moments.add_tokens(queries[:240], keys[:240])
    maps = ClosedFormCompressor(4).fit(0, moments)
    torch.testing.assert_close(found.results["closed-form"].projections[1].key_map, maps.key_map)
    full = queries[240:] @ keys[240:].T
    short = maps.queries(queries[240:]) @ maps.keys(keys[240:]).T
    for at, k in enumerate((8, 30)):
        want = recall_by_loops(reference.plain(full), reference.plain(short), k)
        assert found.results["closed-form"].recall[1][at] == pytest.approx(want, abs=1e-3)
    assert found.find_best_method() == "closed-form"
    assert found.results["closed-form"].recall[2][-1] > 0.99, "a layer of rank 2 loses nothing"
    trained = train_projections(queries[:240], keys[:240], 4, replace(QUICK, seed=1000))
    assert torch.equal(trained.key_map, found.results["learned"].projections[1].key_map)


def test_no_room_for_the_maps_leaves_those_that_were_there(
    job: ProjectionFitter, tmp_path: Path
) -> None:
    settings = AdamSettings()
    done = job.measure_recall(3, ["pca"], settings, [8])
    path, link = tmp_path / "maps.safetensors", tmp_path / "link.safetensors"
    job.save_best_projections(path, done, settings)
    before = path.read_bytes()
    with small_files(500), pytest.raises(ResourceError, match=r"maps\.safetensors") as refused:
        job.save_best_projections(path, done, settings)
    assert "--out" in refused.value.hint
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".maps*"))
    link.symlink_to(path)
    job.save_best_projections(link, done, settings)
    assert link.is_symlink()
    assert LearnedCompressor(str(path)).metadata["method"] == "pca"


TOKENS = 100
FEED = 24
IDS = [(7 * i * i + 3 * i) % 61 for i in range(TOKENS)]


@pytest.fixture(autouse=True)
def small_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", FEED)


Model = Any


def read(model: Model, folder: Path, method: Method | None = None) -> ProjectionFitter:
    folder.mkdir()
    of_model, unused = compute_model_fingerprint(model), cast(Any, None)
    whole_keys = replace(method or selective(), compressor=NoCompression())
    host: Any = SimpleNamespace(model=model)
    job = ProjectionFitter(host, unused, whole_keys, IDS, folder, of_model)
    job.store_queries_and_keys()
    return job


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
    for found, rows in ((moments.queries, queries[:50]), (moments.keys, keys[:50])):
        torch.testing.assert_close(found, (rows.T @ rows).double(), rtol=1e-4, atol=1e-3)


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
