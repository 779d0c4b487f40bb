"""An accelerator that is not there: tensors in the processor's memory count as lying on a device,
and what a program would wait for on a real one is counted.

On a GPU, work is queued. A program waits where it reads a value, where the number of results
depends on values, and where a tensor is copied from the host's memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from traceback import extract_stack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("cpu", 0)
"""To torch the processor, like the device without a number; the simulation tells them apart."""
READS = {
    "__int__", "__float__", "__bool__", "__index__", "item", "tolist", "cpu", "numpy", "equal",
    "nonzero", "masked_select", "unique", "unique_consecutive", "is_nonzero", "allclose",
}  # fmt: skip
INDEXING = {"__getitem__", "__setitem__"}
MIXED = {*INDEXING, "__get__", "copy_", "to"}
"""Functions that take tensors of both sides."""


class SimulatedDevice(TorchFunctionMode):
    """Counts waits, by the line of code that waits, and apart from them copies from the host that
    are queued.

    `put` moves a model or a tensor there; tensors made from such ones, or with their `device`, lie
    there, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.queued: Counter[str] = Counter()

    @property
    def waits(self) -> int:
        return self.reads.total() + self.copies.total()

    @property
    def traffic(self) -> int:
        """Waits, and copies that are queued."""
        return self.waits + self.queued.total()

    def put(self, *things: torch.nn.Module | torch.Tensor) -> None:
        for one in things:
            if isinstance(one, torch.Tensor):
                _mark(one)
            else:
                self.put(*one.parameters(), *one.buffers())

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        there = [one for one in tensors if lies_there(one)]
        if name == "__get__" and func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return DEVICE if there else func(*args, **kwargs)
        if name == "__get__" and func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return bool(there)
        wanted = _device(name, args, kwargs)
        if there:
            self._look_at(name, args, kwargs, tensors, wanted)
        result = func(*args, **kwargs)
        if wanted == DEVICE and not there:
            if tensors or name in ("tensor", "as_tensor"):
                counter = self.queued if kwargs.get("non_blocking") else self.copies
                counter[_place()] += 1
                result = tree_map_only(torch.Tensor, torch.Tensor.detach, result)
            return tree_map_only(torch.Tensor, _mark, result)
        if not there:
            return result
        if wanted in (None, DEVICE):
            return tree_map_only(torch.Tensor, _mark, result)
        return tree_map_only(torch.Tensor, torch.Tensor.detach, result)

    def _look_at(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        wanted: torch.device | None,
    ) -> None:
        here = [one for one in tensors if not lies_there(one) and one.dim()]
        if name in READS or (name == "to" and wanted not in (None, DEVICE)):
            self.reads[_place()] += 1
        elif name in INDEXING:
            indices = tree_leaves(args[1])
            if any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in indices):
                self.reads[_place()] += 1
            lists = isinstance(args[1], list) or (
                isinstance(args[1], tuple) and any(isinstance(one, list) for one in args[1])
            )
            if here or lists:
                self.copies[_place()] += 1
        elif here and name == "copy_":
            (self.queued if kwargs.get("non_blocking") else self.copies)[_place()] += 1
        elif here and name not in MIXED:
            raise RuntimeError(f"{name} needs tensors on one device, at {_place()}")


def lies_there(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "_simulated", False)


def _mark(tensor: torch.Tensor) -> torch.Tensor:
    tensor._simulated = True  # type: ignore[attr-defined]
    return tensor


def _device(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that a call names: one of `.to(other)` is the other's."""
    if name in ("cpu", "numpy"):
        return torch.device("cpu")
    named = [kwargs.get("device"), *(args[1:] if name == "to" else ())]
    for one in named:
        if isinstance(one, torch.device | str):
            return torch.device(one)
        if isinstance(one, torch.Tensor):
            return DEVICE if lies_there(one) else torch.device("cpu")
    return None


def _place() -> str:
    """The innermost line outside of torch and this file."""
    frames = [one for one in extract_stack() if "torch/" not in one.filename]
    last = [one for one in frames if one.filename != __file__][-1]
    return f"{last.filename.rpartition('/')[2]}: {last.line}"
