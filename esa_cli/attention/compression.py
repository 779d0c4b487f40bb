"""Query and key compression: the maps of Eq. (5) from F to R dimensions, fitted to Eq. (7)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esa_cli.attention.interfaces import Projection
from esa_cli.attention.moments import Moments
from esa_cli.attention.parts import Compressor, check_at_least


@dataclass(frozen=True)
class Linear(Projection):
    """A pair of linear maps, Eq. (5), both (F, R), on any device."""

    query_map: Tensor
    key_map: Tensor
    _copies: dict[torch.device, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def queries(self, q: Tensor) -> Tensor:
        return q @ self._on(q.device)[0].to(q.dtype)

    def keys(self, k: Tensor) -> Tensor:
        return k @ self._on(k.device)[1].to(k.dtype)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Both maps on a device; copied to it once, since a copy waits for the device."""
        if self.query_map.device == device == self.key_map.device:
            return self.query_map, self.key_map
        if device not in self._copies:
            self._copies[device] = self.query_map.to(device), self.key_map.to(device)
        return self._copies[device]


@dataclass(frozen=True)
class NoCompression(Compressor):
    """Scores on all F dimensions of the folded keys; stores nothing more."""

    def fit(self, layer: int, moments: Moments) -> Projection | None:
        return None


def _roots(moment: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Square root and inverse square root of a symmetric (F, F) moment."""
    values, vectors = torch.linalg.eigh(moment)
    values = values.clamp_min(0) + ridge * values.max().clamp_min(1e-12)
    roots = values.sqrt()
    return vectors * roots @ vectors.T, vectors / roots @ vectors.T


def _means(moments: Moments) -> tuple[Tensor, Tensor]:
    """Mean second moments of queries and keys, each (F, F)."""
    assert moments.queries is not None, "no moments"
    assert moments.keys is not None, "no moments"
    return moments.queries / moments.count, moments.keys / moments.count


def closed_form(moments: Moments, rank: int, ridge: float = 1e-6) -> Linear:
    """The best rank-R pair under Eq. (7), by the SVD of Sq^(1/2) Sk^(1/2).

    Eq. (7) over independent queries and keys is || Sq^(1/2) (1 - A B^T) Sk^(1/2) ||_F^2, whose
    minimum is the truncated SVD, mapped back through the inverse roots.

    Args:
        rank: R, at most F. ridge: added to the spectra, relative to their largest value.
    """
    query_moment, key_moment = _means(moments)
    q_root, q_inverse = _roots(query_moment, ridge)
    k_root, k_inverse = _roots(key_moment, ridge)
    u, s, v = torch.linalg.svd(q_root @ k_root)
    weight = s[:rank].sqrt()
    return Linear(
        (q_inverse @ u[:, :rank] * weight).float(), (k_inverse @ v[:rank].T * weight).float()
    )


def pca(moments: Moments, rank: int) -> Linear:
    """Queries and keys both projected on the R directions in which the keys are largest.

    The eigenvectors of the keys' second moment, not centred. The paper's Section 4 compares its
    maps with this.
    """
    _, vectors = torch.linalg.eigh(_means(moments)[1])
    directions = vectors.flip(1)[:, :rank].float()
    return Linear(directions, directions)


@dataclass(frozen=True)
class ClosedForm(Compressor):
    """Maps fitted on the document's first tokens during prefill; needs no training.

    Args:
        rank: R, numbers stored per token and layer.
        fit_tokens: tokens to fit on; fewer when the first selection comes earlier.
    """

    rank: int = 48
    fit_tokens: int = 2048

    def __post_init__(self) -> None:
        check_at_least(1, rank=self.rank, fit_tokens=self.fit_tokens)

    def stored_rank(self, folded: int) -> int:
        return min(self.rank, folded)

    def _rank(self, moments: Moments) -> int:
        assert moments.queries is not None, "no moments"
        return min(self.rank, moments.queries.shape[0])

    def fit(self, layer: int, moments: Moments) -> Projection | None:
        return closed_form(moments, self._rank(moments))


@dataclass(frozen=True)
class Pca(ClosedForm):
    """Maps by PCA of the keys, with the settings of `closed-form`."""

    def fit(self, layer: int, moments: Moments) -> Projection | None:
        return pca(moments, self._rank(moments))
