"""The plan of an ingest: memory and time, estimated before anything is loaded.

`costs` counts bytes and operations; here they are held to the machine: its memory, and its
operations per second, as measured at the last ingest or by a short matrix product.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

from esa_cli.errors import ResourceError
from esa_cli.qa.finding.load_encoder import FinderSizes
from esa_cli.qa.planning import measured_speed
from esa_cli.qa.planning.costs import FEED, Costs, Shape, rank_of, shape_of
from esa_cli.qa.planning.index_costs import IndexCosts
from esa_cli.qa.resolved_preset import ResolvedPreset
from esa_cli.system import machine

EFFICIENCY = 0.6
"""Share of a plain matrix product's speed that a prefill reaches, while nothing was measured."""
_PROBE_S = 0.15


class Planner:
    """Plans of documents of any length, for one method, model and machine.

    Args:
        resolved: the method, and the model's name, by which speeds are remembered.
        config: the model's config.json. dtype: of weights and keys.
        device: of torch, or "balanced"; see `models.load.choose_device`.
        memory: bytes there were before anything was loaded; None: those there are now.
        index: the sizes of the finder whose index is computed instead of rows; see `index_sizes`.

    Raises:
        PresetError: the compressor is not for this model. ModelError: config.json lacks a size.
        UsageError: $ESA_MEMORY_LIMIT is not a size.
    """

    def __init__(
        self,
        resolved: ResolvedPreset,
        config: dict[str, Any],
        *,
        dtype: torch.dtype,
        device: str,
        memory: int | None = None,
        index: FinderSizes | None = None,
    ) -> None:
        method, shape = resolved.method, shape_of(config)
        given = shape, method, rank_of(method, shape), device not in ("cpu", "mps")
        self.costs = Costs(*given) if index is None else IndexCosts(*given, index)
        self.dtype, self.device = dtype, device
        self.memory = machine.available_memory(device) if memory is None else memory
        model, threads = resolved.preset.model, torch.get_num_threads()
        how = method.reading if index is None else "index"
        self.rate_key = f"{model}|{self.dtype_name}|{device}|{how}|{threads} threads"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @cached_property
    def measured(self) -> float | None:
        """Operations per second of the last ingest; None: there was none."""
        return measured_speed.recall(self.rate_key)

    @cached_property
    def rate(self) -> float:
        """Operations per second; where none was measured it takes a moment to find one."""
        return self.measured or EFFICIENCY * _probe(self.costs.shape, self.dtype, self.device)

    def plan(self, tokens: int) -> Plan:
        """The plan of an ingest of `tokens` tokens."""
        costs, size = self.costs, self.dtype.itemsize
        return Plan(
            tokens=tokens,
            device=self.device,
            dtype=self.dtype_name,
            weights=costs.shape.weights * size,
            keys_values=costs.keys_values(tokens, size),
            reduced_keys=costs.reduced_keys(tokens, size),
            working=costs.working(tokens, size),
            available=self.memory,
            operations=costs.operations(tokens),
            planner=self,
        )

    def check(self, tokens: int) -> None:
        """Raises ResourceError, with what would make it fit, when `tokens` tokens do not."""
        self.plan(tokens).check()

    def remember(self, plan: Plan, seconds: float) -> None:
        """Keeps the speed of an ingest that took so many seconds."""
        self.measured = self.rate = plan.operations / seconds
        measured_speed.remember(self.rate_key, self.rate)


@dataclass(frozen=True)
class Plan:
    """Bytes, operations and seconds that ingesting `tokens` tokens will take."""

    tokens: int
    device: str
    dtype: str
    weights: int
    keys_values: int
    reduced_keys: int
    working: int
    available: int
    operations: float
    planner: Planner = field(repr=False)

    @property
    def needed(self) -> int:
        return self.weights + self.keys_values + self.reduced_keys + self.working

    @property
    def fits(self) -> bool:
        return self.needed <= self.available

    @property
    def seconds(self) -> float:
        return self.operations / self.planner.rate

    @property
    def rate_from(self) -> Literal["measured", "probe"]:
        return "measured" if self.planner.measured else "probe"

    @property
    def most_tokens(self) -> int:
        """Tokens that would fit with the same settings."""
        return self.planner.costs.most_tokens(self.available, self.planner.dtype.itemsize)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Settings that would make it fit, best first; empty when it does."""
        if self.fits:
            return ()
        made = self.planner
        return tuple(_remedies(made.costs, self.tokens, made.dtype, self.device, self.available))

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
    """True if a person's limit, not the memory there is, decides."""
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
