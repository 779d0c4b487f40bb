"""Registers the classes in `attention/`, and the ESA paper's method under the name `esa`.

The method `esa` sets selector, score and position encoding, the preset windows and compressor."""

from __future__ import annotations

from typing import Any

from esa_cli.attention import compression, positions
from esa_cli.attention.selection import LogitSum, TopKSelector
from esa_cli.methods.registry import PresetSizes, recipe, register

PAPER = (
    "Wang et al., Unshackling Context Length: An Efficient Selective Attention Approach through "
    "Query-Key Compression, arXiv 2502.14477"
)
ATTENDED = "2 F (I + K + L)"
"""The cost of attention in one step if all heads share the selection."""
ROTATED = "F (I + K + L + C): each key attended to is rotated once"
"""The cost of a position encoding in one step."""


def choose_far_distance(preset: PresetSizes) -> int:
    """Returns the distance w of far tokens: three quarters of the model's trained window."""
    return preset.context * 3 // 4


@recipe(
    "esa",
    about="tokens by the sum of all heads' scores on reduced keys; all far tokens at one distance",
    source=PAPER,
    cost=f"R M + {ATTENDED}",
)
def build_esa_settings(preset: PresetSizes) -> dict[str, Any]:
    return {
        "selector": {"name": "topk", "proximity": 3},
        "score": {"name": "sum", "rotate": False},
        "position": {"name": "esa", "distance": choose_far_distance(preset)},
        "reading": "select",
    }


_STORED = "R M to score, R stored a token"
for kind, name, part, about, cost, source in (
    ("compressor", "none", compression.NoCompression, "scores with whole keys", "F M to score",
     PAPER),
    ("compressor", "closed-form", compression.ClosedFormCompressor,
     "the best linear projections for the document's first tokens",
     f"{_STORED}; F^3 once a layer to fit", f"this project; the minimum of Eq. (7) of {PAPER}"),
    ("compressor", "pca", compression.PcaCompressor, "the directions in which the keys are largest",
     f"{_STORED}; F^3 once a layer to fit", f"{PAPER}, compares with it in Section 4"),
    ("compressor", "learned", compression.LearnedCompressor,
     "linear projections from a file of `esa calibrate`",
     f"{_STORED}; trained beforehand", f"{PAPER}, Eqs. (5)-(7)"),
    ("position", "esa", positions.FixedDistancePositions, "all far tokens at one distance",
     ROTATED, PAPER),
    ("position", "contiguous", positions.ContiguousPositions,
     "far tokens renumbered, right before L", ROTATED, "Wu et al., TokenSelect, arXiv 2411.02886"),
    ("position", "true", positions.TruePositions, "every token at its position in the document",
     ROTATED, "Su et al. 2021, RoFormer, arXiv 2104.09864"),
    ("score", "sum", LogitSum, "summed over heads, then maximum over queries",
     "R M with a compressor, F M without", f"{PAPER}, Eqs. (3)-(4)"),
    ("selector", "topk", TopKSelector, "tokens with the best scores, with their neighbours",
     "the score's, and M", f"{PAPER}, Eq. (8)"),
):  # fmt: skip
    register(kind, name, about=about, source=source, cost=cost)(part)
