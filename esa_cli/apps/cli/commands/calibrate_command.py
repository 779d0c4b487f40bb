"""`esa calibrate`: fits compressors on a text and compares what they find again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.commands.calibrate_request import CalibrationRequest, TrainingOptions
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.uncached_options import UNCACHED, UncachedOptions

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.calibrate_output import CalibrationOutcome
    from esa_cli.apps.cli.model_choice.known_model import KnownModel
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.calibration.calibration_pipeline import CalibrationJob

Texts = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Texts to read, or - for standard input.")
]
DEFAULT_REQUEST, DEFAULT_TRAINING = CalibrationRequest(), TrainingOptions()


@options.command
def calibrate(
    texts: Texts,
    given: UncachedOptions = UNCACHED,
    wanted: CalibrationRequest = DEFAULT_REQUEST,
    training: TrainingOptions = DEFAULT_TRAINING,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit compressors on a text and compare what they find again.

    esa calibrate book.txt --out book.safetensors
    """
    from esa_cli.apps.cli.commands.calibrate_output import show
    from esa_cli.apps.cli.output.terminal import Reporter, print_json

    model = given.model_options()
    options.load_plugins(model.plugins)  # a reader of theirs says which files of a folder are read
    wanted.check(texts, training)
    reporter = Reporter(quiet)
    try:
        done = _steps(texts, model, wanted, training, reporter)
    except KeyboardInterrupt:
        reporter.settle()
        if wanted.folder.exists():
            reporter.note(f"esa: {wanted.folder} keeps what was done; the same command goes on")
        raise
    finally:
        reporter.settle()
    if as_json:
        print_json(done.result)
    else:
        show(done.study)
        reporter.note(f"{done.study.best} is in {wanted.out}; use it with", dim=False)
        reporter.note(f"  {done.options}", dim=False)
        reporter.note(
            f"{wanted.folder} can be used by further runs on this text, and may be deleted"
        )


def _steps(
    texts: Sequence[str],
    model: ModelOptions,
    wanted: CalibrationRequest,
    training: TrainingOptions,
    reporter: Reporter,
) -> CalibrationOutcome:
    """Prefills, fits, measures and writes."""
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.commands.calibrate_output import (
        CalibrationOutcome,
        options_for,
        outcome,
        tell_limits,
    )
    from esa_cli.apps.cli.model_choice.preflight import prepare
    from esa_cli.documents.document import join
    from esa_cli.evaluation.calibration.calibration_pipeline import open_job, target_preset
    from esa_cli.evaluation.calibration.train_maps import FitSettings
    from esa_cli.models.loading.quiet_transformers import quiet_transformers

    given = model.load_preset()
    text = join(inputs.read(texts, reporter).documents)
    ready = prepare(given, model, reporter, attaches=True)
    chosen = target_preset(wanted.aim, given)
    loaded = ready.model.load(reporter)
    job = open_job(loaded, chosen, text, wanted.tokens, wanted.folder, wanted.resume)
    tell_limits(wanted, job, reporter)
    with quiet_transformers():
        _collect(job, ready.model, reporter)

    def progress(layers: int, of: int) -> None:
        reporter.stage("fitting and measuring", layers, of)

    fitting = FitSettings.of(wanted.method, asdict(training))
    done = job.study(wanted.rank, fitting, wanted.ks, progress)
    job.save(wanted.out, done, fitting)
    use = options_for(given, chosen, wanted.out)
    return CalibrationOutcome(done, outcome(wanted, asdict(training), chosen, done), use)


def _collect(job: CalibrationJob, model: KnownModel, reporter: Reporter) -> None:
    from esa_cli.apps.cli.output.progress_display import prefill_bar
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset

    total, read = len(job.ids), job.shards.tokens
    if read:
        reporter.note(f"esa: {read:,} of {total:,} tokens were read before")
    if read >= total:
        return job.collect()
    planner = Planner(
        ResolvedPreset(job.preset, job.method),
        model.config,
        dtype=job.loaded.dtype,
        device=model.place.device,
        packing=model.place.packing,
    )
    planner.check(total)
    with prefill_bar(reporter, total, planner.plan(total).seconds) as progress:
        return job.collect(progress)
