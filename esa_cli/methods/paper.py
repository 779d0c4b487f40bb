"""The paper's method by name: the registered parts of `attention/`, and the recipe `esa`.

The recipe sets every setting of its parts, so that none is the preset's. Windows and compressor are
the preset's.
"""

from __future__ import annotations

from typing import Any

from esa_cli.attention.compression import ClosedForm, NoCompression, Pca
from esa_cli.attention.learned_maps import Learned
from esa_cli.attention.positions import ROTATED, Contiguous, FixedDistance, TruePositions
from esa_cli.attention.scoring import SumScore
from esa_cli.attention.selection import TopK
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import Base, recipe

PAPER = (
    "Wang et al., Unshackling Context Length: An Efficient Selective Attention Approach through "
    "Query-Key Compression, arXiv 2502.14477"
)
ATTENDED = "2 F (I + K + L)"
"""Numbers of keys and values that a step attends to, where all heads share the selection."""


def far_away(base: Base) -> int:
    """w: three quarters of the trained window; measured, benchmarks/NOTES.md."""
    return base.context * 3 // 4


@recipe(
    "esa",
    about="tokens by the sum of all heads' scores on reduced keys; all far tokens at one distance",
    source=PAPER,
    cost=f"R M + {ATTENDED}",
)
def esa(base: Base) -> dict[str, Any]:
    return {
        "selector": {"name": "topk", "proximity": 3},
        "score": {"name": "sum", "rotate": False},
        "position": {"name": "esa", "distance": far_away(base)},
        "reading": "select",
    }


register(
    "compressor",
    "none",
    about="scores with whole keys",
    source="no compression",
    cost="F M to score; nothing more is stored",
)(NoCompression)
register(
    "compressor",
    "closed-form",
    about="the best linear maps for the text's first tokens",
    source="this project; the minimum of Eq. (7) of ESA, arXiv 2502.14477",
    cost="R M to score, R stored a token; F^3 once a layer to fit",
)(ClosedForm)
register(
    "compressor",
    "pca",
    about="the directions in which the keys are largest",
    source="ESA, arXiv 2502.14477, compares with it in Section 4",
    cost="R M to score, R stored a token; F^3 once a layer to fit",
)(Pca)
register(
    "compressor",
    "learned",
    about="linear maps from a file of `esa calibrate`",
    source="Wang et al., ESA, arXiv 2502.14477, Eqs. (5)-(7)",
    cost="R M to score, R stored a token; trained beforehand",
)(Learned)
register(
    "position",
    "esa",
    about="all far tokens at one fixed distance",
    source="Wang et al., ESA, arXiv 2502.14477, Section 3.2",
    cost=ROTATED,
)(FixedDistance)
register(
    "position",
    "contiguous",
    about="far tokens re-numbered in order, right before L",
    source="Wu et al., TokenSelect, arXiv 2411.02886",
    cost=ROTATED,
)(Contiguous)
register(
    "position",
    "true",
    about="every token at its position in the document",
    source="Su et al. 2021, RoFormer, arXiv 2104.09864",
    cost=ROTATED,
)(TruePositions)
register(
    "score",
    "sum",
    about="summed over heads, then maximum over queries",
    source="Wang et al., ESA, arXiv 2502.14477, Eqs. (3)-(4)",
    cost="R M with a compressor, F M without",
)(SumScore)
register(
    "selector",
    "topk",
    about="tokens with the best scores, with their neighbours",
    source="Wang et al., ESA, arXiv 2502.14477, Eq. (8)",
    cost="the score's, and M",
)(TopK)
