"""The steps of `selftest`, in the order in which mistakes are cheapest to find.

tests and methods by name -> preset -> haystack -> journal -> model -> questions -> tables and files
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__, models, preset, recipes
from ..errors import UsageError
from ..journal import Journal
from ..probes import PROBES, Haystack, probe
from ..selftest.plan import Settings, dense_length
from . import progress
from .render import Reporter, clean, print_json


@dataclass(frozen=True)
class Trial:
    """What the person asked for."""

    settings: Settings
    preset: str
    overrides: Sequence[str] = ()
    haystack: Path | None = None
    minutes: float | None = None
    out: Path | None = None
    report: Path | None = None
    png: Path | None = None
    device: str = "auto"
    dtype: str = "auto"


def run(trial: Trial, *, as_json: bool, quiet: bool) -> None:
    """Runs the test and prints what came of it.

    Raises:
        EsaError: whatever was wrong. What was answered before is kept in --out.
    """

    until = None if trial.minutes is None else time.monotonic() + 60 * trial.minutes
    reporter = Reporter(quiet)
    chosen = preset.load(trial.preset, trial.overrides)
    _check(trial.settings, chosen)
    if "own" in trial.settings.tests and trial.haystack is None:
        raise UsageError("`own` plants needles in your own text", "give it with --haystack FILE")
    given, seed = trial.haystack, trial.settings.seed
    hay = Haystack.chronicle(seed) if given is None else Haystack.read(str(given))
    _refuse_unwritable(trial)
    journal = Journal(
        trial.out,
        _header(trial, chosen, hay),
        same=("model", "settings", "preset_settings"),
        key=("test", "method", "length", "sample", "question"),
    )
    before = len(journal.rows)
    try:
        engine = _engine(trial, chosen, hay, journal, reporter, until)
        with journal:
            if before:
                reporter.note(f"esa: {before} questions of an earlier run are kept")
            engine.run()
    except KeyboardInterrupt:
        reporter.settle()
        if journal.rows:
            _show(trial, journal, as_json)
            where = f"; the same command with --out {trial.out} goes on" if trial.out else ""
            reporter.note(f"esa: stopped after {len(journal.rows)} questions{where}")
        raise
    reporter.settle()
    if engine.stopped:
        reporter.note("esa: the time limit was reached; the same command goes on")
    _show(trial, journal, as_json)


def _check(settings: Settings, chosen: preset.Preset) -> None:
    """Names and lengths, before anything is loaded."""
    if not settings.tests or not settings.methods:
        raise UsageError("no test or no method", f"tests: {', '.join(PROBES)}")
    for test in settings.tests:
        probe(test)
    for name in settings.methods:
        if name != "preset":
            recipes.apply(name, chosen, max(settings.lengths))


def _refuse_unwritable(trial: Trial) -> None:
    for path in (trial.report, trial.png):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {path.absolute().parent}", "make it first")


def _header(trial: Trial, chosen: preset.Preset, haystack: Haystack) -> dict[str, Any]:
    import hashlib
    import platform

    settings = asdict(trial.settings)
    text = hashlib.sha256(haystack.text.encode()).hexdigest()[:16] if haystack.text else None
    kept = {key: settings[key] for key in ("depths", "samples", "seed", "reading", "exact")}
    return {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "model": chosen.model,
        "preset": chosen.name,
        "context": chosen.context,
        "dense_length": dense_length(chosen),
        "settings": {**kept, "haystack": haystack.name, "haystack_hash": text},
        "preset_settings": chosen.model_dump(exclude={"name", "description"}),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def _engine(
    trial: Trial,
    chosen: preset.Preset,
    haystack: Any,
    journal: Journal,
    reporter: Reporter,
    until: float | None,
) -> Any:
    from ..models.quiet import quiet_transformers
    from ..selftest.engine import Engine

    with quiet_transformers():
        loaded = models.load(
            chosen.model, device=trial.device, dtype=trial.dtype, progress=reporter.stage
        )
    reporter.settle()
    listener = _Listener(reporter)
    return Engine(loaded, chosen, trial.settings, haystack, journal, listener, until)


@dataclass
class _Listener:
    """One line for each reading and each method."""

    reporter: Reporter
    _place: tuple[Any, ...] = ()
    _scores: list[float] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)

    def reading(
        self, test: str, length: int, names: Sequence[str], total: int
    ) -> Callable[[int, int], None]:
        self._flush()
        label = f"{test} at {length:,} tokens: reading for {', '.join(names)}"
        return progress.reading(self.reporter, label)

    def row(self, row: dict[str, Any]) -> None:
        place = (row["test"], row["length"], row["method"])
        if place != self._place:
            self._flush()
            self._place, self._scores, self._since = place, [], time.monotonic()
        self._scores.append(row["score"])
        mark = "right" if row["score"] >= 1 else f"{row['score']:.0%}" if row["score"] else "wrong"
        answer = clean(" ".join(row["answer"].split()))[:50]
        self.reporter.waiting(f"{row['method']}, {row['question']}: {mark}: {answer}")

    def _flush(self) -> None:
        if self._scores:
            test, length, method = self._place
            good, count = sum(self._scores), len(self._scores)
            self.reporter.settle()
            self.reporter.note(f"esa: {test} at {length:,}: {method} {good:g} of {count}")
        self._scores, self._place = [], ()


def _show(trial: Trial, journal: Journal, as_json: bool) -> None:
    """Tables on standard output, and the files that were asked for."""
    from ..report.summary import summarise

    summary = summarise(journal.rows)
    if trial.report is not None:
        from ..report.html import write_html

        write_html(trial.report, journal.header, journal.rows)
    if trial.png is not None:
        from ..report.png import picture

        picture(summary, trial.png)
    if as_json:
        print_json({**journal.header, "rows": journal.rows})
        return
    from rich.console import Console

    from ..report.terminal import report

    console = Console(highlight=False, force_terminal=sys.stdout.isatty())
    console.print(report(summary, min(console.width, 120)))
