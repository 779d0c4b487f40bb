"""One prefill for many methods: keys are cached unrotated and nothing is evicted, so every method
that selects only at question time can use the same cache.

Unlike in a prefill of the method's own, keys and values come from attention to the initial and
local tokens at the preset's positions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from esa_cli.attention.interfaces import Selection
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.evaluation.selftest.run_plan import MethodGroup
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets import build_method as build
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.progress import Progress


@dataclass(frozen=True)
class ObservedSelector(Selector):
    """A selector that lets others observe, which have their layer states at question time then."""

    inner: Selector
    others: tuple[Selector, ...]

    def select(self, step: Step, budget: int) -> Selection:
        return self.inner.select(step, budget)

    def observe(self, step: Step) -> None:
        for other in self.others:
            other.observe(step)


def shared_reading(base: Method, methods: Sequence[Method]) -> Method:
    """The base method, with prefill by I and L only, observed by all methods that observe, and with
    the methods' compressor (they have the same one)."""
    others = tuple(dict.fromkeys(m.selector for m in methods if m.selector.observes))
    selector = ObservedSelector(base.selector, others) if others else base.selector
    fitting = next((m for m in methods if m.score.features), base)
    return replace(
        base,
        selector=selector,
        score=fitting.score,
        compressor=fitting.compressor,
        reading="local",
    )


def read_for(
    session: Session, base: Preset, group: MethodGroup, text: str, progress: Progress
) -> float:
    """Prefills a text for the group's methods, in the session's preset; returns the seconds."""
    started = time.perf_counter()
    method = None
    if group.shared:
        made = [build.method(preset) for preset in group.presets]
        method = shared_reading(build.method(base), made)
    session.read(text, progress, method)
    return time.perf_counter() - started
