"""A CUDA graph without a GPU: torch's operations are recorded with the tensors they read and write,
and replayed on the same tensors, without the Python that called them.

What a real recording does not allow is an error: reading a value, results whose number depends on
values, and tensors made of the host's data. Whatever Python computes of a number that changes from
token to token is recorded as it is, and replayed wrong, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from simulated_device import SimulatedDevice
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from esa_cli.models.decoding.cuda_graph import MakeGraph

READS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "nonzero_numpy", "argwhere",
    "masked_select", "unique_dim", "_unique", "_unique2", "unique_consecutive",
}  # fmt: skip
FROM_HOST = {"lift_fresh", "lift_fresh_copy", "lift"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Recorder(TorchDispatchMode):
    """Runs operations and keeps them, with what they returned."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in READS or name in FROM_HOST or _by_mask(name, args):
            raise RuntimeError(f"{name} cannot be recorded")
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, _tensors(result)))
        return result


class SimulatedGraph:
    """Takes the place of `CudaGraph`."""

    def __init__(self, device: torch.device) -> None:
        self._recorder = Recorder()
        self.replays = 0

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        function()
        with self._recorder:
            result = function()
        # Nothing is computed while a GPU records: only replaying gives values.
        result.fill_(torch.nan)
        return result

    def replay(self) -> None:
        self.replays += 1
        # Nothing of Python's sees a replay.
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for func, args, kwargs, results in self._recorder.calls:
                for new, old in zip(_tensors(func(*args, **kwargs)), results, strict=True):
                    if new.data_ptr() != old.data_ptr():
                        old.copy_(new)


def unwaiting_graph(device: SimulatedDevice) -> MakeGraph:
    """A `SimulatedGraph` that fails where recording waits for the device, or copies to it."""

    class Unwaiting(SimulatedGraph):
        def record(self, function: Callable[[], Tensor]) -> Tensor:
            before = device.traffic
            found = super().record(function)
            assert device.traffic == before, (device.reads, device.copies, device.queued)
            return found

    return Unwaiting


def _tensors(things: Any) -> list[Tensor]:
    return [one for one in tree_leaves(things) if isinstance(one, Tensor)]


def _by_mask(name: str, args: Any) -> bool:
    return name in INDEXING and any(one.dtype == torch.bool for one in _tensors(args[1]))
