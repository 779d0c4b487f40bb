"""Folding, the closed form of Eq. (7), PCA, and maps from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import reference
import torch
from safetensors.torch import save_file
from saved_projections import save_learned_projections

from esa_cli.attention.algebra import concat_key_heads, fold
from esa_cli.attention.compression import (
    ClosedFormCompressor,
    LearnedCompressor,
    Linear,
    PcaCompressor,
)
from esa_cli.attention.parts import Moments
from esa_cli.errors import PresetError

WIDTH = 12
SAMPLES = 30


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys with unlike, uneven spectra and a mean, as real ones have."""
    spread = torch.logspace(0.5, -1.5, WIDTH)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q
    queries = torch.randn(SAMPLES, WIDTH) * spread @ turn + 0.3
    keys = torch.randn(SAMPLES, WIDTH) * spread.flip(0) @ turn @ torch.randn(WIDTH, WIDTH)
    return queries, keys


def moments_of(queries: torch.Tensor, keys: torch.Tensor) -> Moments:
    moments = Moments()
    moments.add_tokens(queries, keys)
    return moments


def error(queries: torch.Tensor, keys: torch.Tensor, maps: Linear) -> float:
    lists = (reference.plain(x) for x in (queries, keys, maps.query_map, maps.key_map))
    return reference.eq7_error(*lists)


@pytest.mark.parametrize(("heads", "groups"), [(3, 3), (6, 2), (8, 1)])
def test_folding_keeps_the_sum_over_heads(heads: int, groups: int) -> None:
    q, k = torch.randn(heads, 4, 5), torch.randn(groups, 7, 5)
    folded, flat = fold(q, groups), concat_key_heads(k)
    assert folded.shape == (4, groups * 5)
    assert flat.shape == (7, groups * 5)
    got = folded @ flat.T
    queries, keys = reference.plain(q), reference.plain(k)
    for c in range(4):
        for m in range(7):
            want = reference.head_sum(queries, keys, c, m)
            assert got[c, m].item() == pytest.approx(want, abs=1e-5)


def test_moments_add_up() -> None:
    queries, keys = samples()
    whole = moments_of(queries, keys)
    pieces = Moments()
    for at in (slice(0, 1), slice(1, 17), slice(17, SAMPLES)):
        pieces.add_tokens(queries[at], keys[at])
    assert pieces.count == whole.count == SAMPLES
    for f in range(WIDTH):
        for g in range(WIDTH):
            want = sum(q[f] * q[g] for q in reference.plain(queries))
            assert whole.queries[f, g].item() == pytest.approx(want, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(pieces.queries, whole.queries)
    torch.testing.assert_close(pieces.keys, whole.keys)


def test_a_low_rank_product_needs_only_that_rank() -> None:
    queries, keys = samples()
    keys = keys @ torch.randn(WIDTH, 3) @ torch.randn(3, WIDTH)
    maps = ClosedFormCompressor(3).fit(0, moments_of(queries, keys))
    exact = queries @ keys.T
    torch.testing.assert_close(
        maps.queries(queries) @ maps.keys(keys).T, exact, rtol=1e-2, atol=1e-3 * exact.std().item()
    )


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_no_other_pair_has_a_smaller_error(rank: int) -> None:
    """Eq. (7) over all queries and keys: random pairs, PCA of the keys, and descent from it."""
    queries, keys = samples()
    maps = ClosedFormCompressor(rank).fit(0, moments_of(queries, keys))
    assert maps.query_map.shape == maps.key_map.shape == (WIDTH, rank)
    best = error(queries, keys, maps)

    # Eckart and Young for the matrix of all scores: what it loses are its smaller singular values.
    singular = torch.linalg.svdvals(queries.double() @ keys.double().T)
    assert best == pytest.approx(singular[rank:].square().sum().item(), rel=1e-3)

    for _ in range(5):
        pair = Linear(torch.randn(WIDTH, rank), torch.randn(WIDTH, rank))
        ratio = (pair.queries(queries) @ pair.keys(keys).T).flatten()
        fitted = (ratio @ (queries @ keys.T).flatten() / ratio.square().sum()).item()
        assert best <= error(queries, keys, Linear(pair.query_map * fitted, pair.key_map))

    directions = torch.linalg.svd(keys, full_matrices=False).Vh[:rank].T
    assert best <= error(queries, keys, Linear(directions, directions))

    with torch.enable_grad():
        query_map = maps.query_map.double().clone().requires_grad_()
        key_map = maps.key_map.double().clone().requires_grad_()
        exact = queries.double() @ keys.double().T
        descent = torch.optim.Adam([query_map, key_map], lr=1e-4)
        lowest = best
        for _ in range(300):
            descent.zero_grad()
            short = queries.double() @ query_map @ (keys.double() @ key_map).T
            loss = (exact - short).square().sum()
            lowest = min(lowest, loss.item())
            loss.backward()
            descent.step()
    assert best <= lowest * (1 + 1e-3)


def test_closed_form_fit_takes_at_most_the_dimensions_there_are() -> None:
    queries, keys = samples()
    maps = ClosedFormCompressor(rank=1000, fit_tokens=SAMPLES).fit(0, moments_of(queries, keys))
    assert isinstance(maps, Linear)
    assert maps.query_map.shape == (WIDTH, WIDTH)


@pytest.mark.parametrize("rank", [1, 4, WIDTH])
def test_pca_is_the_svd_of_the_keys(rank: int) -> None:
    """The same plane: a direction's sign, and turns inside the plane, change no product."""
    queries, keys = samples()
    maps = PcaCompressor(rank).fit(0, moments_of(queries, keys))
    directions = torch.linalg.svd(keys.double(), full_matrices=False).Vh[:rank].T
    plane = maps.key_map.double()
    assert plane.shape == (WIDTH, rank)
    torch.testing.assert_close(plane @ plane.T, directions @ directions.T, rtol=0, atol=1e-4)
    assert torch.equal(maps.query_map, maps.key_map)


def test_pca_takes_its_directions_from_the_keys_alone() -> None:
    queries, keys = samples()
    others = torch.randn_like(queries)
    maps, other = (PcaCompressor(3).fit(0, moments_of(q, keys)) for q in (queries, others))
    assert torch.equal(maps.key_map, other.key_map)
    assert error(queries, keys, maps) > error(
        queries, keys, ClosedFormCompressor(3).fit(0, moments_of(queries, keys))
    )


@pytest.mark.parametrize("kind", [ClosedFormCompressor, PcaCompressor])
@pytest.mark.parametrize("options", [{"rank": 0}, {"fit_tokens": 0}, {"rank": -1}])
def test_nonsense_is_refused(kind: type, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        kind(**options)


def test_learned_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "maps.safetensors"
    layers = [Linear(torch.randn(WIDTH, 4), torch.randn(4, WIDTH).T) for _ in range(3)]
    save_learned_projections(path, layers)
    learned = LearnedCompressor(str(path))
    for i, maps in enumerate(layers):
        found = learned.fit(i, Moments())
        assert isinstance(found, Linear)
        assert torch.equal(found.query_map, maps.query_map)
        assert torch.equal(found.key_map, maps.key_map)
    x = torch.randn(5, WIDTH)
    found = learned.fit(1, Moments())
    torch.testing.assert_close(found.queries(x), x @ layers[1].query_map)
    torch.testing.assert_close(found.keys(x), x @ layers[1].key_map)
    assert found.keys(x.bfloat16()).dtype == torch.bfloat16


def test_learned_layers_may_differ_in_rank_and_share_a_map(tmp_path: Path) -> None:
    path = tmp_path / "maps.safetensors"
    same = torch.randn(WIDTH, 5)
    save_learned_projections(
        path, [Linear(torch.randn(WIDTH, 2), torch.randn(WIDTH, 2)), Linear(same, same)]
    )
    widths = []
    for layer in range(2):
        found = LearnedCompressor(str(path)).fit(layer, Moments())
        widths.append(found.keys(torch.randn(3, WIDTH)).shape[1])
    assert widths == [2, 5]


def test_learned_metadata(tmp_path: Path) -> None:
    path = tmp_path / "maps.safetensors"
    layers = [Linear(torch.randn(WIDTH, 4), torch.randn(WIDTH, 4))]
    save_learned_projections(path, layers)
    assert LearnedCompressor(str(path)).metadata == {}
    save_learned_projections(path, layers, {"fingerprint": "a llama", "method": "pca"})
    assert LearnedCompressor(str(path)).metadata == {"fingerprint": "a llama", "method": "pca"}


@pytest.mark.parametrize("name", ["maps", "notes", "none", "~nosuchuser/maps"])
def test_a_file_without_the_layers_maps_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_learned_projections("maps", [Linear(torch.randn(WIDTH, 4), torch.randn(WIDTH, 4))])
    Path("notes").write_text("not weights at all", "utf-8")
    with pytest.raises(PresetError):
        LearnedCompressor(name).fit(1, Moments())


@pytest.mark.parametrize("shapes", [((12, 4), (12, 3)), ((12, 4), (11, 4)), ((12,), (12,))])
def test_learned_maps_that_do_not_belong_together(
    tmp_path: Path, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    path = tmp_path / "maps.safetensors"
    save_file(
        {"layers.0.query_map": torch.ones(shapes[0]), "layers.0.key_map": torch.ones(shapes[1])},
        str(path),
    )
    with pytest.raises(PresetError, match="two projections of one shape"):
        LearnedCompressor(str(path)).fit(0, Moments())
