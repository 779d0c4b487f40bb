"""A function's work on a CUDA device, recorded once and replayed by one call. Not yet run on a GPU
by this project; `tests/support/simulated_graph.py` has the same without one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import torch
from torch import Tensor


class Graph(Protocol):
    """A recorded function. Its tensors are those of the recording, and replaying reads and writes
    the same memory again."""

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        """Calls `function` twice, the second time to record it; it must be the same each time.
        Returns its result, which has values after each `replay`.

        Raises:
            RuntimeError: it waits for the device, or does something else that cannot be recorded.
        """
        ...

    def replay(self) -> None:
        """Does what was recorded."""
        ...


WAITED = "called a synchronizing CUDA operation"
"""torch's warning where it waits for a GPU."""
MakeGraph = Callable[[torch.device], Graph]


class CudaGraph:
    """A `torch.cuda.CUDAGraph` with memory of its own, which is freed with it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graph = torch.cuda.CUDAGraph()

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        """See `Graph`."""
        with torch.cuda.device(self._device):
            stream, before = _recording_stream(self._device), torch.cuda.current_stream()
            stream.wait_stream(before)
            # Libraries allocate at the first call, which a recording does not allow.
            with torch.cuda.stream(stream), _checked_for_waits():
                function()
            before.wait_stream(stream)
            recording = torch.cuda.graph(
                self._graph, stream=stream, capture_error_mode="thread_local"
            )
            try:
                with recording:
                    return function()
            finally:  # torch leaves the stream as it is where a recording fails
                torch.cuda.set_stream(before)

    def replay(self) -> None:
        """See `Graph`."""
        self._graph.replay()


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings: cuBLAS keeps memory for every stream that it is called on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _checked_for_waits() -> Iterator[None]:
    """Raises RuntimeError behind the block if torch waited for a GPU in it: in the middle of a
    recording that would leave the device's allocator unsettled."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # "error" would fail in whatever other threads do meanwhile, too.
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    # The mode warns of itself, too, when it is first set.
    if any(WAITED in str(one.message) for one in caught):
        raise RuntimeError("the model's forward call waits for the GPU")


def graphs_on(device: torch.device) -> MakeGraph | None:
    """What makes graphs on a device; None where there are none."""
    return CudaGraph if device.type == "cuda" else None
