"""float64 where sums need it, on every device."""

from __future__ import annotations

import pytest
import torch

from esa_cli.attention.algebra import to_float64


class OnAMac(torch.Tensor):
    """Pretends to lie on a device without float64."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps")

    def double(self) -> torch.Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def test_a_device_without_float64_is_left_first() -> None:
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(TypeError, match="MPS"):
        x.as_subclass(OnAMac).double()
    assert torch.equal(to_float64(x.as_subclass(OnAMac)), x.double())


def test_float64_is_float64() -> None:
    x = torch.rand(3, dtype=torch.bfloat16)
    assert to_float64(x).dtype == torch.float64
    assert to_float64(x).tolist() == x.tolist()
