"""Ranks that differ per layer, under a fixed total; past the paper, whose layers are all alike.

Greedy by marginal gain: the next dimension goes to the layer whose share of its own scores' square
grows most by it. A layer's gains are the squares of its singular values (see
`compressors.spectrum`) over their sum, so loud layers do not take what quiet ones need.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from esa_cli.errors import UsageError


def check_total(total: int, layers: int, most: int) -> None:
    """Raises UsageError for a total of ranks below one a layer, or above all dimensions, `most`."""
    if not layers <= total <= most:
        raise UsageError(
            f"a total rank of {total} does not fit {layers} layers",
            f"from {layers} (one a layer) to {most} (nothing is reduced)",
        )


def allocate(spectra: Sequence[Tensor], total: int) -> list[int]:
    """Ranks, one a layer, at least 1 each, `total` in all.

    Args:
        spectra: each layer's singular values (F,), descending.

    Raises:
        UsageError: there are more layers than `total`, or fewer dimensions.
    """
    check_total(total, len(spectra), sum(len(spectrum) for spectrum in spectra))
    gains = []
    for layer, spectrum in enumerate(spectra):
        squares = spectrum.double().square()
        shares = (squares / squares.sum().clamp_min(1e-300)).tolist()
        gains += [(-gain, layer) for gain in shares[1:]]
    ranks = [1] * len(spectra)
    # Each layer's gains only fall, so the largest of all are what a greedy choice would take.
    for _, layer in sorted(gains)[: total - len(spectra)]:
        ranks[layer] += 1
    return ranks
