"""The plan of an ingest: memory and time, estimated before anything is loaded.

`costs` counts bytes and operations; here they are compared with the machine's memory, and its
operations per second, as measured at the last ingest or by a short matrix product.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from esa_cli.errors import ResourceError
from esa_cli.models.files.checkpoint_files import language_settings
from esa_cli.models.files.prepared_models import home
from esa_cli.qa.finding.finder import FinderSizes
from esa_cli.qa.planning.costs import FEED, STORED_AT_ONCE, Costs, RowCosts
from esa_cli.qa.planning.model_shape import Shape, shape_of, weights_of
from esa_cli.qa.planning.row_storage import hindrance
from esa_cli.qa.presets.resolved_preset import ResolvedPreset
from esa_cli.system import machine
from esa_cli.system.files import replacing

SECONDS = 0.15
EFFICIENCY = 0.6
"""Share of a plain matrix product's speed that a prefill reaches, while nothing was measured."""


def probe(shape: Shape, dtype: torch.dtype, device: str) -> float:
    """Operations per second of the MLP's matrix product on FEED tokens."""
    x = torch.ones(FEED, shape.hidden, dtype=dtype, device=device)
    weight = torch.ones(shape.hidden, shape.inner, dtype=dtype, device=device)
    float((x[:64] @ weight)[0, 0])
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < SECONDS:
        float((x @ weight)[0, 0])  # synchronises with the device
        done += 1
    return 2.0 * x.numel() * shape.inner * done / spent


def rates_file() -> Path:
    """`rates.json` in esa's cache folder: operations per second of the last ingest of each kind."""
    return home() / "rates.json"


def recall(key: str) -> float | None:
    """Operations per second measured last for `key`, or None."""
    rate = _rates().get(key)
    return float(rate) if isinstance(rate, (int, float)) and rate > 0 else None


def _rates() -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(rates_file().read_text("utf-8"))
        return data if isinstance(data, dict) else {}
    return {}


def remember(key: str, rate: float) -> None:
    """Keeps `rate`, in operations per second, where the file can be written."""
    path = rates_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(json.dumps({**_rates(), key: rate}, indent=1) + "\n", "utf-8")


class Planner:
    """Plans of documents of any length, for one method, model and machine.

    Args:
        resolved: the method, and the model's name, by which speeds are remembered.
        folder: of the model, with config.json at least. dtype: of weights and keys.
        device: of torch; see `models.load.choose_device`.
        memory: bytes there were before anything was loaded; None: those there are now.
        index: the sizes of the index that is computed instead of rows; see `index_sizes`.
        by_words: passages are found by their words, and no document is read.
        cache: where rows are: device, host, auto or disk; one of `storage.CACHES`.
        packing: of the layers' weights, of `QUANTIZATIONS`; "": none.

    Raises:
        PresetError: the compressor is not for this model. ModelError: config.json lacks a size, or
            the weights' files are damaged. UsageError: $ESA_MEMORY_LIMIT is not a size.
    """

    def __init__(
        self,
        resolved: ResolvedPreset,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: str,
        memory: int | None = None,
        index: FinderSizes | None = None,
        by_words: bool = False,
        cache: str = "auto",
        packing: str = "",
    ) -> None:
        shape = shape_of(language_settings(folder))
        self.weights = weights_of(folder, device, dtype.itemsize, packing)
        on_gpu, body = device not in ("cpu", "mps"), self.weights.body
        self.costs, self.cache, how = Costs(shape, on_gpu, body, index), "device", "index"
        self.may_store_rows = False
        if index is None and not by_words:
            method = resolved.method
            self.costs = RowCosts(shape, on_gpu, body, method=method)
            self.cache, how = cache, method.reading
            self.may_store_rows = not hindrance(method)
        self.ratios = self.costs.ratios
        self.dtype, self.device, self.packing = dtype, device, packing
        self.memory = machine.available_memory(device) if memory is None else memory
        self.host_memory = machine.available_memory("cpu") if on_gpu else 0
        model, threads = resolved.preset.model, torch.get_num_threads()
        self.rate_key = f"{model}|{self.dtype_name}|{device}|{how}|{threads} threads"

    @property
    def dtype_name(self) -> str:
        return self.packing or str(self.dtype).removeprefix("torch.")

    @cached_property
    def measured(self) -> float | None:
        """Operations per second of the last ingest; None: there was none."""
        return recall(self.rate_key)

    @cached_property
    def rate(self) -> float:
        """Operations per second; where none was measured it takes a moment to find one."""
        return self.measured or EFFICIENCY * probe(self.costs.shape, self.dtype, self.device)

    def plan(self, tokens: int, size: int | None = None, cache: str | None = None) -> Plan:
        """The plan of an ingest of `tokens` tokens.

        Args:
            size: bytes of a number; None: of `dtype`. cache: another place of rows.
        """
        costs, size, cache = self.costs, size or self.dtype.itemsize, cache or self.cache
        at_once = min(tokens, STORED_AT_ONCE) if cache == "disk" else tokens
        weights, working = self.weights.bytes_of(size), costs.working(tokens, size)
        reduced, host_layers = costs.reduced_keys(at_once, size), 0
        if isinstance(costs, RowCosts) and costs.on_gpu and cache in ("host", "auto"):
            room = self.memory - weights - working - reduced
            fewest = costs.fewest_host_layers(at_once, size, room)
            host_layers = costs.shape.rows if cache == "host" else fewest
        on_device, on_host = costs.keys_values(at_once, size, host_layers)
        return Plan(
            tokens=tokens,
            device=self.device,
            dtype=self.dtype_name,
            weights=weights,
            keys_values=on_device,
            reduced_keys=reduced,
            working=working,
            available=self.memory,
            host_layers=host_layers,
            host_keys_values=on_host,
            host_available=self.host_memory,
            operations=costs.operations(tokens),
            planner=self,
        )

    def most_tokens(self, size: int) -> int:
        """Tokens that fit, with numbers of `size` bytes."""
        low, high = 0, 1 << 28
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.plan(middle, size).fits
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def check(self, tokens: int) -> None:
        """Raises ResourceError, with what would make it fit, when `tokens` tokens do not."""
        self.plan(tokens).check()

    def remember(self, plan: Plan, seconds: float) -> None:
        """Keeps the speed of an ingest that took so many seconds."""
        self.measured = self.rate = plan.operations / seconds
        remember(self.rate_key, self.rate)


@dataclass(frozen=True)
class Plan:
    """Bytes, operations and seconds that ingesting `tokens` tokens will take.

    `keys_values` are those on the device; `host_keys_values`, of the last `host_layers` layers,
    those in host memory.
    """

    tokens: int
    device: str
    dtype: str
    weights: int
    keys_values: int
    reduced_keys: int
    working: int
    available: int
    host_layers: int
    host_keys_values: int
    host_available: int
    operations: float
    planner: Planner = field(repr=False)

    @property
    def needed(self) -> int:
        return self.weights + self.keys_values + self.reduced_keys + self.working

    @property
    def fits(self) -> bool:
        return self.needed <= self.available and self.host_keys_values <= self.host_available

    @property
    def seconds(self) -> float:
        return self.operations / self.planner.rate if self.operations else 0.0

    @property
    def rate_from(self) -> Literal["measured", "probe"]:
        return "measured" if self.planner.measured else "probe"

    @property
    def most_tokens(self) -> int:
        """Tokens that would fit with the same settings."""
        return self.planner.most_tokens(self.planner.dtype.itemsize)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Settings that would make it fit, best first; empty when it does."""
        if self.fits:
            return ()
        planner, size = self.planner, self.planner.dtype.itemsize
        cache, on_gpu = planner.cache, planner.costs.on_gpu
        most, half = planner.most_tokens(size), planner.most_tokens(2)

        def fits(size: int, cache: str | None = None) -> bool:
            return planner.plan(self.tokens, size, cache).fits

        on_cpu = on_gpu and planner.plan(self.tokens, size, "device").needed <= planner.host_memory
        to_disk = planner.may_store_rows and cache != "disk"
        ways = (
            (size > 2 and fits(2), "use --dtype bfloat16, which fits"),
            (on_gpu and cache == "device" and fits(size, "host"), "use --cache host, which fits"),
            (to_disk and fits(size, "disk"), "use --cache disk, which fits"),
            (on_cpu, "use --device cpu, where it fits"),
            (most > 0, f"give fewer or shorter documents: {most:,} tokens fit"),
            (0 == most < half, f"give shorter documents and --dtype bfloat16: {half:,} tokens fit"),
            (True, "use a smaller model with --model"),
            (True, "raise ESA_MEMORY_LIMIT" if _capped(self.device) else "free some memory"),
        )
        return tuple(text for helps, text in ways if helps)

    def check(self) -> None:
        """Raises ResourceError, with what would make it fit, when it does not."""
        if self.fits:
            return
        need, have, place = self.needed, self.available, self.device
        if need <= have:
            need, have, place = self.host_keys_values, self.host_available, "the host"
        has = "ESA_MEMORY_LIMIT allows" if _capped(self.device) else f"{place} has"
        raise ResourceError(
            f"{self.tokens:,} tokens need {machine.size_text(need)} of memory, and "
            f"{has} {machine.size_text(have)}",
            "; or ".join(self.remedies),
        )


def _capped(device: str) -> bool:
    """True if a person's limit, not the memory there is, decides."""
    limit = machine.memory_limit()
    return limit is not None and limit < machine.free_memory(device)
