"""One layer's memory of one document: its store, and the projection fitted during prefill.

The compressor's maps, Eq. (5), come from the document's first tokens or from a file; reduced keys,
Eq. (6), are computed when the first selection needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esa_cli.attention.algebra import flatten_keys, fold
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Moments
from esa_cli.attention.rope import Rope
from esa_cli.attention.step import KVStore, LayerState, Projection
from esa_cli.errors import PresetError

FETCH_KEPT = 4096
"""Most far tokens kept from one token of an answer to the next: 6 MB with 3 heads of 64."""


@dataclass
class LayerMemory:
    """One layer's memory of one document.

    Args:
        states: the selectors' layer states, by class of selector.
        projection: the fitted compressor. fitted: the fit was made, with or without a projection.
        fetched: positions, keys and values of the far tokens of the answer's last token.
    """

    layer: int
    store: KVStore
    states: dict[type, LayerState] = field(default_factory=dict)
    moments: Moments = field(default_factory=Moments)
    projection: Projection | None = None
    fitted: bool = False
    fetched: tuple[Tensor, Tensor, Tensor] | None = field(default=None, repr=False)

    def learn(self, method: Method, rope: Callable[[], Rope], q: Tensor, start: int) -> None:
        """Adds tokens to the compressor's moments, until there are `fit_tokens`.

        Args:
            rope: returns the rotary embedding; called only where the score rotates.
            q: (H, C, D) unrotated queries of the tokens from position `start` on, whose keys are
                in the store.
        """
        if self.fitted or not method.score.features:
            return
        moments = self.moments
        # Tokens processed again after a crop are not counted twice.
        q, start = q[:, max(0, moments.seen - start) :], max(start, moments.seen)
        missing = method.compressor.fit_tokens - moments.count
        if missing > 0 and q.shape[1]:
            q = q[:, :missing]
            stop = start + q.shape[1]
            if method.score.rotates:
                q = rope().far_queries(q, method.position.distance)
            keys, _ = self.store.span(start, stop)
            moments.add(fold(q.float(), self.store.heads), flatten_keys(keys), stop)

    def fetch(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (G, K, D) at ascending positions (K,), for one token of an answer.

        Consecutive tokens of an answer mostly attend to the same far tokens, so the last ones are
        kept; where the store is elsewhere, only others are fetched.
        """
        # On a GPU, comparing synchronises; so does gathering, once, and it copies little.
        if at.shape[0] > FETCH_KEPT or (at.is_cuda and self.store.resident):
            return self.store.gather(at)
        if self.fetched is None or not torch.equal(self.fetched[0], at):
            self.fetched = (at, *self._changed(at))
        return self.fetched[1], self.fetched[2]

    def _changed(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """As `KVStore.gather`, but what was fetched last is not fetched again."""
        if self.fetched is None or self.store.resident or not self.fetched[0].numel():
            return self.store.gather(at)
        last, *both = self.fetched
        place = torch.searchsorted(last, at).clamp(max=last.shape[0] - 1)
        (new,) = (last[place] != at).nonzero(as_tuple=True)
        if not new.shape[0]:
            keys, values = (rows.index_select(1, place) for rows in both)
        elif 2 * new.shape[0] > at.shape[0]:
            keys, values = self.store.gather(at)
        else:
            keys, values = (
                rows.index_select(1, place).index_copy_(1, new, fetched)
                for rows, fetched in zip(both, self.store.gather(at[new]), strict=True)
            )
        return keys, values

    def crop(self, tokens: int) -> None:
        """Removes the last -tokens tokens (negative); the fitted projection stays."""
        self.fetched = None
        for state in self.states.values():
            state.crop(max(0, len(self.store) + tokens))
        self.store.crop(tokens)  # last: `len` shows whether the crop was interrupted

    def release(self) -> None:
        """Frees copies of rows."""
        self.fetched = None

    def project(self, method: Method, upto: int) -> Projection | None:
        """The layer's projection, with reduced keys for every token before `upto`."""
        if not method.score.features:
            return None
        if not self.fitted:
            self.projection = self._fit(method)
            self.fitted = True
            self.moments = Moments()
        if self.projection is not None:
            for _, keys in self.store.key_blocks(self.store.reduced, upto):
                self.store.append_features(self.projection.keys(flatten_keys(keys)))
        return self.projection

    def _fit(self, method: Method) -> Projection | None:
        """The compressor's projection; tried on one key, so that a wrong width is reported here."""
        projection = method.compressor.fit(self.layer, self.moments)
        if projection is not None:
            keys = flatten_keys(self.store.span(0, min(1, len(self.store)))[0])
            try:
                projection.keys(keys)
            except RuntimeError as error:
                raise PresetError(
                    f"the compressor's maps for layer {self.layer} must be for folded keys of "
                    f"{keys.shape[1]} dimensions",
                    "they were made for another model; run `esa calibrate` with this one",
                ) from error
        return projection
