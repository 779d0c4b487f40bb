"""HostStore against MemoryStore, with copies that are made as late as allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import properties
import pytest
import torch
from delayed_copies import DelayedCopies
from hypothesis import given
from hypothesis import strategies as st

from esa_cli.storage.host_copies import HostCopies
from esa_cli.storage.host_store import HostStore
from esa_cli.storage.joined_store import JoinedStore, StoreSlice
from esa_cli.storage.memory_store import MemoryStore
from esa_cli.storage.recent_rows import RecentRows

assert properties
HEADS, DIM, RANK, NEAR = 2, 4, 3, 12
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("small_segments")
Pair = tuple[HostStore, MemoryStore, DelayedCopies]


def empty(near: int = NEAR) -> Pair:
    copies = DelayedCopies()
    host = HostStore(HEADS, DIM, torch.float32, copies, near)
    return host, MemoryStore(HEADS, DIM, torch.float32, CPU), copies


def add(pair: Pair, count: int) -> None:
    k, v = torch.randn(2, HEADS, count, DIM)
    for store in pair[:2]:
        store.append(k, v)


def filled(count: int, near: int = NEAR) -> Pair:
    pair = empty(near)
    for low in range(0, count, 5):
        add(pair, min(5, count - low))
    return pair


def assert_equal(mine: Any, theirs: Any) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        assert torch.equal(one, other)


def some(length: int, seed: int) -> torch.Tensor:
    """Ascending positions below `length`."""
    random = torch.Generator().manual_seed(seed)
    return torch.rand(length, generator=random).lt(0.4).nonzero()[:, 0]


ACTIONS = st.sampled_from(["append", "crop", "span", "gather", "prefetch", "blocks", "features",
                           "release"])  # fmt: skip


@given(st.lists(st.tuples(ACTIONS, st.integers(0, 99), st.integers(0, 99)), max_size=60),
       st.integers(1, 20))  # fmt: skip
def test_it_does_what_a_memory_store_does(steps: list[tuple[str, int, int]], near: int) -> None:
    pair = empty(near)
    host, plain, _ = pair
    add(pair, 30)
    for action, first, second in steps:
        low, high = sorted((first * len(plain) // 99, second * len(plain) // 99))
        if action == "append":
            add(pair, 1 + first % 23)
        elif action == "crop":
            for store in (host, plain):
                store.crop(-min(first, len(plain)))
        elif action == "span":
            assert_equal(host.span(low, high), plain.span(low, high))
        elif action in ("gather", "prefetch"):
            at = some(len(plain), second)
            if action == "prefetch":
                host.prefetch(at)
                add(pair, first % 3)
            assert_equal(host.gather(at), plain.gather(at))
        elif action == "blocks":
            groups = [None, [1], [1, 0]][second % 3]
            found = [
                torch.cat(
                    [keys for _, keys in store.key_blocks(low, high, 1 + first % 9, groups)], 1
                )
                for store in (host, plain)
                if high > low
            ]
            assert all(torch.equal(one, found[0]) for one in found)
        elif action == "features":
            made = torch.randn(min(first, len(plain) - plain.reduced), RANK)
            for store in (host, plain):
                store.append_features(made)
        else:
            host.release()
        assert len(host) == len(plain)
        assert host.reduced == plain.reduced
    assert_equal(host.span(0, len(plain)), plain.span(0, len(plain)))


def test_key_blocks_are_in_order_and_cover_all() -> None:
    host, plain, _ = filled(75)
    at = 3
    for start, keys in host.key_blocks(3, 70, 6):
        assert start == at
        assert 0 < keys.shape[1] <= 6
        assert torch.equal(keys, plain.span(at, at + keys.shape[1])[0])
        at += keys.shape[1]
    assert at == 70


def test_the_next_block_is_copied_while_one_is_used() -> None:
    host, _, copies = filled(75)
    copies.make(copies.begun)
    for number, _ in enumerate(host.key_blocks(0, 48, 8)):
        assert copies.begun - copies.made == (number < 5)


def test_near_tokens_need_no_copy() -> None:
    host, plain, copies = filled(75)
    before = copies.rows
    assert_equal(host.span(75 - NEAR, 75), plain.span(75 - NEAR, 75))
    at = torch.tensor([64, 70, 74])
    assert_equal(host.gather(at), plain.gather(at))
    assert copies.rows == before


def test_what_was_cropped_comes_back_from_the_host_once() -> None:
    pair = filled(75)
    host, plain, copies = pair
    for store in (host, plain):
        store.crop(-20)
    for _ in range(4):
        add(pair, 1)
        low = len(plain) - 8
        assert_equal(host.span(low, len(plain)), plain.span(low, len(plain)))
    assert 0 < copies.rows <= 2 * NEAR, "keys and values"


def test_only_selected_rows_are_copied() -> None:
    host, plain, copies = filled(75)
    at = torch.tensor([0, 7, 8, 31, 70])
    assert_equal(host.gather(at), plain.gather(at))
    assert copies.rows == 4
    host.prefetch(at)
    assert copies.rows == 8
    assert_equal(host.gather(at), plain.gather(at))
    assert copies.rows == 8, "fetched beforehand"


def joined(copies: DelayedCopies) -> JoinedStore:
    """Two documents of 60 tokens, of which the device has the last 12, and a tail."""
    parts = []
    for _ in range(2):
        host = HostStore(HEADS, DIM, torch.float32, copies, NEAR)
        host.append(*torch.randn(2, HEADS, 60, DIM))
        parts.append(StoreSlice(host, 0, 60))
    made = JoinedStore(parts, MemoryStore(HEADS, DIM, torch.float32, CPU))
    made.append(*torch.randn(2, HEADS, 5, DIM))
    return made


def test_concatenated_documents_are_fetched_beforehand() -> None:
    copies = DelayedCopies()
    both, at = joined(copies), torch.tensor([0, 7, 58, 62, 70, 122])
    want = both.gather(at)
    before, made = copies.begun, copies.made
    both.prefetch(at)
    assert (copies.begun - before, copies.made) == (2, made), "none is waited for"
    assert_equal(both.gather(at), want)
    assert copies.begun - before == 2
    assert_equal(both.gather(at), want)


def test_what_an_interrupted_question_prefetched_is_dropped() -> None:
    both = joined(DelayedCopies())
    both.prefetch(torch.tensor([0, 7, 62]))
    both.crop(-5)
    kept: list[Any] = [part.store for part in both._parts]
    assert not any(one._fetch.at.numel() for one in kept)


def test_layers_share_the_memory_that_rows_are_collected_in() -> None:
    copies, layers = DelayedCopies(), []
    for _ in range(4):
        host = HostStore(HEADS, DIM, torch.float32, copies, NEAR)
        host.append(*torch.randn(2, HEADS, 60, DIM))
        layers.append(host)
    wanted = [some(48, seed) for seed in range(4)]
    for host, at in zip(layers, wanted, strict=True):
        host.prefetch(at)
    for host, at in zip(layers, wanted, strict=True):
        keys, _ = host.gather(at)
        assert torch.equal(keys, host.span(0, 60)[0][:, at])


@pytest.mark.parametrize("change", [lambda s: s.crop(-70), lambda s: add((s, s, s), 40)])
def test_what_was_prefetched_is_forgotten_when_tokens_change(
    change: Callable[[Any], None],
) -> None:
    host, _, _ = filled(75)
    at = torch.tensor([0, 2, 4])
    want = host.gather(at)
    host.prefetch(at)
    change(host)
    assert_equal(host.gather(at), want)


def test_rows_that_were_handed_out_stay_as_they_are() -> None:
    pair = filled(40)
    host, _, _ = pair
    keys, values = host.span(30, 40)
    kept = keys.clone(), values.clone()
    for _ in range(30):
        add(pair, 3)
    assert_equal((keys, values), kept)


def test_the_device_keeps_the_near_tokens_and_reduced_keys_alone() -> None:
    pair = empty()
    add(pair, 500)
    recent: RecentRows = pair[0]._recent
    assert recent.stop - recent.start <= recent.capacity < 2 * NEAR
    assert recent._rows is not None
    assert recent._rows.shape == (2, recent.capacity, HEADS * DIM)
    written = sum(one.length for one in pair[0]._host)
    assert pair[0].nbytes == (written + 2 * recent.capacity) * HEADS * DIM * 4
    pair[0].release()
    assert recent._rows is None
    assert_equal(pair[0].span(490, 500), pair[1].span(490, 500))


def test_rows_are_written_to_the_host_in_pieces() -> None:
    pair = filled(NEAR)
    copies = pair[2]
    before = copies.begun
    for _ in range(2 * pair[0]._recent.slack):
        add(pair, 1)
    assert 0 < copies.begun - before <= 8


def test_copies_on_the_processor_are_made_at_once() -> None:
    host = HostStore(HEADS, DIM, torch.bfloat16, HostCopies(CPU), NEAR)
    plain = MemoryStore(HEADS, DIM, torch.bfloat16, CPU)
    k, v = torch.randn(2, HEADS, 90, DIM).bfloat16()
    for store in (host, plain):
        store.append(k, v)
    at = some(90, 1)
    first = host.gather(at)
    for _ in range(3):
        host.gather(some(90, 2))
    assert_equal(first, plain.gather(at))
