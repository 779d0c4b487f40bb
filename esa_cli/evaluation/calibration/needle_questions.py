"""Questions for the needles of a text, with the needles' positions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from esa_cli.attention.window import Window
from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import TaskSample
from esa_cli.qa.answering.prompt import PromptTokens

FEWEST = 4
"""Fewest questions that are enough in two halves."""


@dataclass(frozen=True)
class NeedleQuestion:
    """A question, and its needle's absolute positions."""

    question: str
    needle: range


def selectable(
    asked: Sequence[NeedleQuestion], window: Window, tokens: int
) -> list[NeedleQuestion]:
    """Questions whose needle is in view only if it is selected. Raises UsageError."""
    near = window.local if window.ending is None else window.ending
    there = range(window.initial, tokens - near)
    if tokens <= window.dense_below or window.selected == 0:
        there = range(0)
    out = [one for one in asked if there.start <= one.needle.start < one.needle.stop <= there.stop]
    if len(out) < FEWEST:
        raise UsageError(
            f"at least {FEWEST} needles must be where tokens are selected, got {len(out)} of "
            f"{len(asked)}",
            f"use a longer text: up to {window.dense_below:,} tokens all are in view",
        )
    return out


def needle_questions(prompt: PromptTokens, sample: TaskSample) -> list[NeedleQuestion]:
    """The questions, in the order of their needles in the text."""
    spans, head = prompt.offsets(sample.text), len(prompt.head())
    starts, ends = [low for low, _ in spans], [high for _, high in spans]
    out = []
    for question in sample.questions:
        fact = sample.facts[question.facts[0]]
        first, last = bisect_right(ends, fact.start), bisect_left(starts, fact.end)
        out.append(NeedleQuestion(question.text, range(first + head, last + head)))
    return sorted(out, key=lambda one: one.needle.start)
