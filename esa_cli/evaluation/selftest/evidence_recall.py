"""The share of a fact among the passages of an answer from text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from esa_cli.evaluation.selftest.needle_recall import IN_VIEW
from esa_cli.evaluation.tasks.task_sample import Fact
from esa_cli.qa.answering.reply import Evidence

SHOWN = 3
"""First passages that count as evidence: as many as `esa ask` shows."""


def covered_share(fact: Fact, passages: Sequence[Evidence]) -> float:
    """The share of the fact's characters in the passages, which may overlap."""
    inside = {
        at for one in passages for at in range(max(fact.start, one.start), min(fact.end, one.end))
    }
    return len(inside) / max(1, fact.end - fact.start)


def evidence_recall_fields(
    score: float, facts: Sequence[Fact], passages: Sequence[Evidence]
) -> dict[str, Any]:
    """The fields `recall` and `why` of a question's row.

    `mean` is over facts, among the first passages; `read` among all that were read again. A missed
    question whose facts are less than half among the latter is not selected.
    """
    if not facts:
        return {"recall": None, "why": None}
    shown, read = (
        round(sum(covered_share(fact, some) for fact in facts) / len(facts), 4)
        for some in (passages[:SHOWN], passages)
    )
    missed = "selected, not used" if read >= IN_VIEW else "not selected"
    return {
        "recall": {"mean": shown, "read": read},
        "why": "answered" if score >= 1 else missed,
    }
