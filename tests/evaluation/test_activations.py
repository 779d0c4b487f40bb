"""What calibration reads: queries and keys of each layer, kept on disk; resumed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from calibration_tools import Killed, selective
from conftest import ModelFactory
from torch import Tensor

from esa_cli.attention.compression import ClosedForm
from esa_cli.attention.method import Method
from esa_cli.attention.positions import FixedDistance
from esa_cli.attention.selection import SumScore
from esa_cli.attention.window import Window
from esa_cli.errors import ResourceError, UsageError
from esa_cli.evaluation.calibration.activations import (
    Shards,
    collect,
    open_folder,
    whole_key_method,
)
from esa_cli.models.attachment import attach as seam

TOKENS = 100
FEED = 24
IDS = [(7 * i * i + 3 * i) % 61 for i in range(TOKENS)]


@pytest.fixture(autouse=True)
def small_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", FEED)


Model = Any


def read(model: Model, folder: Path, method: Method | None = None, **options: Any) -> Shards:
    shards = open_folder(folder, {"tokens": TOKENS})
    with seam.attach(model, whole_key_method(method or selective())) as attachment:
        collect(attachment, IDS, shards, **options)
    return shards


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


def test_queries_of_half_precision_are_summed_in_float32(
    make_model: ModelFactory, tmp_path: Path
) -> None:
    """Sums over heads in float16 can be beyond its largest number."""
    model = make_model("llama").half()
    projection = model.base_model.layers[0].self_attn.q_proj
    projection.weight.data[:] = 100000 / model.config.hidden_size
    seen: list[Tensor] = []
    hook = projection.register_forward_hook(lambda _m, _i, out: seen.append(out[0]))
    queries, keys = read(model, tmp_path / "work").layer(0)
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


@pytest.mark.parametrize(("parts", "kind"), [(1, "llama"), (4, "llama"), (2, "deepseek_v3")])
def test_a_killed_reading_goes_on_where_it_was(
    parts: int, kind: str, make_model: ModelFactory, tmp_path: Path
) -> None:
    """To the last bit, although later tokens select among the earlier."""
    model = make_model(kind)
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


def rows(count: int) -> dict[str, Tensor]:
    """Queries, keys and values of one layer, (count, 3)."""
    return {f"{kind}.0": torch.randn(count, 3) for kind in ("queries", "keys", "values")}


def test_a_folder_belongs_to_one_reading(tmp_path: Path) -> None:
    work = tmp_path / "work"
    shards = open_folder(work, {"text": "a", "window": {"local": 4}})
    shards.add(rows(5))
    assert open_folder(work, {"text": "a", "window": {"local": 4}}).tokens == 5
    with pytest.raises(UsageError, match="another window"):
        open_folder(work, {"text": "a", "window": {"local": 5}})
    with pytest.raises(UsageError, match="another text"):
        open_folder(work, {"window": {"local": 4}})


def test_a_broken_part_is_named(tmp_path: Path) -> None:
    shards = open_folder(tmp_path / "work", {})
    shards.add(rows(4))
    (tmp_path / "work/part-00000000-00000004.safetensors").write_bytes(b"cut off")
    for use in (lambda: next(shards.memories()), lambda: shards.layer(0)):
        with pytest.raises(UsageError, match="part-00000000-00000004") as refused:
            use()
        assert "delete it" in refused.value.hint


@pytest.mark.parametrize("lost", ["part-00000024-00000048", "part-00000096-00000100"])
def test_a_part_that_was_deleted_after_the_end_is_made_again(
    lost: str, make_model: ModelFactory, tmp_path: Path
) -> None:
    """With what follows it; the parts before it fill the memory again."""
    model = make_model("llama")
    whole = [read(model, tmp_path / "work").layer(layer) for layer in range(2)]
    (tmp_path / "work" / f"{lost}.safetensors").unlink()
    done: list[int] = []
    again = read(model, tmp_path / "work", progress=lambda tokens, of: done.append(tokens))
    assert done[0] == (2 * FEED if "48" in lost else TOKENS)
    for layer in range(2):
        assert all(map(torch.equal, whole[layer], again.layer(layer)))
