"""Where `esa calibrate` writes, what it shows and writes besides the maps, how they are used."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli import output_paths as files
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.calibrate_command import Wanted
    from esa_cli.apps.cli.terminal import Reporter
    from esa_cli.evaluation.calibration.calibration_pipeline import Job
    from esa_cli.evaluation.calibration.calibration_study import Study
    from esa_cli.qa.preset import Preset

PARTS = ("selector", "score", "position")
"""Settings that say how maps are used, with an option of `esa ask` for each name."""


@dataclass(frozen=True)
class Done:
    """The study, the JSON object, and the options with which `esa ask` uses the maps."""

    study: Study
    result: dict[str, Any]
    options: str


def check_files(wanted: Wanted, texts: Sequence[str]) -> None:
    """Finds out before an hour of reading what would be lost, or not written, after it.

    Raises:
        UsageError, DocumentError: as `files.check`, `files.spare`, `document.meant`; or two options
            name one place, or there is no matplotlib for --plot or --report.
    """
    from esa_cli.documents.document import meant
    from esa_cli.evaluation.report.figures import require_matplotlib

    maps, work = {"--out": wanted.out}, {"--work": wanted.work}
    drawn = {"--recall-out": wanted.recall_out, "--plot": wanted.plot, "--report": wanted.report}
    named = {name: path for name, path in {**maps, **drawn, **work}.items() if path is not None}
    sources = [*texts, *(path for path, _ in meant(texts).sources)]
    files.apart(named)
    for option, path in named.items():
        files.spare(option, path, sources)
        if option != "--work":
            files.check(option, path)
    if wanted.work.exists() and not wanted.work.is_dir():
        raise UsageError(f"--work {wanted.work} is not a folder", "name another")
    files.check("--work", wanted.work / "parts", makes_folders=True)
    for option in ("--plot", "--report"):
        if option in named:
            require_matplotlib(option)


def options_for(given: Preset, made: Preset, file: Path) -> str:
    """Options that turn the preset as given into one that uses the maps in `file`.

    Args:
        made: the preset that the maps were made with.
    """
    words: list[str] = []
    for part in PARTS:
        wanted = getattr(made, part)
        if wanted != getattr(given, part):
            words += [f"--{part}", wanted["name"]]
            for key, value in wanted.items():
                if key != "name":
                    words += ["--set", f"{part}.{key}={json.dumps(value)}"]
    words += ["--set", "compressor.name=learned", "--set", f"compressor.file={file}"]
    return shlex.join(words)


def outcome(wanted: Wanted, preset: Preset, done: Study) -> dict[str, Any]:
    """The JSON object; writes it, the picture and the page, where they are wanted.

    Raises:
        ResourceError, DocumentError: as `files.writing`.
    """
    result = {"model": preset.model, "preset": preset.name, "for": wanted.aim, **done.as_dict()}
    result["training"] = wanted.training
    result["written"] = {"file": str(wanted.out), "method": done.best}
    if wanted.recall_out:
        files.write(wanted.recall_out, json.dumps(result, indent=2) + "\n")
    series = {name: found.series() for name, found in done.results.items()}
    title = f"recall@{done.ks[-1]} per layer, {preset.name}"
    if wanted.plot:
        from esa_cli.evaluation.report.figures import recall_chart

        with files.writing(wanted.plot):
            recall_chart(series, title).write_png(wanted.plot)
    if wanted.report:
        from esa_cli.evaluation.report.report_page import recall_page

        page = recall_page(series, title, {**result, "command": "esa calibrate"})
        files.write(wanted.report, page)
    return result


def tell_limits(wanted: Wanted, job: Job, reporter: Reporter) -> None:
    """Says where the model has fewer dimensions than --rank, or the text fewer keys than --k."""
    from esa_cli.evaluation.calibration.calibration_study import held_out
    from esa_cli.evaluation.calibration.key_recall import limited

    if wanted.rank and wanted.rank > job.width:
        reporter.note(f"esa: --rank {wanted.rank}: keys have {job.width} dimensions, all are used")
    held = held_out(len(job.ids))
    for k in sorted(set(wanted.ks)):
        (used,) = limited([k], held)
        if used != k:
            reporter.note(f"esa: --k {k}: at most half of the {held} keys held out; k is {used}")


def show(study: Study) -> None:
    """Tables: recall of every layer, and means by how reduced keys are stored."""
    from esa_cli.apps.cli.terminal import print_table
    from esa_cli.evaluation.calibration.key_recall import STORED

    names, results = list(study.results), study.results
    series = {name: results[name].series() for name in names}
    rows = [
        [str(layer), str(rank), *(f"{series[name][layer]:.3f}" for name in names)]
        for layer, rank in enumerate(study.ranks)
    ]
    rows.append(["mean", str(sum(study.ranks)), *(f"{results[n].mean():.3f}" for n in names)])
    print_table(("layer", "R", *(f"{name} @{study.ks[-1]}" for name in names)), rows)
    print()
    means = [
        [name, stored, *(f"{results[name].mean(stored, at):.3f}" for at in range(len(study.ks)))]
        for name in names
        for stored in STORED
    ]
    print_table(("method", "reduced keys", *(f"mean @{k}" for k in study.ks)), means)
