"""The steps of `selftest`, in the order in which mistakes are cheapest to find.

preset -> tests and methods by name -> files -> haystack -> journal -> model's small files -> model
-> questions -> tables -> files
"""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli import output_paths as files
from esa_cli.apps.cli import preflight as known
from esa_cli.apps.cli.progress_display import SelftestDisplay
from esa_cli.apps.cli.terminal import Reporter, clean, print_json
from esa_cli.errors import EsaError, UsageError
from esa_cli.evaluation.report import result_rows as rows
from esa_cli.evaluation.tasks import TASKS, Haystack, find_task
from esa_cli.evaluation.tasks.haystack_text import SUFFIXES
from esa_cli.qa import method_presets, preset
from esa_cli.system.digest import text_digest
from esa_cli.system.jsonl import Journal
from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.evaluation.report.statistics import Summary
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings


@dataclass(frozen=True)
class Trial:
    """What the person asked for."""

    settings: SelftestSettings
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
        EsaError: whatever was wrong. What was answered before is shown, and kept in --out.
    """
    reporter = Reporter(quiet)
    try:
        _run(trial, reporter, as_json)
    finally:
        reporter.settle()


def _run(trial: Trial, reporter: Reporter, as_json: bool) -> None:
    from esa_cli.evaluation.selftest.resumed_rows import KEY, same_reading
    from esa_cli.models.quiet_transformers import quiet_transformers

    until = None if trial.minutes is None else time.monotonic() + 60 * trial.minutes
    chosen = preset.load(trial.preset, trial.overrides)
    hay = _check(trial, chosen)
    reporter.stage("import", 0, None)
    place = known.Place.of(trial.device, trial.dtype)
    journal = Journal(
        trial.out,
        _header(trial, chosen, hay, place),
        same=("model", "settings", "preset_settings"),
        key=KEY,
        wrong=rows.wrong,
    )
    same_reading(journal, trial.settings, chosen)
    folder = _look(trial, chosen, hay, place, reporter)
    if journal.rows:
        reporter.note(f"esa: {len(journal.rows)} questions of an earlier run are kept")
    listener = SelftestDisplay(reporter, journal.rows)
    try:
        with quiet_transformers():
            loaded = known.load(chosen.model, folder, trial.device, trial.dtype, reporter)
            reporter.settle()
            from esa_cli.evaluation.selftest.selftest_run import SelftestRun

            engine = SelftestRun(loaded, chosen, trial.settings, hay, journal, listener, until)
            with journal:
                engine.run()
    except (KeyboardInterrupt, EsaError):
        listener.finish()
        if journal.rows:
            _show(trial, journal, as_json, complete=False)
            reporter.note(f"esa: stopped after {len(journal.rows)} questions{_goes_on(trial)}")
        raise
    listener.finish()
    if engine.stopped:
        reporter.note(f"esa: the time limit was reached{_goes_on(trial)}")
    _show(trial, journal, as_json, complete=not engine.stopped)


def _goes_on(trial: Trial) -> str:
    return f"; the same command with --out {trial.out} goes on" if trial.out else ""


def _check(trial: Trial, chosen: preset.Preset) -> Haystack:
    """Names, lengths, texts and files, before anything is loaded; the haystack."""
    settings = trial.settings
    if not settings.tests or not settings.methods:
        raise UsageError("no test or no method", f"tests: {', '.join(TASKS)}")
    for test in settings.tests:
        find_task(test)
    for name in settings.methods:
        if name != "preset":
            method_presets.apply(name, chosen, max(settings.lengths))
    if "own" in settings.tests and trial.haystack is None:
        raise UsageError("`own` plants needles in your own text", "give it with --haystack FILE")
    _check_files(trial)
    given, seed = trial.haystack, settings.seed
    return Haystack.chronicle(seed) if given is None else Haystack.read(str(given))


def _check_files(trial: Trial) -> None:
    """Checks that files can be written and drawn, and take no other file's place.

    Raises:
        UsageError, DocumentError.
    """
    from esa_cli.evaluation.report.figures import require_matplotlib

    written = {"--out": trial.out, "--report": trial.report, "--png": trial.png}
    texts = _texts(trial.haystack)
    for option, path in written.items():
        files.check(option, path, makes_folders=option == "--out")
        files.spare(option, path, texts, "one of the texts of --haystack")
    files.apart(written)
    for option in ("--png", "--report"):
        if written[option] is not None:
            require_matplotlib(option)


def _texts(haystack: Path | None) -> list[str]:
    """The files that --haystack reads."""
    if haystack is None or not haystack.is_dir():
        return [] if haystack is None else [str(haystack)]
    return [str(path) for path in haystack.iterdir() if path.suffix.lower() in SUFFIXES]


def _look(
    trial: Trial, chosen: preset.Preset, haystack: Haystack, place: known.Place, reporter: Reporter
) -> Path:
    """The folder of the model's small files, when it serves and the longest document fits.

    Raises:
        ModelError, PresetError, ResourceError.
    """
    from esa_cli.evaluation.selftest.run_plan import method_preset

    found = known.look(chosen, place, reporter)
    settings = trial.settings
    lengths = [max(settings.lengths)] if set(settings.tests) != {"own"} else []
    if "own" in settings.tests:
        lengths.append(found.tokens(haystack.text))
    made = [method_preset(name, chosen, max(lengths)) for name in settings.methods]
    found.check(made, max(lengths))
    return found.folder


def _header(
    trial: Trial, chosen: preset.Preset, haystack: Haystack, place: known.Place
) -> dict[str, Any]:
    from esa_cli.evaluation.selftest.run_plan import dense_length

    settings = asdict(trial.settings)
    text = text_digest(haystack.text)[:16] if haystack.text else None
    kept = {key: settings[key] for key in ("depths", "samples", "seed", "reading", "exact")}
    return {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "model": chosen.model,
        "preset": chosen.name,
        "context": chosen.context,
        "dense_length": dense_length(chosen),
        "settings": {
            **kept,
            "haystack": haystack.name,
            "haystack_hash": text,
            "dtype": place.dtype_name,
        },
        "preset_settings": chosen.model_dump(exclude={"name", "description"}),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def _show(trial: Trial, journal: Journal, as_json: bool, *, complete: bool) -> None:
    """Tables on standard output, then the files that were asked for.

    Raises:
        DocumentError, ResourceError: a file cannot be written.
    """
    from esa_cli.evaluation.report.statistics import summarise

    summary = summarise(journal.rows)
    if as_json:
        print_json({**journal.header, "complete": complete, "rows": journal.rows})
    else:
        _print(summary, journal)
    if trial.report is not None:
        from esa_cli.evaluation.report.report_page import write_html

        with files.writing(trial.report):
            write_html(trial.report, journal.header, journal.rows)
    if trial.png is not None:
        from esa_cli.evaluation.report.figures import picture

        with files.writing(trial.png):
            picture(summary).write_png(trial.png)


def _print(summary: Summary, journal: Journal) -> None:
    from rich.console import Console
    from rich.text import Text

    from esa_cli.evaluation.report.terminal_tables import report

    console = Console(highlight=False, force_terminal=sys.stdout.isatty())
    console.print(report(summary, min(console.width, 120)))
    for line in _readings(journal.rows):
        console.print(Text(line, style="dim"), soft_wrap=True)


def _readings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Whose rule the documents were read by: it is part of what a score means."""
    rules = {
        "shared": "first and local tokens of the preset",
        "own": "by its own rule",
    }
    out = []
    for reading, rule in rules.items():
        found = (row for row in rows if row.get("reading") == reading and not row.get("dense"))
        names = ", ".join(dict.fromkeys(row["method"] for row in found))
        if names:
            out.append(f"reading: {reading} ({rule}): {clean(names)}")
    return out
