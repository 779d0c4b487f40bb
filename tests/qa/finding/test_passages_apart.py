"""Passages of which none overlaps an earlier one by half, compared with a plain loop."""

from __future__ import annotations

import random

from esa_cli.qa.finding.windows import FoundPassage, PassagesApart


def by_loop(passages: list[FoundPassage]) -> list[FoundPassage]:
    out: list[FoundPassage] = []
    for one in passages:
        for other in out:
            shared = min(one.end, other.end) - max(one.start, other.start)
            shorter = min(one.end - one.start, other.end - other.start)
            if one.document == other.document and 2 * shared >= shorter:
                break
        else:
            out.append(one)
    return out


def test_as_a_plain_loop() -> None:
    draw = random.Random(1)
    for _ in range(50):
        passages = []
        for _ in range(60):
            start = draw.randrange(300)
            passages.append(FoundPassage(draw.randrange(2), start, start + draw.randint(1, 60), 0))
        made = PassagesApart()
        added = [made.add(one) for one in passages]
        assert made.passages == by_loop(passages)
        assert [one for one, new in zip(passages, added, strict=True) if new] == made.passages
