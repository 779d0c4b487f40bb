"""MemoryStore against lists of keys and values."""

from __future__ import annotations

import pytest
import torch

from esa_cli.storage.memory_store import MemoryStore

HEADS, DIM = 3, 4
pytestmark = pytest.mark.usefixtures("small_segments")


def filled(count: int) -> tuple[MemoryStore, torch.Tensor, torch.Tensor]:
    """A store fed in uneven pieces, and what it was fed."""
    store = MemoryStore(HEADS, DIM, torch.float32, torch.device("cpu"))
    k, v = torch.randn(2, HEADS, count, DIM)
    at = 0
    for size in [1, 9, 2, 17] * count:
        if at >= count:
            break
        store.append(k[:, at : at + size], v[:, at : at + size])
        at += size
    return store, k, v


def test_span_and_gather_give_back_what_was_appended() -> None:
    store, k, v = filled(75)
    assert len(store) == 75
    assert store.nbytes == 75 * 2 * HEADS * DIM * 4
    for low, high in [(0, 75), (3, 5), (7, 9), (30, 70), (75, 75)]:
        keys, values = store.span(low, high)
        assert torch.equal(keys, k[:, low:high])
        assert torch.equal(values, v[:, low:high])
    at = torch.tensor([0, 7, 8, 15, 16, 31, 32, 74])
    keys, values = store.gather(at)
    assert torch.equal(keys, k[:, at])
    assert torch.equal(values, v[:, at])


def test_a_token_is_one_contiguous_row() -> None:
    store, _, _ = filled(5)
    keys, values = store.span(0, 5)
    assert keys.stride() == (DIM, 2 * HEADS * DIM, 1)
    assert values.data_ptr() - keys.data_ptr() == HEADS * DIM * 4


def test_appending_the_hosts_transposed_views() -> None:
    store = MemoryStore(HEADS, DIM, torch.float32, torch.device("cpu"))
    k, v = torch.randn(2, 6, HEADS, DIM).transpose(1, 2)
    store.append(k, v)
    assert torch.equal(store.span(0, 6)[0], k)
    assert torch.equal(store.span(0, 6)[1], v)


@pytest.mark.parametrize("most", [1, 6, 500])
def test_key_blocks(most: int) -> None:
    store, k, _ = filled(60)
    at = 5
    for start, keys in store.key_blocks(5, 58, most):
        assert start == at
        assert keys.shape[1] <= most
        assert torch.equal(keys, k[:, at : at + keys.shape[1]])
        at += keys.shape[1]
    assert at == 58
    for groups in ([1], [2, 0]):
        parts = [keys for _, keys in store.key_blocks(5, 58, most, groups)]
        assert torch.equal(torch.cat(parts, 1), k[groups, 5:58])
    (_, whole), (_, last) = (next(store.key_blocks(0, 60, most, g)) for g in (None, [2]))
    assert last.data_ptr() == whole[2].data_ptr(), "looked at, not copied"


def test_features_follow_their_own_count() -> None:
    store, _, _ = filled(40)
    assert store.reduced == 0
    features = torch.randn(30, 5)
    store.append_features(features[:11])
    store.append_features(features[11:])
    assert store.reduced == 30
    assert store.nbytes == 40 * 2 * HEADS * DIM * 4 + 30 * 5 * 4
    found = list(store.feature_blocks(2, 29, 4))
    assert [at for at, _ in found][:2] == [2, 6]
    assert torch.equal(torch.cat([block for _, block in found]), features[2:29])


def test_crop_takes_back_tokens_features_and_memo() -> None:
    store, k, v = filled(40)
    store.append_features(torch.randn(35, 5))
    store.crop(-3)
    assert (len(store), store.reduced) == (37, 35)
    store.crop(-10)
    assert (len(store), store.reduced) == (27, 27)
    new_k, new_v = torch.randn(2, HEADS, 9, DIM)
    store.append(new_k, new_v)
    assert torch.equal(store.span(0, 36)[0], torch.cat((k[:, :27], new_k), 1))
    assert torch.equal(store.span(0, 36)[1], torch.cat((v[:, :27], new_v), 1))
    assert store.reduced == 27
    store.crop(-1000)
    assert (len(store), store.reduced) == (0, 0)


def test_the_first_tokens_can_be_taken_out() -> None:
    store, k, v = filled(20)
    features = torch.randn(20, 5)
    store.append_features(features)
    rows, reduced = store.first(9)
    assert torch.equal(rows, torch.cat((k[:, :9], v[:, :9])).transpose(0, 1).reshape(9, -1))
    assert reduced is not None
    assert torch.equal(reduced, features[:9])
    store.drop_first(9)
    assert len(store) == store.reduced == 11
    assert torch.equal(store.span(0, 11)[1], v[:, 9:])
    assert torch.equal(torch.cat([b for _, b in store.feature_blocks(0, 11)]), features[9:])
