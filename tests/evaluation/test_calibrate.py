"""Calibration: what is collected, fitted, measured and saved; resumed runs; the command."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from conftest import ModelFactory, build_model
from safetensors.torch import load_file
from torch import Tensor

from esa_cli.__main__ import main
from esa_cli.attention.compression import ClosedForm, Linear, NoCompression, closed_form, spectrum
from esa_cli.attention.learned_maps import Learned, save_learned
from esa_cli.attention.method import Method, Window
from esa_cli.attention.positions import FixedDistance
from esa_cli.attention.scoring import SumScore
from esa_cli.attention.selection import TopK
from esa_cli.errors import DocumentError, ModelError, PresetError, ResourceError, UsageError
from esa_cli.evaluation.calibration import fit_maps as fitting
from esa_cli.evaluation.calibration.activation_files import Shards, open_folder
from esa_cli.evaluation.calibration.activations import collect, uncompressed
from esa_cli.evaluation.calibration.calibration_pipeline import Job, aimed
from esa_cli.evaluation.calibration.calibration_study import Study, choose_ranks, study
from esa_cli.evaluation.calibration.fit_maps import METHODS, Fitting, fitting_of, moments_of
from esa_cli.evaluation.calibration.key_recall import Heldout, limited, recall, spaced
from esa_cli.evaluation.calibration.quantise import by_dimension, by_token
from esa_cli.evaluation.calibration.ranks import allocate
from esa_cli.evaluation.calibration.train_maps import Training, rank_loss, square_loss, train
from esa_cli.methods.voting import VoteScore
from esa_cli.models import attach as seam
from esa_cli.models.fingerprint import KEY, aim, check, fingerprint, of_file
from esa_cli.qa import build_method as build
from esa_cli.qa import method_presets, preset

TOKENS = 100
FEED = 24
WIDTH = 12
IDS = [(7 * i * i + 3 * i) % 61 for i in range(TOKENS)]


def selective(rotate: bool = False) -> Method:
    """A method that selects from early on, with chunks that do not divide a feed."""
    return Method(
        window=Window(initial=2, selected=6, local=8, chunk=10),
        score=SumScore(rotate=rotate),
        position=FixedDistance(64),
    )


@pytest.fixture(autouse=True)
def small_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esa_cli.qa.prefill.FEED", FEED)


Model = Any


def read(model: Model, folder: Path, method: Method | None = None, **options: Any) -> Shards:
    shards = open_folder(folder, {"tokens": TOKENS}, wanted=TOKENS)
    with seam.attach(model, uncompressed(method or selective())) as attachment:
        collect(attachment, IDS, shards, **options)
        assert attachment.watch is None
    return shards


# What is collected


def test_uncompressed_changes_nothing_else() -> None:
    method = selective()
    assert method.compressor != NoCompression()
    plain = uncompressed(method)
    assert plain.compressor == NoCompression()
    assert (plain.window, plain.score, plain.position) == (
        method.window, method.score, method.position,
    )  # fmt: skip


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
        queries, keys = shards.layer(layer)
        assert queries.shape == keys.shape == (TOKENS, groups * dim)
        torch.testing.assert_close(keys, torch.cat(seen[layer, "k_proj"]))
        host = torch.cat(seen[layer, "q_proj"]).tolist()
        for token in range(0, TOKENS, 9):
            for group in range(groups):
                share = range(group * heads // groups, (group + 1) * heads // groups)
                for d in range(dim):
                    want = sum(host[token][head * dim + d] for head in share)
                    assert queries[token, group * dim + d].item() == pytest.approx(want, abs=1e-5)


def test_queries_are_rotated_where_the_score_rotates(
    make_model: ModelFactory, tmp_path: Path
) -> None:
    """As the compressor that is fitted while a document is read sees them."""
    model = make_model("llama")
    shards = read(model, tmp_path / "work", selective(rotate=True))
    queries, keys = shards.layer(0)
    plain, _ = read(model, tmp_path / "plain", selective()).layer(0)
    assert not torch.allclose(queries, plain)
    fits: list[Any] = []

    class Spy(ClosedForm):
        def fit(self, layer: int, moments: Any) -> Any:
            fits.append((layer, moments))
            return super().fit(layer, moments)

    method = Method(
        window=Window(initial=2, selected=6, local=90, chunk=10),
        score=SumScore(rotate=True),
        compressor=Spy(rank=4, fit_tokens=50),
        position=FixedDistance(64),
    )
    with seam.attach(model, method) as attachment:
        cache = attachment.new_cache()
        model.base_model(input_ids=torch.tensor([IDS[:50]]), past_key_values=cache)
        cache.project()
    moments = dict(fits)[0]
    assert moments.count == 50
    torch.testing.assert_close(
        moments.queries, (queries[:50].T @ queries[:50]).double(), rtol=1e-4, atol=1e-3
    )
    torch.testing.assert_close(
        moments.keys, (keys[:50].T @ keys[:50]).double(), rtol=1e-4, atol=1e-3
    )


class Killed(Exception):
    """A run that ends here."""


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_killed_reading_goes_on_where_it_was(
    parts: int, make_model: ModelFactory, tmp_path: Path
) -> None:
    """To the last bit, although later tokens select among the earlier."""
    model = make_model("llama")
    whole = read(model, tmp_path / "whole")
    done: list[int] = []

    def kill(tokens: int, of: int) -> None:
        assert of == TOKENS
        done.append(tokens)
        if len(done) == parts:
            raise Killed

    with pytest.raises(Killed):
        read(model, tmp_path / "cut", progress=kill)
    # What a run leaves behind that dies while it writes.
    (tmp_path / "cut/part-00000096-00000100.unfinished").write_bytes(b"half of it")
    assert Shards(tmp_path / "cut").tokens == parts * FEED
    again: list[int] = []
    cut = read(model, tmp_path / "cut", progress=lambda tokens, of: again.append(tokens))
    assert again == [*range((parts + 1) * FEED, TOKENS, FEED), TOKENS]
    for layer in range(2):
        for one, other in zip(whole.layer(layer), cut.layer(layer), strict=True):
            assert torch.equal(one, other)


def test_a_later_layer_depends_on_what_was_selected(
    make_model: ModelFactory, tmp_path: Path
) -> None:
    """So the test above would notice a memory that was not filled again."""
    model = make_model("llama")
    few, many = (
        read(model, tmp_path / str(k), replace(selective(), window=Window(2, k, 8, 10)))
        for k in (6, 60)
    )
    assert torch.equal(few.layer(0)[1], many.layer(0)[1])
    assert not torch.allclose(few.layer(1)[1], many.layer(1)[1])


def test_nothing_is_read_twice_and_values_are_not_kept(
    make_model: ModelFactory, tmp_path: Path
) -> None:
    model = make_model("llama")
    shards = read(model, tmp_path / "work")
    assert not list((tmp_path / "work").glob("values-*"))
    floats = 2 * 2 * TOKENS * 16
    assert 4 * floats < shards.nbytes < 4 * floats + 10_000
    calls: list[int] = []
    read(model, tmp_path / "work", progress=lambda tokens, of: calls.append(tokens))
    assert calls == []


def test_a_disk_that_is_too_small(
    make_model: ModelFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("llama")
    needed = 3 * 2 * 16 * 4 * TOKENS

    class Disk:
        free = needed - 1

    monkeypatch.setattr("shutil.disk_usage", lambda _: Disk)
    with pytest.raises(ResourceError, match=r"37\.5 KiB"):
        read(model, tmp_path / "work")
    Disk.free = needed
    assert read(model, tmp_path / "work").tokens == TOKENS


def rows(count: int) -> Any:
    """Queries, keys and values of one layer, (count, 3)."""
    return [[torch.randn(count, 3)] for _ in range(3)]


def test_a_folder_belongs_to_one_reading(tmp_path: Path) -> None:
    work = tmp_path / "work"
    shards = open_folder(work, {"text": "a", "window": {"local": 4}})
    shards.add(*rows(5))
    assert open_folder(work, {"text": "a", "window": {"local": 4}}).tokens == 5
    with pytest.raises(UsageError, match="another window"):
        open_folder(work, {"text": "a", "window": {"local": 5}})
    with pytest.raises(UsageError, match="another text"):
        open_folder(work, {"window": {"local": 4}})
    (work / "maps-pca-000-0.safetensors").touch()
    (work / "part-5-9.unfinished").touch()
    (work / "part-of-mine.txt").touch()
    assert open_folder(work, {"text": "b"}, resume=False).tokens == 0
    assert {path.name for path in work.iterdir()} == {"esa-calibration.json", "part-of-mine.txt"}
    with pytest.raises(UsageError, match="another text"):
        open_folder(work, {"text": "a"})


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.png").write_bytes(b"cat")
    for resume in (True, False):
        with pytest.raises(UsageError, match="not a folder that"):
            open_folder(tmp_path / "photos", {}, resume)
        with pytest.raises(UsageError, match="not a folder that"):
            open_folder(tmp_path / "photos/cat.png", {}, resume)
    assert (tmp_path / "photos/cat.png").read_bytes() == b"cat"


def test_parts_behind_a_gap_do_not_count(tmp_path: Path) -> None:
    shards = open_folder(tmp_path / "work", {})
    for _ in range(3):
        shards.add(*rows(4))
    (tmp_path / "work/part-00000004-00000008.safetensors").unlink()
    assert Shards(tmp_path / "work").tokens == 4


def test_a_file_that_only_looks_like_a_part(tmp_path: Path) -> None:
    shards = open_folder(tmp_path / "work", {})
    shards.add(*rows(4))
    (tmp_path / "work/part-of-mine.safetensors").touch()
    assert Shards(tmp_path / "work").tokens == 4


def test_a_broken_part_is_named(tmp_path: Path) -> None:
    shards = open_folder(tmp_path / "work", {})
    shards.add(*rows(4))
    values = tmp_path / "work/values-00000000-00000004.safetensors"
    values.write_bytes(values.read_bytes()[:-1])
    with pytest.raises(UsageError, match="values-00000000-00000004"):
        next(shards.memories())
    (tmp_path / "work/part-00000000-00000004.safetensors").write_bytes(b"cut off")
    with pytest.raises(UsageError, match="part-00000000-00000004") as refused:
        shards.layer(0)
    assert "delete it" in refused.value.hint


@pytest.mark.parametrize("lost", ["part-00000024-00000048", "part-00000096-00000100"])
def test_a_part_that_was_deleted_after_the_end_is_made_again(
    lost: str, make_model: ModelFactory, tmp_path: Path
) -> None:
    """From the first token on: what would fill the memory again is gone by then."""
    model = make_model("llama")
    whole = [read(model, tmp_path / "work").layer(layer) for layer in range(2)]
    (tmp_path / "work" / f"{lost}.safetensors").unlink()
    done: list[int] = []
    again = read(model, tmp_path / "work", progress=lambda tokens, of: done.append(tokens))
    assert done[0] == FEED
    for layer in range(2):
        assert all(map(torch.equal, whole[layer], again.layer(layer)))


def test_a_part_that_was_deleted_before_the_end_is_all_that_is_read_again(
    make_model: ModelFactory, tmp_path: Path
) -> None:
    model = make_model("llama")
    whole = read(model, tmp_path / "whole")

    def kill(tokens: int, of: int) -> None:
        if tokens == 3 * FEED:
            raise Killed

    with pytest.raises(Killed):
        read(model, tmp_path / "cut", progress=kill)
    (tmp_path / "cut/values-00000024-00000048.safetensors").unlink()
    done: list[int] = []
    cut = read(model, tmp_path / "cut", progress=lambda tokens, of: done.append(tokens))
    assert done[0] == 2 * FEED
    for layer in range(2):
        assert all(map(torch.equal, whole.layer(layer), cut.layer(layer)))


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file may have more bytes: as a disk that is full, of which nothing else notices."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_while_a_part_is_written(tmp_path: Path) -> None:
    shards = open_folder(tmp_path / "work", {})
    shards.add(*rows(4))
    with small_files(2000), pytest.raises(ResourceError, match="File too large") as refused:
        shards.add(*rows(400))
    assert "--work" in refused.value.hint
    assert not list((tmp_path / "work").glob("*.unfinished"))
    assert Shards(tmp_path / "work").tokens == shards.tokens == 4
    with small_files(3), pytest.raises(ResourceError, match=r"esa-calibration\.json"):
        open_folder(tmp_path / "other", {"text": "a"})


def test_a_place_that_may_not_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DocumentError, match="cannot be written: Not a directory"):
        open_folder(tmp_path / "file/work", {})


@pytest.mark.parametrize("held", [b'{"text": "a', b"[1]", b"\xff\xfe", b""])
def test_damaged_settings_of_a_folder(held: bytes, tmp_path: Path) -> None:
    work = tmp_path / "work"
    open_folder(work, {"text": "a"}).add(*rows(4))
    (work / "esa-calibration.json").write_bytes(held)
    with pytest.raises(UsageError, match=r"esa-calibration\.json cannot be read") as refused:
        open_folder(work, {"text": "a"})
    assert "--no-resume" in refused.value.hint
    assert open_folder(work, {"text": "a"}, resume=False).tokens == 0


# Training


def samples(count: int = 400, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Queries and keys (count, WIDTH) with uneven spectra and a mean, as real ones have."""
    random = torch.Generator().manual_seed(seed)
    mixed = torch.randn(2, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))
    spread = torch.logspace(0.5, -1.5, WIDTH)
    queries = torch.randn(count, WIDTH, generator=random) * spread @ mixed[0] + 0.3
    keys = torch.randn(count, WIDTH, generator=random) * spread @ mixed[1]
    return queries, keys


def eq6(queries: Tensor, keys: Tensor, maps: Linear) -> float:
    """Eq. 6 over every query with every key."""
    full = queries.double() @ keys.double().T
    short = maps.queries(queries.double()) @ maps.keys(keys.double()).T
    return (full - short).square().sum().item()


def test_square_loss_is_eq_6() -> None:
    queries, keys = (x[:9] for x in samples())
    maps = Linear(torch.randn(WIDTH, 3), torch.randn(WIDTH, 3))
    lists = (reference.plain(x) for x in (queries, keys, maps.query_map, maps.key_map))
    got = square_loss(queries @ keys.T, maps.queries(queries) @ maps.keys(keys).T)
    assert got.item() * 81 == pytest.approx(reference.eq6_error(*lists), rel=1e-4)


def kl_by_loops(full: list[list[float]], reduced: list[list[float]]) -> float:
    total = 0.0
    for f, r in zip(full, reduced, strict=True):
        mean = sum(f) / len(f)
        spread = math.sqrt(sum((x - mean) ** 2 for x in f) / len(f))
        f_sum = sum(math.exp(x / spread) for x in f)
        r_sum = sum(math.exp(x / spread) for x in r)
        for x, y in zip(f, r, strict=True):
            wanted, got = math.exp(x / spread) / f_sum, math.exp(y / spread) / r_sum
            total += wanted * math.log(wanted / got)
    return total / len(full)


def test_rank_loss_is_the_divergence_of_softmaxes() -> None:
    full, reduced = 5 * torch.randn(4, 7), 5 * torch.randn(4, 7)
    want = kl_by_loops(reference.plain(full), reference.plain(reduced))
    assert rank_loss(full, reduced).item() == pytest.approx(want, rel=1e-4)
    assert rank_loss(full, full).item() == pytest.approx(0, abs=1e-6)
    shifted = full + torch.randn(4, 1)
    assert rank_loss(full, shifted).item() == pytest.approx(0, abs=1e-5), "Eq. 3 takes it out again"


@pytest.mark.parametrize("rank", [1, 4])
def test_training_approaches_the_closed_form_and_never_beats_it(rank: int) -> None:
    queries, keys = samples()
    best = eq6(queries, keys, closed_form(moments_of(queries, keys), rank))
    start = train(queries, keys, rank, Training(epochs=0))
    trained = train(queries, keys, rank, Training(epochs=30, lr=2e-2, batch=64))
    assert best * (1 - 1e-4) <= eq6(queries, keys, trained)
    assert eq6(queries, keys, trained) < best + 0.1 * (eq6(queries, keys, start) - best)


@pytest.mark.parametrize("loss", ["mse", "rank"])
@pytest.mark.parametrize("lr", [5e-4, 3.0])
def test_training_from_the_closed_form_does_not_get_worse(loss: Any, lr: float) -> None:
    """On tokens set apart: also where descent goes astray."""
    queries, keys = samples()
    cut = 360
    start = closed_form(moments_of(queries[:cut], keys[:cut]), 4)
    trained = train(queries, keys, 4, Training(20, 64, lr, loss, "closed-form"))
    compare = {"mse": square_loss, "rank": rank_loss}[loss]
    full = queries[cut:] @ keys[cut:].T
    before, after = (
        compare(full, maps.queries(queries[cut:]) @ maps.keys(keys[cut:]).T).item()
        for maps in (start, trained)
    )
    assert after <= before


def test_training_for_the_order_serves_the_many_not_the_loud() -> None:
    """A tenth of the queries are ten times as loud, in directions that the others do not use:
    they are all that Eq. 6 sees."""
    queries, keys = torch.randn(2, 600, WIDTH)
    queries[:, :6] *= 0.3
    queries[::10] = 10 * queries[::10] * torch.tensor([1 / 0.3] * 6 + [0.1] * 6)
    full = queries @ keys.T
    start = closed_form(moments_of(queries, keys), 4)
    trained = train(queries, keys, 4, Training(20, 64, 5e-3, "rank", "closed-form"))
    before, after = (maps.queries(queries) @ maps.keys(keys).T for maps in (start, trained))
    assert rank_loss(full, after) < 0.8 * rank_loss(full, before)
    assert recall(full, after, 60) > recall(full, before, 60) + 0.05


def test_training_repeats_itself_by_its_seed() -> None:
    queries, keys = samples(100)
    one, same, other = (
        train(queries, keys, 3, Training(epochs=2, seed=seed)) for seed in (5, 5, 6)
    )
    assert torch.equal(one.query_map, same.query_map)
    assert torch.equal(one.key_map, same.key_map)
    assert not torch.allclose(one.query_map, other.query_map)


def test_every_epoch_is_reported_and_outer_random_numbers_are_left_alone() -> None:
    queries, keys = samples(60)
    state = torch.get_rng_state()
    calls: list[tuple[int, int]] = []
    train(queries, keys, 2, Training(epochs=3), lambda done, of: calls.append((done, of)))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("count", [2, 3, 129])
def test_training_on_very_few_tokens(count: int) -> None:
    maps = train(*samples(count), 3, Training(epochs=1))
    assert torch.isfinite(maps.query_map).all()


# Ranks, 8 bits, recall


def greedy(spectra: list[list[float]], total: int) -> list[int]:
    """One dimension after the other to the layer that gains the largest share of itself."""
    ranks = [1] * len(spectra)
    while sum(ranks) < total:
        gains = [
            values[rank] ** 2 / sum(v * v for v in values) if rank < len(values) else -1.0
            for values, rank in zip(spectra, ranks, strict=True)
        ]
        ranks[gains.index(max(gains))] += 1
    return ranks


@pytest.mark.parametrize("total", [3, 4, 9, 17, 24])
def test_ranks_are_the_greedy_ones(total: int) -> None:
    spectra = [torch.rand(8).sort(descending=True).values * scale for scale in (1, 50, 0.01)]
    ranks = allocate(spectra, total)
    assert ranks == greedy([reference.plain(s) for s in spectra], total)
    assert sum(ranks) == total


def test_a_steep_layer_needs_fewer_dimensions_however_loud_it_is() -> None:
    flat, steep = torch.ones(8), 100 * torch.tensor([1.0, 0.1, 0.01, 0, 0, 0, 0, 0])
    assert allocate([flat, steep], 9) == [8, 1]


@pytest.mark.parametrize("total", [0, 2, 25])
def test_a_total_that_does_not_fit(total: int) -> None:
    with pytest.raises(UsageError, match="does not fit 3 layers"):
        allocate([torch.ones(8)] * 3, total)


def rounded(x: float, scale: float) -> float:
    return max(-127, min(127, round(x / scale))) * scale


def test_eight_bits_by_token() -> None:
    features = torch.randn(6, 5) * torch.logspace(-3, 3, 6)[:, None]
    for row, got in zip(
        reference.plain(features), reference.plain(by_token(features)), strict=True
    ):
        scale = max(abs(x) for x in row) / 127
        assert got == pytest.approx([rounded(x, scale) for x in row], rel=1e-4, abs=1e-6 * scale)
    assert torch.equal(by_token(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_eight_bits_by_dimension_cut_off_what_was_not_seen() -> None:
    seen, features = torch.randn(9, 4), 2 * torch.randn(7, 4)
    features[0, 0] = 100.0
    got = by_dimension(features, seen)
    for d in range(4):
        scale = max(abs(x) for x in reference.plain(seen[:, d])) / 127
        for n in range(7):
            want = rounded(features[n, d].item(), scale)
            assert got[n, d].item() == pytest.approx(want, rel=1e-4, abs=1e-6)
    assert got[0, 0] == pytest.approx(seen[:, 0].abs().max().item(), rel=1e-4)


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


def test_recall_of_held_out_tokens() -> None:
    """Whole maps find everything; a map onto one dimension does not, and 8 bits little less."""
    queries, keys = samples(120)
    apart = Heldout(queries[90:], keys[90:], keys[:90])
    full = apart.scores()
    torch.testing.assert_close(full, queries[90:] @ keys[90:].T)
    whole = apart.reduced(Linear(torch.eye(WIDTH), torch.eye(WIDTH)))
    assert recall(full, whole["float"], 5) == 1.0
    for stored in ("int8 by token", "int8 by dimension"):
        assert not torch.equal(whole[stored], whole["float"])
        assert 0.8 < recall(full, whole[stored], 5) <= 1.0
    eight = queries[90:] @ by_dimension(keys[90:], keys[:90]).T
    torch.testing.assert_close(whole["int8 by dimension"], eight)
    assert not torch.allclose(eight, queries[90:] @ by_dimension(keys[90:], keys[90:]).T)
    one = apart.reduced(closed_form(moments_of(queries[:90], keys[:90]), 1))
    assert recall(full, one["float"], 5) < 0.9


def test_k_is_limited_to_half_of_the_keys() -> None:
    assert limited([1024, 5], 40) == [5, 20]
    assert limited([1024, 4096], 40) == [20]
    assert limited([7], 1) == [1]


def test_rows_are_spaced_evenly() -> None:
    rows = torch.arange(100.0)[:, None]
    assert spaced(rows, 4)[:, 0].tolist() == [0, 33, 66, 99]
    assert torch.equal(spaced(rows, 100), rows)


# The study of all layers


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
        kept.add(queries, keys, keys)
    return kept


QUICK = Training(epochs=2, lr=1e-2)


def outcome(found: Study) -> dict[str, Any]:
    return found.as_dict()


def test_study_measures_what_was_not_fitted_on(shards: Shards) -> None:
    found = study(shards, [4, 4, 4], Fitting(training=QUICK), [8, 1000])
    assert (found.tokens, found.held_out, found.ks) == (300, 60, [8, 30])
    queries, keys = shards.layer(1)
    maps = closed_form(moments_of(queries[:240], keys[:240]), 4)
    torch.testing.assert_close(found.results["closed-form"].maps[1].key_map, maps.key_map)
    full = queries[240:] @ keys[240:].T
    short = maps.queries(queries[240:]) @ maps.keys(keys[240:]).T
    for at, k in enumerate((8, 30)):
        want = recall_by_loops(reference.plain(full), reference.plain(short), k)
        assert found.results["closed-form"].series(at=at)[1] == pytest.approx(want, abs=1e-3)
    want = eq6(queries[240:], keys[240:], maps) / full.square().sum().item()
    assert found.results["closed-form"].error[1] == pytest.approx(want, rel=1e-3)
    assert found.best == "closed-form"
    assert found.results["closed-form"].series()[2] > 0.99, "a layer of rank 2 loses nothing"


def test_an_interrupted_study_ends_as_one_without_a_break(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Fitting(training=QUICK)
    whole = outcome(study(shards, [3, 3, 3], settings, [8]))
    for path in shards.folder.glob("maps-*"):
        path.unlink()
    trainings: list[int] = []

    def dying(queries: Tensor, keys: Tensor, rank: int, training: Training) -> Linear:
        trainings.append(training.seed)
        if len(trainings) == 2:
            raise Killed
        return train(queries, keys, rank, training)

    monkeypatch.setattr(fitting, "train", dying)
    with pytest.raises(Killed):
        study(shards, [3, 3, 3], settings, [8])
    assert outcome(study(shards, [3, 3, 3], settings, [8])) == whole
    assert len(trainings) == 4, "the layer that was finished is not trained again"
    assert len(set(trainings)) == 3, "every layer has a seed of its own"


@pytest.mark.parametrize("broken", ["cut off", "empty", "something else"])
def test_damaged_maps_are_fitted_again(broken: str, shards: Shards) -> None:
    settings = Fitting(("pca",))
    whole = outcome(study(shards, [3, 3, 3], settings, [8]))
    file, *_ = sorted(shards.folder.glob("maps-*"))
    good, part = file.read_bytes(), next(shards.folder.glob("part-*")).read_bytes()
    file.write_bytes({"cut off": good[:-1], "empty": b"", "something else": part}[broken])
    assert outcome(study(shards, [3, 3, 3], settings, [8])) == whole
    assert file.read_bytes() == good


def saved_by_job(shards: Shards, done: Study, path: Path) -> None:
    model = fingerprint(build_model("llama"))
    unused: Any = None
    job = Job(unused, unused, selective(), [], shards, model, {})
    job.save(path, done, Fitting(("pca",)))


def test_no_room_for_the_maps_leaves_those_that_were_there(shards: Shards, tmp_path: Path) -> None:
    done = study(shards, [3, 3, 3], Fitting(("pca",)), [8])
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


def test_what_shapes_maps_is_not_taken_for_the_same(shards: Shards) -> None:
    only = Fitting(("learned",), QUICK)
    one = study(shards, [3, 3, 3], only, [8]).results["learned"].maps
    other = study(shards, [3, 2, 3], Fitting(("learned",), Training(epochs=1)), [8])
    maps = other.results["learned"].maps
    assert [m.query_map.shape[1] for m in maps] == [3, 2, 3]
    assert not torch.allclose(maps[0].query_map, one[0].query_map)


def test_a_rank_beyond_the_dimensions_is_all_of_them(shards: Shards) -> None:
    found = study(shards, [100] * 3, fitting_of("pca", {}), [8])
    assert list(found.results) == ["pca"]
    assert found.results["pca"].maps[0].query_map.shape == (WIDTH, WIDTH)
    assert found.results["pca"].mean() == 1.0


def test_total_ranks_come_from_the_fitted_tokens_spectra(shards: Shards) -> None:
    spectra = []
    for layer in range(3):
        queries, keys = shards.layer(layer)
        spectra.append(spectrum(moments_of(queries[:240], keys[:240])))
    ranks = choose_ranks(shards, 3, 12)
    assert ranks == allocate(spectra, 12)
    assert ranks[2] <= 2 < max(ranks)


# Which model a file is for


def test_the_fingerprint_knows_the_model() -> None:
    model = build_model("llama")
    found = fingerprint(model)
    assert (found.kind, found.layers, found.heads, found.groups, found.dim) == ("llama", 2, 6, 2, 8)
    assert fingerprint(build_model("llama")) == found
    assert of_file({KEY: found.as_text()}) == found
    assert of_file({}) is None
    assert fingerprint(build_model("llama", seed=1)) != found
    assert fingerprint(build_model("llama", num_hidden_layers=3)) != found


@pytest.mark.parametrize("name", ["q_proj", "k_proj"])
@pytest.mark.parametrize("layer", [0, -1])
def test_the_fingerprint_changes_with_a_weight(name: str, layer: int) -> None:
    model = build_model("llama")
    before = fingerprint(model)
    weight = getattr(model.base_model.layers[layer].self_attn, name).weight
    weight[3, 5] = -weight[3, 5]
    assert fingerprint(model).weights != before.weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_fingerprint_outlives_rounding(dtype: torch.dtype) -> None:
    model = build_model("llama")
    weight = model.base_model.layers[0].self_attn.q_proj.weight
    weight[0, 0], weight[0, 1] = -1e-12, 1e-12
    before = fingerprint(model)
    assert fingerprint(model.to(dtype)) == before


def plain_digest(model: Any) -> str:
    """Of a host whose weights are plain, as files of maps have it since the first version."""
    digest = hashlib.sha256()
    for layer in (model.model.layers[0], model.model.layers[-1]):
        for name in ("q_proj", "k_proj"):
            rows = getattr(layer.self_attn, name).weight.tolist()
            signs = (math.copysign(1, number) < 0 for row in rows for number in row)
            digest.update(bytes(signs))
    return digest.hexdigest()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fingerprint_of_plain_weights_is_their_signs(kind: str, dtype: torch.dtype) -> None:
    model = build_model(kind).to(dtype)
    assert fingerprint(model).weights == plain_digest(model)


class Packed(torch.nn.Module):
    """A quantised projection: its weight is no tensor, or is not there at all."""

    def __init__(self, linear: Any, method: bool) -> None:
        super().__init__()
        self.register_buffer("scale", linear.weight.abs().max() / 127)
        self.register_buffer("codes", (linear.weight / self.scale).round().to(torch.int8))
        if method:
            self.weight = lambda: self.codes * self.scale


def packed(seed: int = 0, method: bool = True) -> Any:
    model: Any = build_model("llama", seed)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj"):
            setattr(layer.self_attn, name, Packed(getattr(layer.self_attn, name), method))
    return model


@pytest.mark.parametrize("method", [True, False])
def test_the_fingerprint_of_packed_weights(method: bool) -> None:
    model = packed(method=method)
    before = fingerprint(model)
    assert fingerprint(packed(method=method)) == before
    assert fingerprint(packed(1, method)) != before
    model.model.layers[-1].self_attn.k_proj.codes[3, 5] += 1
    changed = fingerprint(model)
    assert changed != before
    model.model.layers[0].self_attn.q_proj.scale *= 2
    assert fingerprint(model) != changed


def test_the_fingerprint_of_weights_of_eight_bits() -> None:
    model: Any = build_model("llama")
    module = model.model.layers[0].self_attn.q_proj
    module.weight = torch.nn.Parameter(module.weight.to(torch.float8_e4m3fn), requires_grad=False)
    before = fingerprint(model)
    assert fingerprint(model) == before
    module.weight.view(torch.uint8)[3, 5] ^= 1
    assert fingerprint(model) != before


def test_a_projection_that_shows_no_weights_has_no_fingerprint() -> None:
    model: Any = build_model("llama")
    model.model.layers[-1].self_attn.k_proj = torch.nn.Identity()
    with pytest.raises(ModelError, match="shows no weights"):
        fingerprint(model)


def test_weights_that_are_not_in_memory_have_no_fingerprint() -> None:
    model: Any = build_model("llama")
    model.model.layers[1].mlp.to("meta")
    with pytest.raises(ModelError, match="offloaded") as refused:
        fingerprint(model)
    assert "whole" in refused.value.hint


def saved(path: Path, metadata: dict[str, str] | None) -> Learned:
    save_learned(path, [Linear(torch.randn(16, 4), torch.randn(16, 4))] * 2, metadata)
    return Learned(str(path))


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    mine, other = build_model("llama"), build_model("qwen3")
    learned = saved(tmp_path / "maps.safetensors", {KEY: fingerprint(mine).as_text()})
    check(learned, mine)
    with pytest.raises(PresetError, match=r"maps\.safetensors was made for a llama .*a qwen3 of"):
        check(learned, other)
    changed = build_model("llama", seed=1)
    with pytest.raises(PresetError) as refused:
        check(learned, changed)
    for model in (mine, changed):
        assert fingerprint(model).weights[:8] in refused.value.message


def test_files_that_say_nothing_and_other_compressors_pass(tmp_path: Path) -> None:
    model = build_model("llama")
    for compressor in (saved(tmp_path / "a.safetensors", None), ClosedForm(), NoCompression()):
        check(compressor, model)
        check(compressor, model, selective(rotate=True))


def at_distance(distance: int) -> Method:
    return replace(selective(rotate=True), position=FixedDistance(distance))


@pytest.mark.parametrize(
    ("made", "used", "words"),
    [
        (selective(), at_distance(64), "not rotated; this method's are rotated to distance 64"),
        (at_distance(64), selective(), "rotated to distance 64; this method's are not rotated"),
        (at_distance(64), at_distance(63), "distance 64; this method's are rotated to distance 63"),
    ],
)
def test_a_file_for_other_queries_is_refused(
    made: Method, used: Method, words: str, tmp_path: Path
) -> None:
    model = build_model("llama")
    learned = saved(tmp_path / "a.safetensors", aim(made))
    check(learned, model)
    check(learned, model, made)
    with pytest.raises(PresetError, match=words) as refused:
        check(learned, model, used)
    assert "--for" in refused.value.hint
    check(learned, model, replace(used, score=VoteScore()))


def test_the_distance_of_unrotated_queries_does_not_matter(tmp_path: Path) -> None:
    learned = saved(tmp_path / "a.safetensors", aim(selective()))
    check(learned, build_model("llama"), replace(selective(), position=FixedDistance(9)))


@pytest.mark.parametrize("text", ["no json", "[1]", '{"kind": "llama"}'])
def test_an_illegible_fingerprint(text: str, tmp_path: Path) -> None:
    learned = saved(tmp_path / "a.safetensors", {KEY: text})
    with pytest.raises(PresetError, match="legibly"):
        check(learned, build_model("llama"))


# The command

TINY = ["--preset", "tiny-random", "--device", "cpu", "--dtype", "float32"]
Esa = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("esa-home")


@pytest.fixture
def esa(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Esa]:
    """`esa calibrate`, in a folder of its own with a text; Ctrl-C works as before afterwards."""
    monkeypatch.setenv("ESA_HOME", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("ESA_MEMORY_LIMIT", raising=False)
    monkeypatch.setattr("esa_cli.qa.prefill.FEED", 128)
    monkeypatch.chdir(tmp_path)
    lines = [f"Gate {i} opens at {i % 24}, unless cat {i * i} sleeps.\n" for i in range(20)]
    (tmp_path / "note.md").write_text("".join(lines), "utf-8")
    handler = signal.getsignal(signal.SIGINT)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    yield run
    signal.signal(signal.SIGINT, handler)


def test_the_command_from_a_text_to_an_answer(esa: Esa, tmp_path: Path) -> None:
    files = ["--out", "maps.safetensors", "--recall-out", "recall.json", "--plot", "recall.png"]
    files += ["--report", "recall.html"]
    code, out, err = esa(
        "calibrate", "note.md", *TINY, "--rank", "6", "--epochs", "2", "--k", "8", "--k", "999",
        *files,
    )  # fmt: skip
    assert code == 0, err
    table = [line.split() for line in out.splitlines()]
    assert [row[0] for row in table[1:4]] == ["0", "1", "mean"]
    assert "--set compressor.name=learned --set compressor.file=maps.safetensors" in err
    data = json.loads((tmp_path / "recall.json").read_text("utf-8"))
    assert (data["model"], data["preset"], data["for"]) == ("random:llama", "tiny-random", "esa")
    assert data["ranks"] == [6, 6]
    assert data["held_out"] == round(0.2 * data["tokens"])
    assert data["k"] == [8, data["held_out"] // 2]
    assert "".join(table[0]) == "layerR" + "".join(f"{m}@{data['k'][1]}" for m in METHODS)
    methods = data["methods"]
    assert set(methods) == {"closed-form", "pca", "learned"}
    for name, method in methods.items():
        for stored in ("float", "int8 by token", "int8 by dimension"):
            layers = method["layers"][stored]
            assert [len(at_ks) for at_ks in layers] == [2, 2]
            for at in range(2):
                mean = sum(layer[at] for layer in layers) / 2
                assert method["mean"][stored][at] == pytest.approx(mean)
        assert f"{method['mean']['float'][1]:.3f}" in out, name
    best = max(methods, key=lambda name: methods[name]["mean"]["float"][1])
    assert data["written"] == {"file": "maps.safetensors", "method": best}
    assert (tmp_path / "recall.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "recall.html").read_text("utf-8")
    assert f"recall@{data['k'][1]} per layer, tiny-random" in page
    assert all(name in page for name in methods)
    metadata = Learned("maps.safetensors").metadata
    assert metadata["method"] == best
    assert json.loads(metadata["ranks"]) == [6, 6]
    assert of_file(metadata) is not None
    use = ["--set", "compressor.name=learned", "--set", "compressor.file=maps.safetensors"]
    code, answer, err = esa("ask", "note.md", "When?", *TINY, *use)
    assert code == 0, err
    assert answer.strip()


def test_one_method_and_a_total_rank(esa: Esa) -> None:
    code, out, err = esa(
        "calibrate", "note.md", *TINY, "--json", "-q", "--method", "learned", "--total-rank", "9",
        "--loss", "rank", "--init", "closed-form", "--epochs", "1", "--tokens", "300",
    )  # fmt: skip
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["tokens"] == 300
    assert sum(data["ranks"]) == 9
    assert set(data["methods"]) == {"learned"}
    assert data["training"]["loss"] == "rank"
    assert Path("compressor.safetensors").is_file()
    assert data["written"]["file"] == "compressor.safetensors"


def test_ctrl_c_keeps_what_was_read(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["calibrate", "note.md", *TINY, "--rank", "4", "--epochs", "1", "--json"]
    whole = json.loads(esa(*command, "--out", "whole.safetensors")[1])
    add, parts = Shards.add, []

    def interrupted(self: Shards, *rows: Any) -> None:
        add(self, *rows)
        parts.append(self.tokens)
        if len(parts) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Shards, "add", interrupted)
    code, out, err = esa(*command, "--out", "cut.safetensors")
    assert (code, out) == (130, "")
    assert "cut.work keeps what was done" in err
    assert err.endswith("esa: interrupted\n")
    code, out, err = esa(*command, "--out", "cut.safetensors")
    assert code == 0
    assert "256 of" in err
    again = json.loads(out)
    assert parts[:3] == [128, 256, 384]
    assert {**again, "written": None} == {**whole, "written": None}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["nosuch.md"], 3, "nosuch.md"),
        (["note.md", "--method", "lerned"], 2, "did you mean 'learned'?"),
        (["note.md", "--loss", "l1"], 2, "--loss 'l1' is unknown"),
        (["note.md", "--init", "zero"], 2, "--init 'zero' is unknown"),
        (["note.md", "--rank", "4", "--total-rank", "8"], 2, "exclude each other"),
        (["note.md", "--total-rank", "1"], 2, "does not fit 2 layers"),
        (["note.md", "--total-rank", "99999"], 2, "does not fit 2 layers"),
        (["note.md", "--out", "nosuch/maps.safetensors"], 2, "there is no folder"),
        (["note.md", "--plot", "."], 2, "--plot . is a folder"),
        (["note.md", "--report", "."], 2, "--report . is a folder"),
        (["note.md", "--for", "qest"], 2, "did you mean 'quest'?"),
        (["note.md", "--out", "note.md"], 2, "--out note.md is one of the documents"),
        (["note.md", "--work", "note.md"], 2, "--work note.md is one of the documents"),
        (["note.md", "--recall-out", "note.md"], 2, "--recall-out note.md is one of the documents"),
        (["note.md", "--plot", "note.md"], 2, "--plot note.md is one of the documents"),
        (["note.md", "--report", "./note.md"], 2, "is one of the documents"),
        ([".", "--report", "note.md"], 2, "--report note.md is one of the documents"),
        (["note.md", "--out", "other.md"], 2, "did not make it"),
        (["note.md", "--work", "other.md"], 2, "--work other.md is not a folder"),
        (["note.md", "--work", "other.md/work"], 2, "there is no folder"),
        (["note.md", "--out", "a.x", "--recall-out", "./a.x"], 2, "--out and --recall-out are"),
        (["note.md", "--plot", "a.x", "--report", "a.x"], 2, "--plot and --report are both a.x"),
        (["note.md", "--out", "maps.work"], 2, "--out and --work are both maps.work"),
        (["note.md", "--work", "a", "--out", "a"], 2, "--out and --work are both a"),
        (["note.md", "--tokens", "20"], 2, "too few"),
        (["note.md", "--set", "window.chnk=3"], 4, "chunk"),
    ],
)
def test_mistakes(esa: Esa, options: list[str], code: int, words: str, tmp_path: Path) -> None:
    """Before anything is read, and nothing is overwritten."""
    (tmp_path / "other.md").write_text("Somebody's own.\n", "utf-8")
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    found, out, err = esa("calibrate", *options, *TINY)
    assert (found, out) == (code, ""), err
    assert words in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("option", ["--plot", "--report"])
def test_a_plot_without_matplotlib_is_refused_before_anything_is_read(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = esa("calibrate", "note.md", *TINY, option, "recall.file")
    assert (code, out) == (2, "")
    assert f"{option} needs matplotlib" in err
    assert [path.name for path in tmp_path.iterdir()] == ["note.md"]


def test_what_is_cut_is_said_and_written_as_it_is(esa: Esa) -> None:
    short = ["calibrate", "note.md", *TINY, "--json", "--method", "pca", "--tokens", "200"]
    code, out, err = esa(*short, "--rank", "999", "--k", "8", "--k", "1024")
    assert code == 0, err
    data = json.loads(out)
    (width,) = {row[1] for row in shapes("compressor.safetensors")}
    assert data["ranks"] == [width] * 2
    assert json.loads(Learned("compressor.safetensors").metadata["ranks"]) == [width] * 2
    assert f"--rank 999: keys have {width} dimensions" in err
    assert data["k"] == [8, 20]
    assert "--k 1024: at most half of the 40 keys held out; k is 20" in err
    assert "--k 8:" not in err
    code, _, err = esa(*short, "--rank", str(width), "--k", "20")
    assert code == 0
    assert "--rank" not in err
    assert "--k" not in err


def shapes(file: str) -> list[tuple[int, ...]]:
    return [tuple(maps.shape) for maps in load_file(file).values()]


def test_no_room_and_damage_on_the_way(esa: Esa, tmp_path: Path) -> None:
    """No bug is reported, and what the messages advise helps."""
    short = ["calibrate", "note.md", *TINY, "-q", "--method", "pca", "--rank", "2"]
    assert esa(*short)[0] == 0
    with small_files(20_000):
        code, _, err = esa(*short, "--work", "other")
    assert code == 6
    assert "cannot be written: File too large" in err
    part, *_ = sorted((tmp_path / "compressor.work").glob("part-*"))
    good = part.read_bytes()
    part.write_bytes(b"damaged")
    code, _, err = esa(*short)
    assert code == 2
    assert f"{part.name} cannot be read" in err
    assert "delete it" in err
    part.unlink()
    code, _, err = esa(*short)
    assert code == 0, err
    assert part.read_bytes() == good


def test_a_work_folder_of_another_reading(esa: Esa) -> None:
    short = ["calibrate", "note.md", *TINY, "-q", "--method", "pca", "--rank", "2"]
    assert esa(*short, "--tokens", "200")[0] == 0
    code, _, err = esa(*short, "--tokens", "300")
    assert code == 2
    assert "another number of tokens" in err
    assert esa(*short, "--tokens", "300", "--no-resume")[0] == 0


def test_a_method_that_will_not_use_the_maps_is_refused(esa: Esa) -> None:
    command = ["calibrate", "note.md", *TINY, "-q", "--method", "pca", "--tokens", "200"]
    vote = ["--for", "preset", "--set", "score.name=vote"]
    for wanted in (["--for", "esa-vote"], ["--for", "infllm"], vote):
        code, out, err = esa(*command, *wanted)
        assert (code, out) == (2, "")
        assert "scores with whole keys" in err
        assert "score.shortlist" in err
    assert not Path("compressor.work").exists()
    assert esa(*command, *vote, "--set", "score.shortlist=20")[0] == 0
    assert json.loads(Learned("compressor.safetensors").metadata["rotate"]) is True


def test_maps_are_for_the_papers_score_unless_another_is_named(esa: Esa) -> None:
    """Whatever score the preset has."""
    command = ["calibrate", "note.md", *TINY, "--method", "pca", "--tokens", "200"]
    vote = ["--set", "score.name=vote", "--set", "score.shortlist=20"]
    code, _, err = esa(*command, *vote)
    assert code == 0
    assert Learned("compressor.safetensors").metadata["rotate"] == "false"
    use = next(line for line in err.splitlines() if line.startswith("  --")).split()
    assert "sum" in use
    made = preset.load("tiny-random", overrides_of(use))
    method = build.method(made)
    assert aim(method) == {"rotate": "false"}
    assert (method.score, method.selector) == (SumScore(), TopK(proximity=3))
    assert made.position == method_presets.apply("esa", preset.load("tiny-random")).position
    assert esa("ask", "note.md", "When?", *TINY, *vote, *use)[0] == 0


def overrides_of(options: list[str]) -> list[str]:
    """`esa ask` options as texts for `preset.load`."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    named = [f"{name[2:]}.name={value}" for name, value in pairs if name != "--set"]
    return [*named, *(value for name, value in pairs if name == "--set")]


def test_the_documented_options_use_the_maps() -> None:
    text = (Path(__file__).parents[2] / "docs/cli.md").read_text("utf-8")
    (line,) = [one for one in text.splitlines() if "esa ask" in one and "=maps.safetensors" in one]
    made = preset.load("smollm2-135m", overrides_of(line.split('"..." ')[1].split()))
    method = build.method(made)
    assert method.compressor == Learned("maps.safetensors")
    assert isinstance(method.selector, TopK)
    assert method.score.features
    fitted = build.method(aimed("esa", preset.load("smollm2-135m")))
    assert aim(method) == aim(fitted) == {"rotate": "false"}
