"""A method of selective attention, and what one layer stores about a document for the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from esa_cli.attention.algebra import concat_key_heads, fold
from esa_cli.attention.compression import ClosedFormCompressor
from esa_cli.attention.parts import Compressor, Moments, PositionEncoding, Score, Selector
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.rope import Rope
from esa_cli.attention.selection import LogitSum, TopKSelector
from esa_cli.attention.step import KVStore, LayerState, Projection
from esa_cli.attention.window import Window
from esa_cli.errors import PresetError


@dataclass(frozen=True)
class Method:
    """A method of selective attention. In a prefill, a document's chunks attend to selected tokens,
    too, as in the ESA paper (`reading` is `select`), or to I and L only (`local`)."""

    window: Window = field(default_factory=Window)
    selector: Selector = field(default_factory=TopKSelector)
    score: Score = field(default_factory=LogitSum)
    compressor: Compressor = field(default_factory=ClosedFormCompressor)
    position: PositionEncoding = field(default_factory=FixedDistancePositions)
    reading: Literal["select", "local"] = "select"
    kernel: str = "auto"  # see `kernels.choose_kernel_name`

    def get_reduced_key_settings(self) -> tuple[Compressor, int | None]:
        """Returns what reduced keys depend on: compressor and distance of rotated queries."""
        rotated = self.compressor.fit_tokens > 0 and self.score.rotates
        return self.compressor, self.position.distance if rotated else None


FETCH_KEPT = 4096
"""The largest number of far tokens that are cached between two tokens of an answer."""


@dataclass
class LayerMemory:
    """One layer's KV cache of one document, and the projection that was fitted during prefill."""

    layer: int
    store: KVStore
    states: dict[Any, LayerState] = field(default_factory=dict)  # by layer and selector class
    moments: Moments = field(default_factory=Moments)
    projection: Projection | None = None  # of equation (5); None: scores use whole keys
    fitted: bool = False  # whether the compressor has been fitted
    # Positions, keys and values of the far tokens of the answer's last token.
    fetched: tuple[Tensor, Tensor, Tensor] | None = field(default=None, repr=False)

    def add_to_moments(self, method: Method, rope: Rope, q: Tensor, chunk_start: int) -> None:
        """Adds the unrotated queries q (H, C, D) and the cached keys of the chunk at `chunk_start`
        to the moments, until the moments have the compressor's `fit_tokens` tokens."""
        if self.fitted or not method.score.features:
            return
        moments = self.moments
        # Tokens processed again after a crop are not counted twice.
        q, chunk_start = q[:, max(0, moments.seen - chunk_start) :], max(chunk_start, moments.seen)
        missing = method.compressor.fit_tokens - moments.count
        if missing > 0 and q.shape[1]:
            q = q[:, :missing]
            stop = chunk_start + q.shape[1]
            if method.score.rotates:
                q = rope.rotate_to_far_distance(q, method.position.distance)
            keys, _ = self.store.span(chunk_start, stop)
            moments.add_tokens(fold(q.float(), self.store.heads), concat_key_heads(keys), stop)

    def add_reduced_keys(self, method: Method, end_position: int) -> Projection | None:
        """Reduces the keys before `end_position` (equation (6)); returns the projection."""
        if not method.score.features:
            return None
        if not self.fitted:
            self.projection = self._fit_and_check_projection(method)
            self.fitted, self.moments = True, Moments()
        if self.projection is not None:
            for _, keys in self.store.key_blocks(self.store.reduced_key_count, end_position):
                self.store.append_reduced_keys(self.projection.keys(concat_key_heads(keys)))
        return self.projection

    def _fit_and_check_projection(self, method: Method) -> Projection | None:
        """Fits the layer's projection and projects a key, so that a wrong width fails early."""
        projection = method.compressor.fit(self.layer, self.moments)
        if projection is not None:
            keys = concat_key_heads(self.store.span(0, min(1, len(self.store)))[0])
            try:
                projection.keys(keys)
            except RuntimeError as error:
                raise PresetError(
                    f"the compressor's projections for layer {self.layer} must take folded keys of "
                    f"{keys.shape[1]} dimensions",
                    "the projections fit another model; run `esa calibrate` with this model",
                ) from error
        return projection

    def fetch_far_keys_and_values(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values (G, K, D) at ascending positions (K,), for a token of an answer.

        Since consecutive tokens of an answer mostly attend to the same far tokens, fetched keys and
        values are cached, and only missing ones are fetched from another device."""
        # On a GPU, comparing synchronises; so does gathering, once, and it copies little.
        if positions.shape[0] > FETCH_KEPT or (positions.is_cuda and self.store.is_on_device):
            return self.store.gather(positions)
        if self.fetched is None or self.store.is_on_device or not self.fetched[0].numel():
            if self.fetched is None or not torch.equal(self.fetched[0], positions):
                self.fetched = (positions, *self.store.gather(positions))
            return self.fetched[1:]
        last, keys, values = self.fetched
        place = torch.searchsorted(last, positions).clamp(max=last.shape[0] - 1)
        (new,) = (last[place] != positions).nonzero(as_tuple=True)
        if 2 * new.shape[0] > positions.shape[0]:
            keys, values = self.store.gather(positions)
        elif new.shape[0] or last.shape != positions.shape:
            keys, values = keys.index_select(1, place), values.index_select(1, place)
            if new.shape[0]:
                new_keys, new_values = self.store.gather(positions[new])
                keys.index_copy_(1, new, new_keys)
                values.index_copy_(1, new, new_values)
        self.fetched = (positions, keys, values)
        return keys, values

    def crop(self, negative_count: int) -> None:
        """Removes the last tokens; a `negative_count` of -3 removes three tokens."""
        self.fetched = None
        for state in self.states.values():
            state.crop(max(0, len(self.store) + negative_count))
        self.store.crop(negative_count)  # last: `len` shows whether the crop was interrupted


@dataclass
class KVSharingLayerMemory(LayerMemory):
    """The memory of a layer that has only queries, and attends to another layer's keys and values,
    as in Gemma 3n and 4. The memory of that layer, `source`, has the store, the projection and the
    selectors' states, under the index of the layer with queries."""

    source: LayerMemory = field(kw_only=True)

    def add_to_moments(self, method: Method, rope: Rope, q: Tensor, chunk_start: int) -> None:
        """Does nothing, because the layer with the keys fits the compressor."""

    def add_reduced_keys(self, method: Method, end_position: int) -> Projection | None:
        """Returns the projection of the layer with the keys, or None if it is not fitted yet."""
        return self.source.add_reduced_keys(method, end_position) if self.source.fitted else None
