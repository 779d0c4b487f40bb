"""Estimates the memory and time of indexing or prefilling documents, before the model is loaded.

For each token and layer, a KV cache takes 2 G D numbers, with G key heads of dimension D, and the
numbers of a reduced key. A prefill takes two operations for each token and weight of the layers."""

from __future__ import annotations

import contextlib
import json
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from esa_cli.attention.method import Method
from esa_cli.attention.selection import KEEP_ELEMENTS
from esa_cli.attention.step import BLOCK_ELEMENTS
from esa_cli.errors import ResourceError
from esa_cli.models.files.checkpoint_files import read_language_model_settings
from esa_cli.models.text_passes.text_forward import MOST_BYTES
from esa_cli.qa.finding.finder import CONTEXT_TOKENS, PIECE, SEGMENT_TOKENS, FinderSizes
from esa_cli.qa.planning.model_shape import ModelShape, measure_weight_sizes, read_model_shape
from esa_cli.qa.presets.resolved_preset import (
    ResolvedPreset,
    explain_why_not_storable,
    find_reduced_key_widths,
)
from esa_cli.storage.memory_store import RESERVE, has_separate_memory
from esa_cli.system import machine
from esa_cli.system.files import replace_atomically
from esa_cli.system.machine import get_esa_home_folder

FEED = 1024
"""The number of tokens in one forward call of a prefill, whose activations fit a CPU's cache."""
LIBRARIES = 400 << 20
"""The bytes that torch, transformers and Python take by themselves."""
STATES = 4
"""The number of copies of recurrent states: the states themselves and three snapshots."""
TOKEN_BYTES = 64
"""The bytes that a token takes besides its keys and values: text, id, offsets and their copies."""
STORED_AT_ONCE = 8192
"""The maximum number of tokens with keys and values in memory while a document is stored."""
SEQUENCE = SEGMENT_TOKENS + CONTEXT_TOKENS
"""The number of tokens that the model processes for each segment of a token index."""
SPEED_FILE = "rates.json"
"""The file with the operations per second of previous ingests."""
SECONDS = 0.15
"""The seconds for which the speed of a matrix product is measured."""
EFFICIENCY = 0.6
"""The share of a matrix product's speed that a prefill is assumed to reach if none was measured."""


@dataclass(frozen=True)
class TokenIndexCosts:
    """Counts the memory and operations of making a token index; almost none if `finder` is None."""

    shape: ModelShape
    on_gpu: bool
    body: int = 0  # numbers in the matrices of the layers that a token passes
    finder: FinderSizes | None = None

    def count_layer_activations(self, token_count: int) -> int:
        shape = self.shape
        projections = (shape.heads + 2 * shape.groups) * shape.dim
        return token_count * (6 * shape.hidden + 3 * shape.inner + 3 * projections)

    def count_kv_bytes(self, token_count: int, dtype_bytes: int, on_host: bool) -> tuple[int, int]:
        """Returns the bytes of keys and values on the device, and the bytes in host memory."""
        return 0, 0

    def count_reduced_key_bytes(self, token_count: int, dtype_bytes: int) -> int:
        """Returns the bytes of a token index, or of the reduced keys in a KV cache."""
        return token_count * self.finder.layout.row_bytes if self.finder else 0

    def count_working_memory_bytes(self, token_count: int, dtype_bytes: int) -> int:
        """Returns the bytes of activations, fused weights, tokens and software libraries."""
        shape, fixed = self.shape, token_count * TOKEN_BYTES + LIBRARIES
        if self.finder is None:
            return self.count_layer_activations(FEED) * dtype_bytes + fixed
        batch = PIECE // SEGMENT_TOKENS * SEQUENCE
        activations = self.count_layer_activations(batch) + batch * SEQUENCE * shape.heads
        copied = self.body * dtype_bytes
        if self.on_gpu or copied > MOST_BYTES:
            copied = 0  # else the CPU has fused copies of the layers, for finding and for reading
        copied += copied * self.finder.layers // shape.layers
        return activations * dtype_bytes + copied + fixed + self.finder.weights

    def count_ingest_operations(self, token_count: int) -> float:
        """Counts the operations of indexing or prefilling; a multiply-add counts as two."""
        if self.finder is None:
            return 0.0
        shape = self.shape
        attention = shape.layers * 4 * shape.heads * shape.dim * SEQUENCE / 2
        share = self.finder.layers / shape.layers * SEQUENCE / SEGMENT_TOKENS
        projection = 2 * shape.hidden * self.finder.layout.width
        own = self.finder.weights // 2  # two operations a number of 4 bytes
        return token_count * (share * (2 * self.body + attention) + projection + own)


@dataclass(frozen=True, kw_only=True)
class KvCacheCosts(TokenIndexCosts):
    """Counts the memory and operations of prefilling documents into a KV cache."""

    method: Method

    @cached_property
    def reduced_key_width(self) -> int:
        """The sum of the dimensions of reduced keys over the layers. Raises PresetError."""
        shape, score, compressor = self.shape, self.method.score, self.method.compressor
        folded = shape.groups * shape.dim
        return sum(find_reduced_key_widths(compressor, shape.rows, folded, score.features))

    def count_kv_bytes(self, token_count: int, dtype_bytes: int, on_host: bool) -> tuple[int, int]:
        """Returns the bytes on the device and the host, which with `on_host` has the far tokens."""
        window, token_bytes = self.method.window, self.shape.numbers * dtype_bytes
        if not on_host:
            return self._count_allocated_tokens(token_count) * token_bytes, 0
        local = max(window.local, window.full_attention_limit, self.shape.window)
        near = local + FEED + window.chunk + RESERVE
        return near * token_bytes, token_count * token_bytes

    def count_reduced_key_bytes(self, token_count: int, dtype_bytes: int) -> int:
        return self._count_allocated_tokens(token_count) * self.reduced_key_width * dtype_bytes

    def _count_allocated_tokens(self, token_count: int) -> int:
        """Counts the tokens with allocated memory, which on a GPU includes room for questions."""
        return token_count + RESERVE if self.on_gpu else token_count

    def count_working_memory_bytes(self, token_count: int, dtype_bytes: int) -> int:
        """Returns the bytes of activations, gathered keys, scores and recurrent states."""
        shape, window, score = self.shape, self.method.window, self.method.score
        folded = shape.groups * shape.dim
        attended = min(token_count, window.budget) + window.chunk
        gathered = 6 * attended * folded + 2 * window.chunk * shape.heads * shape.dim
        scored = window.chunk * (1 if score.features else shape.heads) * token_count
        scores = 4 * (min(KEEP_ELEMENTS, scored) + 2 * min(BLOCK_ELEMENTS, scored))
        fitting = 0
        if score.features and self.method.compressor.fit_tokens:
            fitting = 8 * folded * folded * (2 * shape.rows + 8)
        rest = scores + fitting + STATES * shape.count_recurrent_state_bytes(dtype_bytes)
        rest += super().count_working_memory_bytes(token_count, dtype_bytes)
        return gathered * dtype_bytes + rest

    def count_ingest_operations(self, token_count: int) -> float:
        shape, window = self.shape, self.method.window
        selects, score = self.method.reading == "select", self.method.score
        attended = window.initial + window.local + window.chunk / 2
        attended += window.selected if selects else 0
        attention = 4 * shape.heads * shape.dim * min(attended, token_count / 2)
        scoring = 2.0 * shape.groups * shape.dim * self.reduced_key_width
        if selects:
            width = shape.rows * shape.heads * shape.dim
            if score.features:
                width = self.reduced_key_width or shape.rows * shape.groups * shape.dim
            scoring += 2 * width * max(0.0, token_count / 2 - window.local - window.initial)
        return token_count * (2 * self.body + shape.rows * attention + scoring)


def measure_free_kv_cache_bytes(device: torch.device) -> int:
    """Returns the bytes of a GPU that are free, or reserved by torch and not used."""
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return machine.measure_available_memory(str(device)) + reserved


def puts_kv_cache_on_host(model: Any, method: Method, cache: str, token_count: int) -> bool:
    """Whether the keys and values of `token_count` tokens are kept in host memory. `cache` is of
    `storage.CACHES`; with `disk`, what is not on disk yet is on the device."""
    device, size = model.device, model.dtype.itemsize
    if cache in ("device", "disk") or not has_separate_memory(device):
        return False
    costs = KvCacheCosts(read_model_shape(model.config.to_dict()), on_gpu=True, method=method)
    needed = costs.count_working_memory_bytes(token_count, size)
    needed += costs.count_kv_bytes(token_count, size, on_host=False)[0]
    needed += costs.count_reduced_key_bytes(token_count, size)
    return cache == "host" or needed > measure_free_kv_cache_bytes(device)


def measure_matmul_speed(model_shape: ModelShape, dtype: torch.dtype, device: str) -> float:
    """Measures the operations per second of a matrix product of the model's MLP."""
    x = torch.ones(FEED, model_shape.hidden, dtype=dtype, device=device)
    weight = torch.ones(model_shape.hidden, model_shape.inner, dtype=dtype, device=device)
    float((x[:64] @ weight)[0, 0])
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < SECONDS:
        float((x @ weight)[0, 0])  # synchronises with the device
        done += 1
    return 2.0 * x.numel() * model_shape.inner * done / spent


def load_ingest_speeds() -> dict[str, float]:
    """Reads the saved speeds by their keys; returns {} if the file cannot be read."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be a list
        speeds = json.loads((get_esa_home_folder() / SPEED_FILE).read_text("utf-8"))
        return {key: one for key, one in speeds.items() if isinstance(one, int | float) and one > 0}
    return {}


class IngestPlanner:
    """Estimates memory and time of indexing or prefilling documents with one method and model.

    Args:
        resolved: the method, and the model's name, by which speeds are remembered.
        folder: of the model, with config.json at least. dtype: of weights and keys.
        device: of torch; see `models.load.choose_torch_device`.
        memory: bytes available before anything was loaded; None means the bytes available now.
        index: the sizes of the token index that is computed; see `read_finder_sizes`.
        by_words: passages are found by their words, and no document is prefilled.
        cache: of `storage.CACHES`. packing: of the layers' weights, of `QUANTIZATIONS`; "": none.

    Raises:
        PresetError: the compressor is not for this model. ModelError: config.json lacks a size, or
            the weights' files are damaged. UsageError: $ESA_MEMORY_LIMIT is not a size."""

    def __init__(
        self, resolved: ResolvedPreset, folder: Path, *, dtype: torch.dtype, device: str,
        memory: int | None = None, index: FinderSizes | None = None, by_words: bool = False,
        cache: str = "auto", packing: str = "",
    ) -> None:  # fmt: skip
        shape = read_model_shape(read_language_model_settings(folder))
        self.weights = measure_weight_sizes(folder, device, dtype.itemsize, packing)
        on_gpu, body = device not in ("cpu", "mps"), self.weights.body
        self.costs, self.cache = TokenIndexCosts(shape, on_gpu, body, index), "device"
        self.may_store_rows, how = False, f"index {index.name if index else ''}".strip()
        if index is None and not by_words:
            method = resolved.method
            self.costs = KvCacheCosts(shape, on_gpu, body, method=method)
            self.cache, how = cache, method.reading
            self.may_store_rows = not explain_why_not_storable(method)
        self.dtype, self.device, self.packing = dtype, device, packing
        self.dtype_name = packing or str(dtype).removeprefix("torch.")
        self.memory = machine.measure_available_memory(device) if memory is None else memory
        self.host_memory = machine.measure_available_memory("cpu") if on_gpu else 0
        threads = f"{torch.get_num_threads()} threads"
        self.speed_key = "|".join((resolved.preset.model, self.dtype_name, device, how, threads))

    @cached_property
    def measured_operations_per_second(self) -> float | None:
        """The operations per second of the last ingest, or None if no ingest was measured."""
        return load_ingest_speeds().get(self.speed_key)

    @cached_property
    def operations_per_second(self) -> float:
        """The measured operations per second, or an estimate from a matrix product."""
        sizes = self.costs.shape, self.dtype, self.device
        return self.measured_operations_per_second or EFFICIENCY * measure_matmul_speed(*sizes)

    def plan_ingest(
        self, token_count: int, dtype_bytes: int | None = None, cache: str | None = None
    ) -> IngestPlan:
        """Estimates memory and time, by default with the planner's `dtype` and `cache`."""
        costs, size, cache = self.costs, dtype_bytes or self.dtype.itemsize, cache or self.cache
        at_once = min(token_count, STORED_AT_ONCE) if cache == "disk" else token_count
        weights = self.weights.count_weight_bytes(size)
        working = costs.count_working_memory_bytes(token_count, size)
        reduced = costs.count_reduced_key_bytes(at_once, size)
        on_device, on_host = costs.count_kv_bytes(at_once, size, on_host=False)
        too_large = weights + working + reduced + on_device > self.memory
        if costs.on_gpu and (cache == "host" or (cache == "auto" and too_large)):
            on_device, on_host = costs.count_kv_bytes(at_once, size, on_host=True)
        return IngestPlan(
            tokens=token_count, device=self.device, dtype=self.dtype_name, weights=weights,
            keys_values=on_device, reduced_keys=reduced, working=working, available=self.memory,
            host_keys_values=on_host, host_available=self.host_memory,
            operations=costs.count_ingest_operations(token_count), planner=self,
        )  # fmt: skip

    def check_memory_suffices(self, token_count: int) -> None:
        """Raises ResourceError, with remedies, if `token_count` tokens do not fit into memory."""
        self.plan_ingest(token_count).check_fits_memory()

    def save_ingest_time(self, token_count: int, seconds: float) -> None:
        """Saves how many seconds ingesting `token_count` tokens took, for later estimates."""
        operations = self.costs.count_ingest_operations(token_count)
        self.measured_operations_per_second = self.operations_per_second = operations / seconds
        path = get_esa_home_folder() / SPEED_FILE
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_atomically(path) as part:
                speeds = {**load_ingest_speeds(), self.speed_key: self.operations_per_second}
                part.write_text(json.dumps(speeds, indent=1) + "\n", "utf-8")


@dataclass(frozen=True)
class IngestPlan:
    """The bytes, operations and seconds that ingesting `tokens` tokens will take."""

    tokens: int
    device: str
    dtype: str
    weights: int
    keys_values: int
    reduced_keys: int
    working: int
    available: int
    host_keys_values: int
    host_available: int
    operations: float
    planner: IngestPlanner = field(repr=False)

    @property
    def needed_bytes(self) -> int:
        return self.weights + self.keys_values + self.reduced_keys + self.working

    @property
    def fits_memory(self) -> bool:
        return self.needed_bytes <= self.available and self.host_keys_values <= self.host_available

    @property
    def estimated_seconds(self) -> float:
        return self.operations / self.planner.operations_per_second if self.operations else 0.0

    @property
    def speed_source(self) -> Literal["measured", "probe"]:
        return "measured" if self.planner.measured_operations_per_second else "probe"

    @property
    def max_fitting_tokens(self) -> int:
        """The largest number of tokens that would fit into memory with the same settings."""
        counts, plan = range(1, (1 << 28) + 1), self.planner.plan_ingest
        return bisect_left(counts, True, key=lambda count: not plan(count).fits_memory)

    @property
    def memory_remedies(self) -> tuple[str, ...]:
        """Advice to make the documents fit into memory, best first; empty if they fit already."""
        if self.fits_memory:
            return ()
        planner, size = self.planner, self.planner.dtype.itemsize
        cache, on_gpu = planner.cache, planner.costs.on_gpu

        def fits_memory_with(dtype_bytes: int, cache: str | None = None) -> bool:
            return planner.plan_ingest(self.tokens, dtype_bytes, cache).fits_memory

        on_device = planner.plan_ingest(self.tokens, size, "device")
        on_cpu = on_gpu and on_device.needed_bytes <= planner.host_memory
        to_host = on_gpu and cache == "device"
        to_disk = planner.may_store_rows and cache != "disk"
        fewer, is_limited = self.max_fitting_tokens, _is_memory_limited_by_user(self.device)
        ways = (
            (size > 2 and fits_memory_with(2), "use --dtype bfloat16, which fits"),
            (to_host and fits_memory_with(size, "host"), "use --cache host, which fits"),
            (to_disk and fits_memory_with(size, "disk"), "use --cache disk, which fits"),
            (on_cpu, "use --device cpu, where it fits"),
            (fewer > 0, f"give fewer or shorter documents: {fewer:,} tokens fit"),
            (True, "use a smaller model with --model"),
            (True, "raise ESA_MEMORY_LIMIT" if is_limited else "free some memory"),
        )
        return tuple(text for helps, text in ways if helps)

    def check_fits_memory(self) -> None:
        """Raises ResourceError, with remedies, if the plan does not fit into memory."""
        if self.fits_memory:
            return
        need, have, place = self.needed_bytes, self.available, self.device
        if need <= have:
            need, have, place = self.host_keys_values, self.host_available, "the host"
        is_limited = _is_memory_limited_by_user(self.device)
        device_has = "ESA_MEMORY_LIMIT allows" if is_limited else f"{place} has"
        raise ResourceError(
            f"{self.tokens:,} tokens need {machine.format_size(need)} of memory, and "
            f"{device_has} {machine.format_size(have)}",
            "; or ".join(self.memory_remedies),
        )


def _is_memory_limited_by_user(device: str) -> bool:
    """Whether $ESA_MEMORY_LIMIT is lower than the free memory of a device."""
    limit = machine.get_memory_limit()
    return limit is not None and limit < machine.measure_free_memory(device)
