"""Checks made before a self-test starts: do all questions fit in the model's window, and is the
text long enough that selection matters?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from esa_cli.errors import LengthError
from esa_cli.evaluation.selftest.run_plan import prompted_preset
from esa_cli.evaluation.tasks.task_sample import TaskSample
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import resolve


def askable(session: Session, sample: TaskSample, presets: Sequence[Preset]) -> None:
    """Checks a document's questions, with each method over rows, against the model's window. Raises
    LengthError: one does not fit beside the selected tokens."""
    for preset in presets:
        session.use(prompted_preset(preset, sample))
        for question in sample.questions:
            with _named(sample, "leave the test out, or lower window.selected with --set"):
                session.check(question.text, prime=question.prime, max_new_tokens=question.longest)


def askable_from_text(asker: TextAsker, sample: TaskSample) -> None:
    """Checks a document's questions against the model's window. Raises LengthError: one does not
    fit beside a passage."""
    for question in sample.questions:
        with _named(sample, "leave the test out"):
            asker.check(question.text, question.longest)


@contextmanager
def _named(sample: TaskSample, hint: str) -> Iterator[None]:
    try:
        yield
    except LengthError as error:
        raise LengthError(f"{sample.test} cannot be asked: {error.message}", hint) from error


def all_in_view(tokens: int, presets: Sequence[Preset]) -> str | None:
    """A note if the text is so short that every method over rows uses full attention: such a test
    says nothing about selection."""
    if not presets:
        return None
    plain = min(resolve(preset).method.window.dense_below for preset in presets)
    if tokens > plain:
        return None
    return (
        f"all {tokens:,} tokens are in view of every method: up to {plain:,} (window.dense) "
        "attention is full; with --set window.dense=null they select"
    )
