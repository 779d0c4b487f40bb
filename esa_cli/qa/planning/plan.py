"""What reading a document will take: memory and time, worked out before anything is loaded.

`costs` says how many bytes and operations; here they meet the machine: the memory it has, and
the operations it does in a second, measured at the last reading or by a short matrix product.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import torch

from esa_cli.errors import ResourceError
from esa_cli.qa import build_method as build
from esa_cli.qa.planning import measured_speed as rates
from esa_cli.qa.planning.costs import FEED, Costs, Shape, rank_of, shape_of
from esa_cli.qa.preset import Preset
from esa_cli.system import machine

EFFICIENCY = 0.6
"""Share of a plain matrix product's speed that reading reaches, while nothing was measured."""
_PROBE_S = 0.15


@dataclass(frozen=True)
class Plan:
    """Bytes, operations and seconds that reading `tokens` tokens will take."""

    tokens: int
    device: str
    dtype: str
    weights: int
    keys_values: int
    reduced_keys: int
    working: int
    available: int
    operations: float
    seconds: float
    rate_from: Literal["measured", "probe"]
    rate_key: str
    most_tokens: int
    """Tokens that would fit with the same settings."""
    remedies: tuple[str, ...]
    """What would make it fit, best first; empty when it does."""

    @property
    def needed(self) -> int:
        return self.weights + self.keys_values + self.reduced_keys + self.working

    @property
    def fits(self) -> bool:
        return self.needed <= self.available

    def check(self) -> None:
        """Raises ResourceError, with what would make it fit, when it does not."""
        if self.fits:
            return
        has = "ESA_MEMORY_LIMIT allows" if _capped(self.device) else f"{self.device} has"
        raise ResourceError(
            f"{self.tokens:,} tokens need {machine.size_text(self.needed)} of memory, and "
            f"{has} {machine.size_text(self.available)}",
            "; or ".join(self.remedies),
        )


def _probe(shape: Shape, dtype: torch.dtype, device: str) -> float:
    """Operations per second of the MLP's matrix product on FEED tokens."""
    place = "cuda" if device == "balanced" else device
    x = torch.ones(FEED, shape.hidden, dtype=dtype, device=place)
    weight = torch.ones(shape.hidden, shape.inner, dtype=dtype, device=place)
    float((x[:64] @ weight)[0, 0])
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < _PROBE_S:
        float((x @ weight)[0, 0])  # waits for the device
        done += 1
    return 2.0 * x.numel() * shape.inner * done / spent


def _capped(device: str) -> bool:
    """Whether a person's limit, not the memory there is, decides."""
    limit = machine.memory_limit()
    return limit is not None and limit < machine.free_memory(device)


def _remedies(costs: Costs, tokens: int, dtype: torch.dtype, device: str, memory: int) -> list[str]:
    out = []
    if dtype.itemsize > 2 and costs.needed(tokens, 2) <= memory:
        out.append("use --dtype bfloat16, which fits")
    if costs.on_gpu and costs.needed(tokens, dtype.itemsize) <= machine.available_memory("cpu"):
        out.append("use --device cpu, where it fits")
    most = costs.most_tokens(memory, dtype.itemsize)
    half = costs.most_tokens(memory, 2)
    if most > 0:
        out.append(f"give fewer or shorter documents: {most:,} tokens fit")
    elif half > 0:
        out.append(f"give shorter documents and --dtype bfloat16: {half:,} tokens fit")
    more = "raise ESA_MEMORY_LIMIT" if _capped(device) else "free some memory"
    return [*out, "use a smaller model with --model", more]


def estimate(
    preset: Preset,
    config: dict[str, Any],
    tokens: int,
    *,
    dtype: torch.dtype,
    device: str,
    memory: int | None = None,
    timed: bool = True,
) -> Plan:
    """What reading `tokens` tokens takes.

    Args:
        preset: names the method, and the model by which speeds are remembered.
        config: the model's config.json. dtype: of weights and keys.
        device: of torch, or "balanced"; see `models.load.choose_device`.
        memory: bytes there were before anything was loaded; None: those there are now.
        timed: whether the seconds matter; where no speed is known it takes a moment to find one.

    Raises:
        PresetError: the method does not hold. ModelError: config.json lacks a size.
        UsageError: $ESA_MEMORY_LIMIT is not a size.
    """
    method, shape = build.method(preset), shape_of(config)
    costs = Costs(shape, method, rank_of(method, shape), device not in ("cpu", "mps"))
    size = dtype.itemsize
    memory = machine.available_memory(device) if memory is None else memory
    name = str(dtype).removeprefix("torch.")
    key = f"{preset.model}|{name}|{device}|{method.reading}|{torch.get_num_threads()} threads"
    measured = rates.recall(key)
    rate = measured or (EFFICIENCY * _probe(shape, dtype, device) if timed else float("inf"))
    fits = costs.needed(tokens, size) <= memory
    return Plan(
        tokens=tokens,
        device=device,
        dtype=name,
        weights=shape.weights * size,
        keys_values=costs.keys_values(tokens, size),
        reduced_keys=costs.reduced_keys(tokens, size),
        working=costs.working(tokens, size),
        available=memory,
        operations=costs.operations(tokens),
        seconds=costs.operations(tokens) / rate,
        rate_from="measured" if measured else "probe",
        rate_key=key,
        most_tokens=costs.most_tokens(memory, size),
        remedies=() if fits else tuple(_remedies(costs, tokens, dtype, device, memory)),
    )
