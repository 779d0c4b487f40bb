"""Rows against a plain list of rows."""

from __future__ import annotations

import random

import pytest
import torch

from esa_cli.storage import growing_rows as rows_module
from esa_cli.storage.growing_rows import LAST_SEGMENT, RESERVE, GrowingRows

WIDTH = 3
CPU = torch.device("cpu")


def numbered(first: int, count: int) -> torch.Tensor:
    """Rows that can be told apart: row i is (i, i + 0.25, i + 0.5)."""
    return torch.arange(first, first + count)[:, None] + torch.tensor([0.0, 0.25, 0.5])


def filled(count: int) -> GrowingRows:
    rows = GrowingRows(WIDTH, torch.float32, CPU)
    rows.append(numbered(0, count))
    return rows


def as_tensor(model: list[list[float]]) -> torch.Tensor:
    return torch.tensor(model).reshape(-1, WIDTH)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("whole", [False, True])
def test_random_operations_match_a_list(
    seed: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "in_one_segment", lambda device: whole)
    draw = random.Random(seed)
    rows, model = GrowingRows(WIDTH, torch.float32, CPU), []
    written = 0
    for _ in range(60):
        if draw.random() < 0.25:
            length = draw.randrange(-2, len(model) + 4)
            rows.truncate(length)
            model = model[: max(length, 0)]
        else:
            new = numbered(written, draw.choice([0, 1, 1, 3, 8, 40]))
            written += new.shape[0]
            rows.append(new)
            model += new.tolist()
        assert rows.length == len(model)
        assert rows.capacity >= rows.length
        assert len(rows._segments) <= 1 or not whole
        assert rows.nbytes == (rows.capacity if whole else len(model)) * WIDTH * 4
        low, high = sorted(draw.randint(0, len(model)) for _ in range(2))
        assert torch.equal(rows.span(low, high), as_tensor(model[low:high]))
        most = draw.choice([1, 5, 1000])
        seen = []
        for at, view in rows.blocks(low, high, most):
            assert at == low + len(seen)
            assert 0 < view.shape[0] <= most
            seen += view.tolist()
        assert seen == model[low:high]
        if model:
            at = sorted(draw.sample(range(len(model)), draw.randint(0, len(model))))
            found = rows.gather(torch.tensor(at, dtype=torch.long))
            assert torch.equal(found, as_tensor([model[i] for i in at]))


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("edge", [7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65])
def test_segment_borders(edge: int) -> None:
    rows = filled(100)
    assert torch.equal(rows.span(edge - 1, edge + 1), numbered(edge - 1, 2))
    assert torch.equal(
        rows.gather(torch.tensor([0, edge - 1, edge, 99])),
        numbered(0, 100)[[0, edge - 1, edge, 99]],
    )
    rows.truncate(edge)
    rows.append(numbered(edge, 5))
    assert torch.equal(rows.span(0, edge + 5), numbered(0, edge + 5))


def test_data_never_moves_while_growing() -> None:
    rows = filled(1)
    first = rows.span(0, 1)
    places = {}
    for at in range(1, 40000, 997):
        rows.append(numbered(at, 997))
        for start, segment in zip(rows._starts, rows._segments, strict=True):
            assert places.setdefault(start, segment.data_ptr()) == segment.data_ptr()
    assert rows.span(0, 1).data_ptr() == first.data_ptr()
    assert len(places) > 3
    assert torch.equal(rows.span(0, 40), numbered(0, 40))


def test_expected_rows_are_allocated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "in_one_segment", lambda device: True)
    rows = GrowingRows(WIDTH, torch.float32, CPU)
    rows.expect(5000)
    assert rows.capacity == 0
    rows.append(numbered(0, 10))
    first = rows.span(0, 1).data_ptr()
    rows.append(numbered(10, 4990))
    assert (rows.capacity, rows.span(0, 1).data_ptr()) == (5000, first)
    rows.append(numbered(5000, 1))
    assert rows.capacity == 5000 + RESERVE
    assert torch.equal(rows.span(4990, 5001), numbered(4990, 11))


def test_rows_that_nobody_expected_grow_by_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "in_one_segment", lambda device: True)
    rows = filled(5000)
    assert rows.capacity == 5000
    rows.append(numbered(5000, 1))
    assert rows.capacity == 6250


def test_segments_double_up_to_the_largest() -> None:
    rows = GrowingRows(1, torch.float32, CPU)
    rows.append(torch.zeros(70000, 1))
    sizes = [segment.shape[0] for segment in rows._segments]
    assert sizes[:6] == [1024, 1024, 2048, 4096, 8192, 16384]
    assert max(sizes) == LAST_SEGMENT


def test_span_inside_one_segment_is_a_view_and_across_is_a_copy() -> None:
    rows = filled(1500)
    rows.span(10, 12).fill_(-1)
    assert torch.equal(rows.span(10, 12), torch.full((2, WIDTH), -1.0))
    rows.span(1023, 1025).fill_(-2)
    assert torch.equal(rows.span(1023, 1025), numbered(1023, 2))


def test_truncate_keeps_memory_for_what_comes_next() -> None:
    rows = filled(3000)
    capacity, place = rows.capacity, rows.span(0, 1).data_ptr()
    rows.truncate(0)
    assert (rows.length, rows.capacity, rows.nbytes) == (0, capacity, 0)
    rows.append(numbered(0, 3000))
    assert (rows.capacity, rows.span(0, 1).data_ptr()) == (capacity, place)


def test_empty() -> None:
    rows = GrowingRows(WIDTH, torch.bfloat16, CPU)
    assert rows.span(0, 0).shape == (0, WIDTH)
    assert rows.span(0, 0).dtype == torch.bfloat16
    assert list(rows.blocks(0, 0, 4)) == []
    rows.append(torch.empty(0, WIDTH))
    assert rows.length == 0


def test_gather_nothing_from_rows_that_hold_nothing() -> None:
    nothing = torch.arange(0)
    assert GrowingRows(WIDTH, torch.float32, CPU).gather(nothing).shape == (0, WIDTH)
