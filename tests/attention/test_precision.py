"""float64 where sums need it, on every device."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from esa_cli.attention.precision import to_float64

PACKAGE = Path(__file__).parents[2] / "esa_cli"
ON_THE_PROCESSOR = {
    "attention/precision.py": "the place itself",
    "evaluation/passages.py": "weights that the witness keeps in main memory",
    "qa/evidence/evidence_page.py": "the same weights",
    "evaluation/calibration/calibration_pipeline.py": "on the CPU where there is no CUDA",
    "evaluation/calibration/head_ranking.py": "goes to main memory first",
    "evaluation/calibration/vote_journal.py": "goes to main memory first",
}
"""Files that may ask for float64 by themselves, and why they can."""


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


def test_nobody_else_asks_a_device_for_float64() -> None:
    asking = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("double", "float64"):
                asking.add(path.relative_to(PACKAGE).as_posix())
    assert asking <= set(ON_THE_PROCESSOR)
