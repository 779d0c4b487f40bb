"""Output of `esa calibrate` besides the projections."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options import output_paths as files

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.calibrate_request import CalibrationRequest
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.calibration.calibration_pipeline import CalibrationJob, CalibrationStudy
    from esa_cli.qa.presets.preset import Preset

PARTS = ("selector", "score", "position")
"""Settings that the use of maps depends on; each is an option of `esa ask`."""


@dataclass(frozen=True)
class CalibrationOutcome:
    """The study, the JSON object, and the options with which `esa ask` uses the maps."""

    study: CalibrationStudy
    result: dict[str, Any]
    options: str


def options_for(given: Preset, made: Preset, file: Path) -> str:
    """Options of `esa ask` that turn the given preset into one that uses the maps in `file`.

    Args:
        made: the preset that the maps were fitted with.
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


def outcome(
    wanted: CalibrationRequest, training: dict[str, Any], preset: Preset, done: CalibrationStudy
) -> dict[str, Any]:
    """The JSON object; writes it, the picture and the page, where they are asked for.

    Raises:
        ResourceError, DocumentError: as `output_paths.writing`.
    """
    result = {"model": preset.model, "preset": preset.name, "for": wanted.aim, **done.as_dict()}
    result["training"] = training
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


def tell_limits(wanted: CalibrationRequest, job: CalibrationJob, reporter: Reporter) -> None:
    """Notes a --rank beyond the model's dimensions, and a --k beyond half of the held-out keys."""
    from esa_cli.evaluation.calibration.calibration_pipeline import held_out_count, limited_ks

    if wanted.rank and wanted.rank > job.width:
        reporter.note(f"esa: --rank {wanted.rank}: keys have {job.width} dimensions, all are used")
    held = held_out_count(len(job.ids))
    for k in sorted(set(wanted.ks)):
        (used,) = limited_ks([k], held)
        if used != k:
            reporter.note(f"esa: --k {k}: at most half of the {held} keys held out; k is {used}")


def show(study: CalibrationStudy) -> None:
    """Prints the recall of every layer, and the means at each k where there are several."""
    from esa_cli.apps.cli.output.terminal import print_table

    names, results = list(study.results), study.results
    series = [results[name].series() for name in names]
    rows = [
        [str(layer), str(rank), *(f"{one[layer]:.3f}" for one in series)]
        for layer, rank in enumerate(study.ranks)
    ]
    rows.append(["mean", str(sum(study.ranks)), *(f"{results[n].mean():.3f}" for n in names)])
    print_table(("layer", "R", *(f"{name} @{study.ks[-1]}" for name in names)), rows)
    if len(study.ks) > 1:
        print()
        ks = range(len(study.ks))
        means = [[name, *(f"{results[name].mean(at):.3f}" for at in ks)] for name in names]
        print_table(("method", *(f"mean @{k}" for k in study.ks)), means)
