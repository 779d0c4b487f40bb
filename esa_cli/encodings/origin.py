"""The full attention baselines: everything is attended to, at true positions.

`origin` is the model as it is; the others stretch its window by changed frequencies, each in its
own file. Their factor is the document's length in trained windows, rounded up to a whole number, so
that the stretched window holds the document and documents of about one length are read alike. An
unknown length gives 1.
"""

from __future__ import annotations

import math
from typing import Any

from ..recipes import OWN_SCORE, Base, recipe

FULL_COST = "H C N D: every cached token is attended to"


def everything(position: dict[str, Any]) -> dict[str, Any]:
    """Settings of full attention with this encoding. Nothing is scored, so nothing is reduced."""
    return {
        "selector": {"name": "full"},
        **OWN_SCORE,
        "position": position,
        "reading": "select",
    }


def whole_stretch(base: Base) -> float:
    """s of a recipe: `base.stretch` rounded up to a whole number."""
    return float(math.ceil(base.stretch))


@recipe(
    "origin",
    about="full attention as the model was trained",
    source="appendix of the ESA paper",
    cost=FULL_COST,
    full=True,
)
def origin(base: Base) -> dict[str, Any]:
    return everything({"name": "true"})
