"""Copies between host memory and the device that computes, which does not wait for them.

On CUDA they run on a stream of their own, and the host's memory is pinned, so that the GPU copies
by itself. On other devices a copy is done when the call returns. Not run on a GPU so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from esa_cli.storage.growing_rows import GrowingRows


class CopyEvent(Protocol):
    """The end of a copy; torch.cuda.Event is one."""

    def synchronize(self) -> None:
        """Blocks the processor until the copy is done."""

    def wait(self, stream: torch.cuda.Stream | None = None) -> None:
        """Lets what is launched from now on, on this stream, begin after the copy."""


class _Done:
    def synchronize(self) -> None:
        pass

    def wait(self, stream: torch.cuda.Stream | None = None) -> None:
        pass


DONE: CopyEvent = _Done()


class PendingRows:
    """Rows on their way to a device."""

    def __init__(self, rows: Tensor, event: CopyEvent) -> None:
        self._rows, self.event = rows, event

    def get(self) -> Tensor:
        """The rows, for what is launched from now on."""
        if self._rows.is_cuda:
            stream = torch.cuda.current_stream(self._rows.device)
            self.event.wait(stream)
            self._rows.record_stream(stream)
        else:
            self.event.wait()
        return self._rows


class HostCopies:
    """The copies of one device. They are made in the order in which they were begun.

    Args:
        device: that computes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device(device)
        self.pinned = self.device.type == "cuda"
        """Whether the host's memory must be pinned."""
        stream: Any = torch.cuda.Stream  # untyped
        self._stream: torch.cuda.Stream | None = stream(self.device) if self.pinned else None
        self._staging = [_Staging(self.pinned) for _ in range(2)]

    def to_host(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> CopyEvent:
        """Copies from the device to host memory: pairs of target and source, which is not to be
        overwritten before the event."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            for _, source in pairs:
                source.record_stream(self._stream)
        event = DONE
        for target, source in pairs:
            event = self._begin(partial(_copy, target, source))
        return event

    def to_device(self, source: Tensor) -> PendingRows:
        """A copy of host memory, which is not to be written before the event."""
        # The copy needs not wait for what is computed now if its memory is the stream's own.
        with torch.cuda.stream(self._stream):
            target = torch.empty(source.shape, dtype=source.dtype, device=self.device)
        return PendingRows(target, self._begin(partial(_copy, target, source)))

    def gather(self, matrices: Sequence[GrowingRows], at: Tensor) -> PendingRows:
        """Rows at ascending positions (K,) of n matrices in host memory -> (n, K, width)."""
        staging = self._staging[0]
        self._staging.reverse()
        first = matrices[0]
        rows = staging.take((len(matrices), at.shape[0], first.width), first.dtype)
        for matrix, out in zip(matrices, rows, strict=True):
            matrix.gather(at, out)
        pending = self.to_device(rows)
        staging.event = pending.event
        return pending

    def _begin(self, copy: Callable[[], None]) -> CopyEvent:
        """Begins a copy after those before."""
        if self._stream is None:
            copy()
            return DONE
        with torch.cuda.stream(self._stream):
            copy()
            event: CopyEvent = self._stream.record_event()
        return event


class _Staging:
    """Host memory that is used again; two of them let the processor collect rows while those before
    are copied."""

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned
        self.event = DONE
        """The end of the copy that reads it."""
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor in this memory, once it is not read any more."""
        self.event.synchronize()
        size = dtype.itemsize * torch.Size(shape).numel()
        if self._bytes.shape[0] < size:
            with torch.inference_mode(False):
                self._bytes = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
        return self._bytes[:size].view(dtype).view(shape)


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)
