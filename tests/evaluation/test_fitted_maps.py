"""Maps fitted and trained on one layer, their recall, and the study of all layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from calibration_tools import Killed, selective, small_files
from conftest import build_model
from torch import Tensor

from esa_cli.attention.compression import Learned, Linear, closed_form
from esa_cli.errors import ResourceError
from esa_cli.evaluation.calibration import fitted_maps as fitting
from esa_cli.evaluation.calibration.activations import Shards, open_folder
from esa_cli.evaluation.calibration.fitted_maps import (
    CalibrationJob,
    CalibrationStudy,
    FitSettings,
    TrainingSettings,
    moments_of,
    recall,
    square_loss,
    study,
    train,
)
from esa_cli.models.attachment.fingerprint import fingerprint

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
    got = square_loss(queries @ keys.T, maps.queries(queries) @ maps.keys(keys).T)
    assert got.item() * 81 == pytest.approx(reference.eq7_error(*lists), rel=1e-4)


@pytest.mark.parametrize("rank", [1, 4])
def test_training_approaches_the_closed_form_and_never_beats_it(rank: int) -> None:
    queries, keys = samples()
    best = eq6(queries, keys, closed_form(moments_of(queries, keys), rank))
    start = train(queries, keys, rank, TrainingSettings(epochs=0))
    trained = train(queries, keys, rank, TrainingSettings(epochs=30, lr=2e-2, batch=64))
    assert best * (1 - 1e-4) <= eq6(queries, keys, trained)
    assert eq6(queries, keys, trained) < best + 0.1 * (eq6(queries, keys, start) - best)


@pytest.mark.parametrize("lr", [5e-4, 3.0])
def test_trained_maps_are_no_worse_than_the_first_ones(lr: float) -> None:
    """On the validation tokens, also where descent diverges."""
    queries, keys = samples()
    held_queries, held_keys = queries[360:], keys[360:]
    start, trained = (train(queries, keys, 4, TrainingSettings(n, 64, lr)) for n in (0, 20))
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
    assert recall(full, reduced, k) == pytest.approx(want)
    assert recall(full, full * 3, k) == 1.0
    assert recall(full, -full, k) == pytest.approx(recall_by_loops(
        reference.plain(full), reference.plain(-full), k
    ))  # fmt: skip


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    """Three layers of samples, the last one of rank 2."""
    kept = open_folder(tmp_path / "study", {})
    layers = [samples(300, seed) for seed in range(3)]
    low = torch.randn(WIDTH, 2) @ torch.randn(2, WIDTH)
    layers[2] = (layers[2][0], layers[2][1] @ low)
    for at in range(0, 300, 100):
        queries = [q[at : at + 100] for q, _ in layers]
        keys = [k[at : at + 100] for _, k in layers]
        rows: dict[str, Tensor] = {}
        for layer, pair in enumerate(zip(queries, keys, strict=True)):
            rows |= {f"queries.{layer}": pair[0], f"keys.{layer}": pair[1]}
        kept.add(rows)
    return kept


QUICK = TrainingSettings(epochs=2, lr=1e-2)


def test_study_measures_what_was_not_fitted_on(shards: Shards) -> None:
    found = study(shards, [4, 4, 4], FitSettings(training=QUICK), [8, 1000])
    assert (found.tokens, found.held_out, found.ks) == (300, 60, [8, 30])
    queries, keys = shards.layer(1)
    maps = closed_form(moments_of(queries[:240], keys[:240]), 4)
    torch.testing.assert_close(found.results["closed-form"].maps[1].key_map, maps.key_map)
    full = queries[240:] @ keys[240:].T
    short = maps.queries(queries[240:]) @ maps.keys(keys[240:]).T
    for at, k in enumerate((8, 30)):
        want = recall_by_loops(reference.plain(full), reference.plain(short), k)
        assert found.results["closed-form"].recall[1][at] == pytest.approx(want, abs=1e-3)
    want = eq6(queries[240:], keys[240:], maps) / full.square().sum().item()
    assert found.results["closed-form"].error[1] == pytest.approx(want, rel=1e-3)
    assert found.best == "closed-form"
    assert found.results["closed-form"].recall[2][-1] > 0.99, "a layer of rank 2 loses nothing"


def test_an_interrupted_study_ends_as_one_without_a_break(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = FitSettings(training=QUICK)
    whole = study(shards, [3, 3, 3], settings, [8]).as_dict()
    for path in shards.folder.glob("maps-*"):
        path.unlink()
    trainings: list[int] = []

    def dying(queries: Tensor, keys: Tensor, rank: int, training: TrainingSettings) -> Linear:
        trainings.append(training.seed)
        if len(trainings) == 2:
            raise Killed
        return train(queries, keys, rank, training)

    monkeypatch.setattr(fitting, "train", dying)
    with pytest.raises(Killed):
        study(shards, [3, 3, 3], settings, [8])
    assert study(shards, [3, 3, 3], settings, [8]).as_dict() == whole
    assert len(trainings) == 4, "the layer that was finished is not trained again"
    assert len(set(trainings)) == 3, "every layer has a seed of its own"


@pytest.mark.parametrize("broken", ["cut off", "empty", "something else"])
def test_damaged_maps_are_fitted_again(broken: str, shards: Shards) -> None:
    settings = FitSettings(("pca",))
    whole = study(shards, [3, 3, 3], settings, [8]).as_dict()
    file, *_ = sorted(shards.folder.glob("maps-*"))
    good, part = file.read_bytes(), next(shards.folder.glob("part-*")).read_bytes()
    file.write_bytes({"cut off": good[:-1], "empty": b"", "something else": part}[broken])
    assert study(shards, [3, 3, 3], settings, [8]).as_dict() == whole
    assert file.read_bytes() == good


def saved_by_job(shards: Shards, done: CalibrationStudy, path: Path) -> None:
    model = fingerprint(build_model("llama"))
    unused: Any = None
    job = CalibrationJob(unused, unused, selective(), [], shards, model, {})
    job.save(path, done, FitSettings(("pca",)))


def test_no_room_for_the_maps_leaves_those_that_were_there(shards: Shards, tmp_path: Path) -> None:
    done = study(shards, [3, 3, 3], FitSettings(("pca",)), [8])
    path, link = tmp_path / "maps.safetensors", tmp_path / "link.safetensors"
    saved_by_job(shards, done, path)
    before = path.read_bytes()
    with small_files(500), pytest.raises(ResourceError, match=r"maps\.safetensors") as refused:
        saved_by_job(shards, done, path)
    assert "--out" in refused.value.hint
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".maps*"))
    link.symlink_to(path)
    saved_by_job(shards, done, link)
    assert link.is_symlink()
    assert Learned(str(path)).metadata["method"] == "pca"
