"""The full attention baselines: everything is attended to.

`origin` is the model as it is, at true positions; `full` has the preset's position encoding, which
tells what positions do from what selection does. The others stretch the window by changed
frequencies, each in its own file. Their factor is the document's length and 256 tokens for the
words around it, the question and the answer, in trained windows, rounded up to a whole number. So
the stretched window holds all of them, and documents of about one length are read alike. An unknown
length gives 1.
"""

from __future__ import annotations

import math
from typing import Any

from esa_cli.methods.recipes import OWN_SCORE, Base, recipe

FULL_COST = "H C N D: every cached token is attended to"
ROOM = 256
"""Tokens for what stands around the document: the prompt's words, the question and the answer."""


def everything(position: dict[str, Any]) -> dict[str, Any]:
    """Settings of full attention with this encoding. Nothing is scored, so nothing is reduced."""
    return {
        "selector": {"name": "full"},
        **OWN_SCORE,
        "position": position,
        "reading": "select",
    }


def whole_stretch(base: Base) -> float:
    """s of a recipe: the trained windows that the document takes with ROOM, a whole number."""
    taken = base.length + ROOM if base.length else 0
    return float(max(1, math.ceil(taken / base.context)))


@recipe(
    "origin",
    about="full attention as the model was trained",
    source="appendix of the ESA paper",
    cost=FULL_COST,
    full=True,
)
def origin(base: Base) -> dict[str, Any]:
    return everything({"name": "true"})


@recipe(
    "full",
    about="full attention, far tokens where the preset's position encoding puts them",
    source="Vaswani et al. 2017, Attention Is All You Need, arXiv 1706.03762",
    cost=FULL_COST,
    full=True,
)
def full(base: Base) -> dict[str, Any]:
    return everything(dict(base.position))
