"""What `esa calibrate` shows and writes besides the maps, and how they are used."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..calibrate.study import Study
    from ..preset import Preset
    from .calibrate import Wanted

PARTS = ("selector", "score", "position")
"""Settings that say how maps are used, with an option of `esa ask` for each name."""


@dataclass(frozen=True)
class Done:
    """The study, the JSON object, and the options with which `esa ask` uses the maps."""

    study: Study
    result: dict[str, Any]
    options: str


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
    """The JSON object; writes it, the picture and the page, where they are wanted."""
    result = {"model": preset.model, "preset": preset.name, "for": wanted.aim, **done.as_dict()}
    result["training"] = wanted.training
    result["written"] = {"file": str(wanted.out), "method": done.best}
    if wanted.recall_out:
        wanted.recall_out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    series = {name: found.series() for name, found in done.results.items()}
    title = f"recall@{done.ks[-1]} per layer, {preset.name}"
    if wanted.plot:
        from ..report.png import recall_chart

        recall_chart(series, wanted.plot, title=title)
    if wanted.report:
        from ..report.html import recall_page

        page = recall_page(series, title, {**result, "command": "esa calibrate"})
        wanted.report.write_text(page, "utf-8")
    return result


def show(study: Study) -> None:
    """Tables: recall of every layer, and means by how reduced keys are stored."""
    from ..calibrate.recall import STORED
    from .render import print_table

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
