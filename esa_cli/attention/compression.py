"""Compressors, which project folded queries and keys to fewer dimensions (equation (5))."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from esa_cli.attention.parts import Compressor, Moments, require_at_least
from esa_cli.attention.step import Projection
from esa_cli.errors import PresetError


@dataclass(frozen=True)
class Linear(Projection):
    """A pair of linear projections: an (F, R) matrix for queries and another for keys."""

    query_map: Tensor
    key_map: Tensor

    def queries(self, q: Tensor) -> Tensor:
        return q @ self.query_map.to(q)

    def keys(self, k: Tensor) -> Tensor:
        return k @ self.key_map.to(k)


@dataclass(frozen=True)
class NoCompression(Compressor):
    """A compressor that does not reduce keys, so that scores use whole folded keys."""

    def fit(self, layer: int, moments: Moments) -> Projection | None:
        return None


def _compute_moment_square_roots(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the square root and the inverse square root of a second-moment matrix (F, F)."""
    values, vectors = torch.linalg.eigh(moment)
    values = values.clamp_min(0) + 1e-6 * values.max().clamp_min(1e-12)
    roots = values.sqrt()
    return vectors * roots @ vectors.T, vectors / roots @ vectors.T


def _average_moments(moments: Moments) -> tuple[Tensor, Tensor]:
    """Returns the mean second moments of queries and keys, each (F, F)."""
    assert moments.queries is not None, "no moments"
    assert moments.keys is not None, "no moments"
    return moments.queries / moments.count, moments.keys / moments.count


@dataclass(frozen=True)
class ClosedFormCompressor(Compressor):
    """A compressor that fits projections, without training, to a document's first tokens."""

    rank: int = 48  # R, the numbers stored per token and layer
    fit_tokens: int = 2048  # fewer when the first selection comes earlier

    def __post_init__(self) -> None:
        require_at_least(1, rank=self.rank, fit_tokens=self.fit_tokens)

    def stored_rank(self, folded: int) -> int:
        return min(self.rank, folded)

    def fit(self, layer: int, moments: Moments) -> Linear:
        """Returns the projections to min(`rank`, F) dimensions with the least error of (7).

        For independent queries and keys with second moments Sq and Sk, the error of projections A
        and B is || Sq^(1/2) (1 - A B^T) Sk^(1/2) ||_F^2. The best A and B are the truncated
        singular value decomposition of Sq^(1/2) Sk^(1/2), times the inverse roots."""
        query_moment, key_moment = _average_moments(moments)
        q_root, q_inverse = _compute_moment_square_roots(query_moment)
        k_root, k_inverse = _compute_moment_square_roots(key_moment)
        u, s, v = torch.linalg.svd(q_root @ k_root)
        u, v, weight = u[:, : self.rank], v[: self.rank], s[: self.rank].sqrt()
        query_map, key_map = q_inverse @ u * weight, k_inverse @ v.T * weight
        return Linear(query_map.float(), key_map.float())


@dataclass(frozen=True)
class PcaCompressor(ClosedFormCompressor):
    """A compressor that projects on the `rank` leading eigenvectors of the uncentred second moment
    of the keys of a document's first tokens, the PCA of Section 4 of the ESA paper."""

    def fit(self, layer: int, moments: Moments) -> Linear:
        _, vectors = torch.linalg.eigh(_average_moments(moments)[1])
        directions = vectors.flip(1)[:, : self.rank].float()
        return Linear(directions, directions)


@dataclass(frozen=True)
class LearnedCompressor(Compressor):
    """A compressor that loads trained projections from a safetensors file.

    A file of projections, which `esa calibrate` writes, has tensors `layers.{i}.query_map` and
    `layers.{i}.key_map` (F, R) for each layer i, where R may differ from layer to layer."""

    file: str

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    @cached_property
    def _tensors_and_metadata(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        from safetensors import safe_open

        try:
            with safe_open(Path(self.file).expanduser(), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return tensors, file.metadata() or {}
        except Exception as error:
            message = f"the compressor file {self.file} cannot be read: {error}"
            hint = "set compressor.file to a file that `esa calibrate` wrote"
            raise PresetError(message, hint) from error

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the projections file, which `models.attachment.fingerprint` compares."""
        return self._tensors_and_metadata[1]

    def fit(self, layer: int, moments: Moments) -> Projection | None:
        """Returns the projections that the compressor's file has for a layer. Raises PresetError:
        the file has no pair of projections of equal shape for the layer."""
        weights = self._tensors_and_metadata[0]
        names = (f"layers.{layer}.{name}" for name in ("query_map", "key_map"))
        matrices = [weights[name] for name in names if name in weights]
        shapes = [tuple(matrix.shape) for matrix in matrices]
        if len(matrices) < 2 or shapes[0] != shapes[1] or len(shapes[0]) != 2:
            raise PresetError(
                f"{self.file} must have two projections of one shape for layer {layer}, "
                f"got {shapes}",
                "make a file of projections for this model with `esa calibrate`",
            )
        return Linear(*matrices)


def make_named_projection_tensors(layer_projections: Sequence[Linear | None]) -> dict[str, Tensor]:
    """Returns all layers' projections other than None as named tensors for a safetensors file, as
    `LearnedCompressor` reads it."""
    pairs = [(f"layers.{i}", pair) for i, pair in enumerate(layer_projections) if pair is not None]
    named = {f"{name}.query_map": pair.query_map for name, pair in pairs}
    named |= {f"{name}.key_map": pair.key_map for name, pair in pairs}
    # Copies, because safetensors refuses shared tensors, and PCA has one matrix for both.
    return {name: matrix.detach().cpu().clone().contiguous() for name, matrix in named.items()}
