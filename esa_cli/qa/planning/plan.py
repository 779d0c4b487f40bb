"""Plans an ingest: its memory and time are estimated before the model is loaded.

Keys and values take tokens * (layers * 2 G D + R) numbers, with G key heads of dimension D. The
dimension R of reduced keys, summed over the layers, counts only if the score uses reduced keys. In
models whose keys are also the values (MLA), G D replaces 2 G D. An ingest takes tokens * (2 P +
layers * attention + scoring) operations, where P is the number of weights in all layers. Only
layers with attention count. The bytes are compared with the machine's memory. The time follows from
the speed of the last ingest, or of a short matrix product.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from esa_cli.errors import ResourceError
from esa_cli.models.files.checkpoint_files import read_language_model_settings
from esa_cli.models.text_passes.text_forward import MOST_BYTES
from esa_cli.qa.finding.finder import CONTEXT_TOKENS, PIECE, SEGMENT_TOKENS, FinderSizes
from esa_cli.qa.planning.kv_cache_storage import find_reduced_key_widths, find_storage_hindrance
from esa_cli.qa.planning.model_shape import ModelShape, measure_weights, read_model_shape
from esa_cli.qa.presets.resolved_preset import ResolvedPreset
from esa_cli.storage import refuse_unknown_cache_name
from esa_cli.storage.memory_store import RESERVE, has_own_memory
from esa_cli.system import machine
from esa_cli.system.files import replace_atomically
from esa_cli.system.machine import get_esa_home_folder

if TYPE_CHECKING:
    from esa_cli.attention.method import Method

FEED = 1024
"""The number of tokens in one forward call of a prefill, which the method cuts into chunks. On 2
cores, 512 to 1,024 is fastest; larger activations do not fit into the CPU's cache."""
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
"""The file with the speeds of previous ingests: operations per second of a prefill, and tokens per
second of a token index."""
INDEX = "token index"
"""The kind of an ingest that makes a token index, in the keys of remembered speeds."""
SECONDS = 0.15
"""The seconds for which the speed of a matrix product is measured."""
ASSUMED_SPEED = 1000.0
"""The tokens per second that are assumed for a small model's token index if none was measured."""
COPIES = 2.5
"""The bytes of a small model's weights, of their fused copies for finding and reading, and of
activations, in relation to the bytes of the weights alone."""
EFFICIENCY = 0.6
"""The share of a matrix product's speed that a prefill is assumed to reach if none was measured."""


@dataclass(frozen=True)
class TextCosts:
    """The costs of answers from text: those of a token index, or almost none if `finder` is None.
    In its methods, `size` is the number of bytes of a number.

    Args:
        body: numbers in the matrices of the layers that a token passes."""

    shape: ModelShape
    on_gpu: bool
    body: int = 0
    finder: FinderSizes | None = None

    def count_activations(self, tokens: int) -> int:
        """Counts the numbers in the activations of one layer for `tokens` tokens."""
        shape = self.shape
        projections = (shape.heads + 2 * shape.groups) * shape.dim
        return tokens * (6 * shape.hidden + 3 * shape.inner + 3 * projections)

    def count_kv_bytes(self, tokens: int, size: int, on_host: bool = False) -> tuple[int, int]:
        """Returns the bytes of keys and values on the device, and in host memory."""
        return 0, 0

    def count_reduced_key_bytes(self, tokens: int, size: int) -> int:
        """Returns the bytes of a token index, or of the reduced keys in a KV cache."""
        return tokens * self.finder.layout.row_bytes if self.finder else 0

    def count_working_bytes(self, tokens: int, size: int) -> int:
        """Returns the bytes of activations, fused tensors, tokens and software libraries."""
        shape, fixed = self.shape, tokens * TOKEN_BYTES + LIBRARIES
        if self.finder is None:
            return self.count_activations(FEED) * size + fixed
        batch = PIECE // SEGMENT_TOKENS * SEQUENCE
        computed = (self.count_activations(batch) + batch * SEQUENCE * shape.heads) * size
        copied = self.body * size
        if self.on_gpu or copied > MOST_BYTES:
            copied = 0  # else the CPU has fused copies of the layers, for finding and for reading
        return computed + copied + copied * self.finder.layers // shape.layers + fixed

    def count_operations(self, tokens: int) -> float:
        """Returns the floating-point operations; a multiply-add counts as two."""
        if self.finder is None:
            return 0.0
        shape = self.shape
        attention = shape.layers * 4 * shape.heads * shape.dim * SEQUENCE / 2
        share = self.finder.layers / shape.layers * SEQUENCE / SEGMENT_TOKENS
        projection = 2 * shape.hidden * self.finder.layout.width
        return tokens * (share * (2 * self.body + attention) + projection)

    @property
    def paper_ratios(self) -> tuple[float, float] | None:
        """None, because the two ratios of the ESA paper do not apply to answers from passages."""
        return None


@dataclass(frozen=True, kw_only=True)
class KvCacheCosts(TextCosts):
    """The costs of a KV cache from which a method selects tokens."""

    method: Method

    @cached_property
    def reduced_width(self) -> int:
        """The dimension R of reduced keys, summed over the layers. Raises PresetError: the
        compressor does not fit a model of this shape."""
        shape, score, compressor = self.shape, self.method.score, self.method.compressor
        folded = shape.groups * shape.dim
        return sum(find_reduced_key_widths(compressor, shape.rows, folded, score.features))

    def count_kv_bytes(self, tokens: int, size: int, on_host: bool = False) -> tuple[int, int]:
        """Returns the bytes of keys and values on the device, and in host memory. With `on_host`,
        the device still holds local tokens, the tokens of one call, and space for questions."""
        shape, window = self.shape, self.method.window
        if not on_host:
            return self._count_allocated_tokens(tokens) * shape.numbers * size, 0
        local = max(window.local, window.full_attention_limit, shape.window)
        near = (local + FEED + window.chunk + RESERVE) * shape.numbers_per_token * size
        return shape.rows * near, shape.rows * shape.numbers_per_token * size * tokens

    def count_reduced_key_bytes(self, tokens: int, size: int) -> int:
        return self._count_allocated_tokens(tokens) * self.reduced_width * size

    def _count_allocated_tokens(self, tokens: int) -> int:
        """Counts the tokens with allocated memory, with room for questions on a GPU."""
        return tokens + RESERVE if self.on_gpu else tokens

    def count_working_bytes(self, tokens: int, size: int) -> int:
        """Returns the bytes of activations, gathered keys, scores, moments and states."""
        from esa_cli.attention.selection import KEEP_ELEMENTS
        from esa_cli.attention.step import BLOCK_ELEMENTS

        shape, window, score = self.shape, self.method.window, self.method.score
        folded = shape.groups * shape.dim
        attended = min(tokens, window.budget) + window.chunk
        gathered = 6 * attended * folded + 2 * window.chunk * shape.heads * shape.dim
        scored = window.chunk * (1 if score.features else shape.heads) * tokens
        scores = 4 * (min(KEEP_ELEMENTS, scored) + 2 * min(BLOCK_ELEMENTS, scored))
        fitting = 0
        if score.features and self.method.compressor.fit_tokens:
            fitting = 8 * folded * folded * (2 * shape.rows + 8)
        rest = scores + fitting + STATES * shape.count_state_bytes(size)
        return super().count_working_bytes(tokens, size) + gathered * size + rest

    def count_operations(self, tokens: int) -> float:
        shape, window = self.shape, self.method.window
        selects, score = self.method.reading == "select", self.method.score
        attended = window.initial + window.local + window.chunk / 2
        attended += window.selected if selects else 0
        attention = 4 * shape.heads * shape.dim * min(attended, tokens / 2)
        scoring = 2.0 * shape.groups * shape.dim * self.reduced_width
        if selects:
            width = shape.rows * shape.heads * shape.dim
            if score.features:
                width = self.reduced_width or shape.rows * shape.groups * shape.dim
            scoring += 2 * width * max(0.0, tokens / 2 - window.local - window.initial)
        return tokens * (2 * self.body + shape.rows * attention + scoring)

    @property
    def paper_ratios(self) -> tuple[float, float] | None:
        """Two ratios of the ESA paper, with the dimension R of one layer's reduced keys, or None if
        the method does not use the score of this paper. The operations of a step relative to full
        attention are (2 R + 1) / (4 H D + 3 H) in a long document. The size of reduced keys
        relative to keys and values is R / 2 G D."""
        from esa_cli.attention.selection import SumScore, TopKSelector

        shape, method = self.shape, self.method
        if not (isinstance(method.selector, TopKSelector) and isinstance(method.score, SumScore)):
            return None
        scored = self.reduced_width / shape.rows or shape.groups * shape.dim
        attended = shape.heads * (4 * shape.dim + 3)
        return (2 * scored + 1) / attended, self.reduced_width / shape.numbers


def measure_free_cache_bytes(device: torch.device) -> int:
    """Returns the bytes that a KV cache may take on a GPU: free memory, and torch's reserve."""
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return machine.measure_available_memory(str(device)) + reserved


class CachePlacement:
    """Decides whether a document's KV cache is on the device or in host memory.

    Args:
        cache: device, host, auto or disk; with disk, what is not on disk yet is on the device.

    Raises UsageError: `cache` is none of these."""

    def __init__(self, model: Any, method: Method, cache: str) -> None:
        refuse_unknown_cache_name(cache)
        self.model, self.method, self.cache = model, method, cache

    def puts_cache_on_host(self, tokens: int) -> bool:
        """Whether keys and values of `tokens` tokens are kept in host memory. On a device that
        shares the host's memory, they stay on the device."""
        device, size = self.model.device, self.model.dtype.itemsize
        if self.cache in ("device", "disk") or not has_own_memory(device):
            return False
        shape = read_model_shape(self.model.config.to_dict())
        costs = KvCacheCosts(shape, on_gpu=True, method=self.method)
        needed = costs.count_working_bytes(tokens, size) + costs.count_kv_bytes(tokens, size)[0]
        needed += costs.count_reduced_key_bytes(tokens, size)
        return self.cache == "host" or needed > measure_free_cache_bytes(device)


def measure_matrix_speed(shape: ModelShape, dtype: torch.dtype, device: str) -> float:
    """Measures the operations per second of the MLP's matrix product on FEED tokens."""
    x = torch.ones(FEED, shape.hidden, dtype=dtype, device=device)
    weight = torch.ones(shape.hidden, shape.inner, dtype=dtype, device=device)
    float((x[:64] @ weight)[0, 0])
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < SECONDS:
        float((x @ weight)[0, 0])  # synchronises with the device
        done += 1
    return 2.0 * x.numel() * shape.inner * done / spent


def make_ingest_speed_key(model: str, dtype_name: str, device: str, ingest_kind: str) -> str:
    """Returns the key of a speed in `SPEED_FILE`; `ingest_kind` is `INDEX`, or how the method
    prefills a document."""
    return f"{model}|{dtype_name}|{device}|{ingest_kind}|{torch.get_num_threads()} threads"


def load_ingest_speeds() -> dict[str, float]:
    """Reads the speeds of previous ingests; empty if the file cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        data = json.loads((get_esa_home_folder() / SPEED_FILE).read_text("utf-8"))
        speeds = data if isinstance(data, dict) else {}
        return {key: one for key, one in speeds.items() if isinstance(one, int | float) and one > 0}
    return {}


def save_ingest_speed(key: str, speed: float) -> None:
    """Saves the speed of an ingest among those of previous ingests, if the file can be written."""
    path = get_esa_home_folder() / SPEED_FILE
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as part:
            speeds = {**load_ingest_speeds(), key: speed}
            part.write_text(json.dumps(speeds, indent=1) + "\n", "utf-8")


class IngestPlanner(Protocol):
    """Estimates the memory and the time of ingests, before they run."""

    memory: int
    """The bytes that were available before the model was loaded."""

    def check_memory(self, tokens: int) -> None:
        """Raises ResourceError, with remedies, if `tokens` tokens do not fit into memory."""

    def estimate_seconds(self, tokens: int) -> float:
        """Estimates the time of ingesting `tokens` tokens by the speed of the last ingest."""

    def remember_speed(self, tokens: int, seconds: float) -> None:
        """Saves how long an ingest of `tokens` tokens took, to estimate the next ingest."""


@dataclass
class IndexPlanner:
    """Plans token indexes of a small model by the bytes of its weights, without its layers' sizes.

    Args:
        weights: bytes of the model's weights. row_bytes: bytes of a token in the index.
        memory: see `IngestPlanner`. speed_key: the result of `make_ingest_speed_key`."""

    weights: int
    row_bytes: int
    memory: int
    speed_key: str

    def check_memory(self, tokens: int) -> None:
        size = self.row_bytes + TOKEN_BYTES
        fixed = int(COPIES * self.weights) + LIBRARIES
        if (needed := fixed + tokens * size) > self.memory:
            remedies = _list_memory_remedies((self.memory - fixed) // size, "cpu")
            raise _make_memory_error(tokens, needed, self.memory, "cpu", "cpu", remedies)

    def estimate_seconds(self, tokens: int) -> float:
        return tokens / load_ingest_speeds().get(self.speed_key, ASSUMED_SPEED)

    def remember_speed(self, tokens: int, seconds: float) -> None:
        save_ingest_speed(self.speed_key, tokens / seconds)


class ModelPlanner:
    """Estimates memory and time of ingests, for one method, model and machine.

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
        self.weights = measure_weights(folder, device, dtype.itemsize, packing)
        on_gpu, body = device not in ("cpu", "mps"), self.weights.body
        self.costs, self.cache, how = TextCosts(shape, on_gpu, body, index), "device", INDEX
        self.may_store_rows = False
        if index is None and not by_words:
            method = resolved.method
            self.costs = KvCacheCosts(shape, on_gpu, body, method=method)
            self.cache, how = cache, method.reading
            self.may_store_rows = not find_storage_hindrance(method)
        self.dtype, self.device, self.packing = dtype, device, packing
        self.memory = machine.measure_available_memory(device) if memory is None else memory
        self.host_memory = machine.measure_available_memory("cpu") if on_gpu else 0
        self.speed_key = make_ingest_speed_key(resolved.preset.model, self.dtype_name, device, how)
        # The speed of an index is saved in tokens per second, as it is for `IndexPlanner`.
        self._saved_unit = self.costs.count_operations(1) if index else 1.0

    @property
    def dtype_name(self) -> str:
        return self.packing or str(self.dtype).removeprefix("torch.")

    @cached_property
    def measured_rate(self) -> float | None:
        """The operations per second of the last ingest, or None if there was no ingest."""
        speed = load_ingest_speeds().get(self.speed_key)
        return None if speed is None else speed * self._saved_unit

    @cached_property
    def operations_per_second(self) -> float:
        """The operations per second of the last ingest, or else estimated from a matrix product."""
        return self.measured_rate or EFFICIENCY * measure_matrix_speed(
            self.costs.shape, self.dtype, self.device
        )

    def plan_ingest(
        self, tokens: int, size: int | None = None, cache: str | None = None
    ) -> IngestPlan:
        """Plans the ingest of `tokens` tokens.

        Args:
            size: bytes of a number, by default of `dtype`. cache: another place of the KV cache."""
        costs, size, cache = self.costs, size or self.dtype.itemsize, cache or self.cache
        at_once = min(tokens, STORED_AT_ONCE) if cache == "disk" else tokens
        weights, working = self.weights.count_bytes(size), costs.count_working_bytes(tokens, size)
        reduced, (on_device, on_host) = (
            costs.count_reduced_key_bytes(at_once, size), costs.count_kv_bytes(at_once, size)
        )  # fmt: skip
        too_large = weights + working + reduced + on_device > self.memory
        if costs.on_gpu and (cache == "host" or (cache == "auto" and too_large)):
            on_device, on_host = costs.count_kv_bytes(at_once, size, on_host=True)
        return IngestPlan(
            tokens=tokens, device=self.device, dtype=self.dtype_name, weights=weights,
            keys_values=on_device, reduced_keys=reduced, working=working, available=self.memory,
            host_keys_values=on_host, host_available=self.host_memory,
            operations=costs.count_operations(tokens), planner=self,
        )  # fmt: skip

    def find_most_tokens(self, size: int) -> int:
        """Returns how many tokens fit into memory, with numbers of `size` bytes."""
        low, high = 0, 1 << 28
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.plan_ingest(middle, size).fits
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def check_memory(self, tokens: int) -> None:
        self.plan_ingest(tokens).check_fits_memory()

    def estimate_seconds(self, tokens: int) -> float:
        return self.plan_ingest(tokens).seconds

    def remember_speed(self, tokens: int, seconds: float) -> None:
        operations = self.costs.count_operations(tokens)
        self.measured_rate = self.operations_per_second = operations / seconds
        save_ingest_speed(self.speed_key, self.operations_per_second / self._saved_unit)


@dataclass(frozen=True)
class IngestPlan:
    """The bytes, operations and seconds that ingesting `tokens` tokens will take. The bytes of
    `keys_values` are on the device, and those of `host_keys_values` in host memory."""

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
    planner: ModelPlanner = field(repr=False)

    @property
    def needed(self) -> int:
        return self.weights + self.keys_values + self.reduced_keys + self.working

    @property
    def fits(self) -> bool:
        return self.needed <= self.available and self.host_keys_values <= self.host_available

    @property
    def seconds(self) -> float:
        return self.operations / self.planner.operations_per_second if self.operations else 0.0

    @property
    def rate_from(self) -> Literal["measured", "probe"]:
        return "measured" if self.planner.measured_rate else "probe"

    @property
    def most_tokens(self) -> int:
        """The largest number of tokens that would fit into memory with the same settings."""
        return self.planner.find_most_tokens(self.planner.dtype.itemsize)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Advice that would make documents fit into memory, best first; empty if documents fit."""
        if self.fits:
            return ()
        planner, size = self.planner, self.planner.dtype.itemsize
        cache, on_gpu = planner.cache, planner.costs.on_gpu

        def fits(size: int, cache: str | None = None) -> bool:
            return planner.plan_ingest(self.tokens, size, cache).fits

        on_device = planner.plan_ingest(self.tokens, size, "device")
        on_cpu = on_gpu and on_device.needed <= planner.host_memory
        to_disk = planner.may_store_rows and cache != "disk"
        ways = (
            (size > 2 and fits(2), "use --dtype bfloat16, which fits"),
            (on_gpu and cache == "device" and fits(size, "host"), "use --cache host, which fits"),
            (to_disk and fits(size, "disk"), "use --cache disk, which fits"),
            (on_cpu, "use --device cpu, where it fits"),
        )
        elsewhere = [text for helps, text in ways if helps]
        return (*elsewhere, *_list_memory_remedies(self.most_tokens, self.device))

    def check_fits_memory(self) -> None:
        """Raises ResourceError, with remedies, if the plan does not fit into memory."""
        if self.fits:
            return
        need, have, place = self.needed, self.available, self.device
        if need <= have:
            need, have, place = self.host_keys_values, self.host_available, "the host"
        raise _make_memory_error(self.tokens, need, have, place, self.device, self.remedies)


def _make_memory_error(
    tokens: int, needed: int, available: int, place: str, device: str, remedies: Sequence[str]
) -> ResourceError:
    """Returns the error that `tokens` tokens need more bytes than are available in a place: a
    torch device, or the host of this device."""
    has = "ESA_MEMORY_LIMIT allows" if _is_memory_limited_by_user(device) else f"{place} has"
    return ResourceError(
        f"{tokens:,} tokens need {machine.format_size(needed)} of memory, and "
        f"{has} {machine.format_size(available)}",
        "; or ".join(remedies),
    )


def _list_memory_remedies(tokens_that_fit: int, device: str) -> list[str]:
    """Returns advice for documents that do not fit into memory on any device."""
    fewer = f"give fewer or shorter documents: {tokens_that_fit:,} tokens fit"
    free = "raise ESA_MEMORY_LIMIT" if _is_memory_limited_by_user(device) else "free some memory"
    return [*([fewer] if tokens_that_fit > 0 else []), "use a smaller model with --model", free]


def _is_memory_limited_by_user(device: str) -> bool:
    """Whether $ESA_MEMORY_LIMIT is lower than the free memory of a device."""
    limit = machine.get_memory_limit()
    return limit is not None and limit < machine.measure_free_memory(device)
