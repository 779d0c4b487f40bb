"""Recipes of the paper's own method and of its variants; they need no selector of their own.

    esa             the paper's: one selection for all heads by the sum of their scores
    esa-individual  its ablation: a token's score is the best that any head gives it
    esa-vote        each head's softmax over M, summed: what attention will see, not raw products
    esa-consensus   later layers add to the votes of earlier ones; the default preset is this with
                    six heads of its model that vote, in place of all

Every setting is written out, so that none is left over from the preset below. Windows and
compressor are the preset's.
"""

from __future__ import annotations

from typing import Any

from esa_cli.methods.recipes import Base, recipe

PAPER = (
    "Wang et al., Unshackling Context Length: An Efficient Selective Attention Approach through "
    "Query-Key Compression, arXiv 2502.14477"
)
ATTENDED = "2 F (I + K + L)"
"""Keys and values that a step attends to, where all heads share them."""

PLAIN: dict[str, Any] = {
    "pool": "max",
    "shortlist": 0,
    "contrast": False,
    "normalise": "head",
    "heads": [],
}


def far_away(base: Base) -> int:
    """w: three quarters of the trained window, which results.md has as the best; ours."""
    return base.preset.context * 3 // 4


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


@recipe(
    "esa-individual",
    about="as esa, but a token's score is the highest that any head gives it, on whole keys",
    source=f"{PAPER}; its ablation over heads",
    cost=f"F M + {ATTENDED}",
)
def esa_individual(base: Base) -> dict[str, Any]:
    vote = {"name": "vote", "rule": "max", "rotate": False, **PLAIN, "normalise": "query"}
    return {**esa(base), "score": vote}


@recipe(
    "esa-vote",
    about="as esa, but every head votes by its softmax over the logits attention will see",
    source="this project, after the paper",
    cost=f"F M + {ATTENDED}",
)
def esa_vote(base: Base) -> dict[str, Any]:
    vote = {"name": "vote", "rule": "softmax", "rotate": True, **PLAIN}
    return {**esa(base), "selector": {"name": "topk", "proximity": 1}, "score": vote}


@recipe(
    "esa-consensus",
    about="whole passages that the layers agree on, seen right before the question",
    source="this project, after the paper",
    cost=f"F M for a question, 0 for an answer's token, + {ATTENDED}",
)
def esa_consensus(base: Base) -> dict[str, Any]:
    agreed = {"name": "consensus", "passage": 64, "share": 0.5, "rounds": 2, "answer": "keep"}
    vote = {"name": "vote", "rule": "softmax", "rotate": True, "pool": "max", "contrast": True}
    return {
        **esa_vote(base),
        "selector": agreed,
        "score": {**PLAIN, **vote},
        "position": {"name": "contiguous", "distance": min(1024, base.preset.context // 2)},
        "window": {"ending": 0},
        "reading": "local",
    }
