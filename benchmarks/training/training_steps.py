"""What the trainings of readers and finders have in common in each step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from esa_cli.errors import UsageError
from esa_cli.models.text_passes.text_forward import LoraAdapter


def rate_share(spent: float, steps: int, warm_up: int, final: float) -> float:
    """Share of the highest learning rate: a linear rise over `warm_up` steps, times a cosine that
    falls to `final` while the share `spent` of the budget goes from 0 to 1."""
    cosine = 0.5 * (1 + math.cos(math.pi * spent))
    rise = min(1.0, (steps + 1) / warm_up) if warm_up else 1.0
    return rise * (final + (1 - final) * cosine)


def make_trainable(adapter: LoraAdapter, model: nn.Module) -> None:
    """Makes an adapter's matrices float32 parameters on the devices of their layers."""
    layers = dict(model.named_modules())

    def parameter(matrix: Tensor, name: str) -> nn.Parameter:
        device = next(layers[name].parameters()).device
        return nn.Parameter(matrix.detach().to(device, torch.float32))

    adapter.matrices = {
        name: (parameter(a, name), parameter(b, name)) for name, (a, b) in adapter.matrices.items()
    }


@contextmanager
def fixed_weights(model: nn.Module) -> Iterator[None]:
    """The model's own weights get no gradients until the block ends."""
    weights = list(model.parameters())
    before = [weight.requires_grad for weight in weights]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for weight, flag in zip(weights, before, strict=True):
            weight.requires_grad_(flag)


@contextmanager
def training_attention(model: Any) -> Iterator[None]:
    """A model on the processor computes attention as plain matrix products until the block ends.

    The gradients of PyTorch's fused attention are slow there: a step of 16 examples of 180 tokens
    in bfloat16 takes 1.4 times as long on two idle cores (`benchmarks/training/training_step.py`).
    """
    before = model.config._attn_implementation
    on_processor = model.device.type == "cpu"
    if on_processor:
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        if on_processor:
            model.set_attn_implementation(before)


def check_gradient(norm: Tensor, step: int) -> None:
    """Raises UsageError: the gradient's norm is no number."""
    if not torch.isfinite(norm):
        raise UsageError(
            f"the gradient must be finite, got {float(norm)} at step {step}",
            "try a lower --lr, or --dtype bfloat16 or float32",
        )
