"""`esa calibrate`: fits compressors on a text and compares what they find again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import UsageError
from esa_cli.system.registry import nearest

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.calibration.fitted_maps import CalibrationJob, CalibrationStudy
    from esa_cli.qa.opening import KnownModel
    from esa_cli.qa.presets.preset import Preset


TRAINING: dict[str, Any] = {"epochs": 10, "batch": 128, "lr": 5e-4, "seed": 0}
"""Of `fitted_maps.TrainingSettings`."""
LEAST = {"epochs": 0, "batch": 1, "lr": 0.0, "seed": 0}


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of `esa calibrate` besides those of the model."""

    aim: Annotated[
        str, option("--for METHOD", "Whose queries to fit: a name from `esa methods`, or preset.")
    ] = "esa"
    tokens: Annotated[int, option("--tokens N", "Read at most so many tokens.", min=1)] = 50_000
    method: Annotated[
        Literal["all", "closed-form", "pca", "learned"],
        option("--method METHOD", "What is fitted: all, closed-form, pca or learned."),
    ] = "all"
    rank: Annotated[
        int | None, option("--rank N", "Numbers per token and layer, in every layer.", min=1)
    ] = None
    k: Annotated[list[int] | None, option("--k N", "Recall at k. Repeatable.", min=1)] = None
    fit: Annotated[
        list[str] | None,
        option("--fit KEY=VALUE", "A setting of learned: epochs=10, batch=128, lr=5e-4, seed=0."),
    ] = None
    out: Annotated[Path, option("--out -o FILE", "Where the maps go: safetensors.")] = Path(
        "compressor.safetensors"
    )

    @property
    def ks(self) -> list[int]:
        return self.k or [1024]

    @property
    def training(self) -> dict[str, Any]:
        """Fields of `fitted_maps.TrainingSettings`. Raises UsageError: it has no such field."""
        fields = dict(TRAINING)
        for text in self.fit or ():
            key, _, value = text.partition("=")
            if key not in fields:
                raise UsageError(f"--fit has no setting {key!r}", nearest(key, fields))
            try:
                fields[key] = type(fields[key])(value)
                valid = LEAST[key] <= fields[key] < 2**31
            except ValueError:
                valid = False
            if not valid:
                raise UsageError(
                    f"--fit {key} must be a number from {LEAST[key]}, got {value!r}", f"{key}=VALUE"
                )
        return fields

    def check(self, texts: Sequence[str]) -> None:
        """Refuses, before an hour of reading, what would fail after it.

        Raises:
            UsageError: an unknown setting; a document, or somebody else's file at `out`.
                DocumentError: a place that cannot be written.
        """
        from esa_cli.documents.document import source_files
        from esa_cli.evaluation.calibration.fitted_maps import refuse_foreign

        _ = self.training
        sources = [*texts, *(path for path, _ in source_files(texts).sources)]
        files.spare("--out", self.out, sources)
        files.check("--out", self.out)
        if self.out.exists():
            refuse_foreign(self.out)


Texts = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Texts to read, or - for standard input.")
]


@options.command
def calibrate(
    texts: Texts,
    given: ModelOptions,
    wanted: CalibrationOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit compressors on a text and compare what they find again.

    esa calibrate book.txt --out book.safetensors
    """
    from esa_cli.apps.cli.output.terminal import Reporter, print_json

    model = replace(given, cache="device")
    options.load_plugins(model.plugins)  # a reader of theirs says which files of a folder are read
    wanted.check(texts)
    reporter = Reporter(quiet)
    try:
        study, chosen = _calibrate(texts, model, wanted, reporter)
    finally:
        reporter.settle()
    if as_json:
        facts = {"model": chosen.model, "preset": chosen.name, "for": wanted.aim}
        written = {"file": str(wanted.out), "method": study.best}
        print_json({**facts, **study.as_dict(), "training": wanted.training, "written": written})
        return
    _show(study)
    use = _options_for(model.method_preset(), chosen, wanted.out)
    reporter.note(f"{study.best} is in {wanted.out}; use it with\n  {use}", dim=False)


def _calibrate(
    texts: Sequence[str], model: ModelOptions, wanted: CalibrationOptions, reporter: Reporter
) -> tuple[CalibrationStudy, Preset]:
    """Prefills, fits, measures and writes; the study, and the preset that will use the maps."""
    from esa_cli.apps.cli import inputs
    from esa_cli.documents.document import join
    from esa_cli.evaluation.calibration.fitted_maps import (
        METHODS,
        TrainingSettings,
        open_job,
        target_preset,
    )
    from esa_cli.models.files.quiet_transformers import quiet_transformers
    from esa_cli.qa.opening import prepare

    given = model.method_preset()
    text = join(inputs.read(texts, reporter).documents)
    ready = prepare(given, model.place, reporter, attaches=True)
    chosen = target_preset(wanted.aim, given)
    loaded = ready.model.load(reporter)
    methods = METHODS if wanted.method == "all" else (wanted.method,)
    training = TrainingSettings(**wanted.training)
    with TemporaryDirectory(prefix=".esa-calibrate-", dir=wanted.out.resolve().parent) as folder:
        job = open_job(loaded, chosen, text, wanted.tokens, Path(folder))
        with quiet_transformers():
            _collect(job, ready.model, reporter)
        progress = partial(reporter.stage, "fitting and measuring")
        study = job.study(wanted.rank, methods, training, wanted.ks, progress)
    job.save(wanted.out, study, training)
    if not {*wanted.ks} <= {*study.ks}:
        ks = ", ".join(map(str, study.ks))
        reporter.note(f"esa: --k: at most half of the {study.held_out} keys held out; k is {ks}")
    return study, chosen


def _collect(job: CalibrationJob, model: KnownModel, reporter: Reporter) -> None:
    from esa_cli.apps.cli.output.progress_display import prefill_bar
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset

    total = len(job.ids)
    planner = Planner(
        ResolvedPreset(job.preset, job.method),
        model.folder,
        dtype=job.loaded.dtype,
        device=model.place.device,
        packing=model.place.packing,
    )
    planner.check(total)
    with prefill_bar(reporter, total, planner.plan(total).seconds) as progress:
        job.collect(progress)


def _options_for(given: Preset, used: Preset, file: Path) -> str:
    """Options of `esa ask` that turn the given preset into one that uses the maps in `file`, which
    were fitted with the preset `used`."""
    words: list[str] = []
    for part in ("selector", "score", "position"):  # the use of maps depends on these
        settings = getattr(used, part)
        if settings != getattr(given, part):
            for key, value in settings.items():
                text = value if key == "name" else json.dumps(value)
                words += ["--set", f"{part}.{key}={text}"]
    words += ["--set", "answer.from=rows"] * bool(words)
    words += ["--set", "compressor.name=learned", "--set", f"compressor.file={file}"]
    return shlex.join(words)


def _show(study: CalibrationStudy) -> None:
    """Prints the recall of every layer, and the means at each k where there are several."""
    from esa_cli.apps.cli.output.terminal import print_table

    results = study.results
    rows = [
        [str(layer), str(rank), *(f"{one.recall[layer][-1]:.3f}" for one in results.values())]
        for layer, rank in enumerate(study.ranks)
    ]
    means = (f"{one.mean():.3f}" for one in results.values())
    rows.append(["mean", str(sum(study.ranks)), *means])
    print_table(("layer", "R", *(f"{name} @{study.ks[-1]}" for name in results)), rows)
    if len(study.ks) > 1:
        print()
        ks = range(len(study.ks))
        lines = [[name, *(f"{one.mean(at):.3f}" for at in ks)] for name, one in results.items()]
        print_table(("method", *(f"mean @{k}" for k in study.ks)), lines)
