"""`esa calibrate`: fits compressors on a text and compares what they find again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli import options
from esa_cli.apps.cli.options import ModelOptions

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.calibrate_output import CalibrationOutcome
    from esa_cli.apps.cli.commands.calibrate_request import CalibrationRequest
    from esa_cli.apps.cli.preflight import KnownModel
    from esa_cli.apps.cli.terminal import Reporter
    from esa_cli.evaluation.calibration.calibration_pipeline import CalibrationJob

Texts = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Texts to read, or - for standard input.")
]
For = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="METHOD",
        help="Whose queries to fit: a name from `esa methods`, or preset for the preset as it is.",
    ),
]
Tokens = Annotated[int, typer.Option("--tokens", min=1, help="Read at most so many tokens.")]
Method = Annotated[
    str, typer.Option("--method", help="all, closed-form, pca or learned: what is fitted.")
]
Rank = Annotated[
    int | None, typer.Option("--rank", min=1, help="Numbers per token and layer, in every layer.")
]
K = Annotated[list[int] | None, typer.Option("--k", min=1, help="Recall at k. Repeatable.")]
Epochs = Annotated[int, typer.Option("--epochs", min=0, help="Of learned: passes over the text.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Of learned: queries and keys a step.")]
Lr = Annotated[float, typer.Option("--lr", min=0.0, help="Of learned: Adam's learning rate.")]
Loss = Annotated[
    str, typer.Option("--loss", help="Of learned: mse, the paper's, or rank, the keys' order.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="Of learned.")]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="Where the maps go: safetensors.")
]
RecallOut = Annotated[
    Path | None, typer.Option("--recall-out", metavar="FILE", help="Write the JSON object there.")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw recall per layer as PNG.")
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Draw it as a page of HTML.")
]
Work = Annotated[
    Path | None,
    typer.Option("--work", metavar="DIR", help="Keep what was read there, not beside --out."),
]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Go on where an earlier run stopped.")
]
DEFAULT_OUT = Path("compressor.safetensors")


@options.command
def calibrate(
    texts: Texts,
    model: ModelOptions = options.DEFAULTS,
    for_: For = "esa",
    tokens: Tokens = 50_000,
    method: Method = "all",
    rank: Rank = None,
    k: K = None,
    epochs: Epochs = 10,
    batch: Batch = 128,
    lr: Lr = 5e-4,
    loss: Loss = "mse",
    seed: Seed = 0,
    out: Out = DEFAULT_OUT,
    recall_out: RecallOut = None,
    plot: Plot = None,
    report: Report = None,
    work: Work = None,
    resume: Resume = True,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit compressors on a text and compare what they find again.

    esa calibrate book.txt --out book.safetensors
    """
    from esa_cli.apps.cli.commands.calibrate_request import CalibrationRequest

    learned = {"epochs": epochs, "batch": batch, "lr": lr, "loss": loss, "seed": seed}
    files = (out, recall_out, plot, report, work or out.with_suffix(".work"))
    ks = k or [1024]
    wanted = CalibrationRequest(for_, tokens, rank, ks, method, learned, *files, resume)
    options.load_plugins(model.plugins)  # a reader of theirs says which files of a folder are read
    wanted.check(texts)
    _run(texts, model, wanted, as_json, quiet)


def _run(
    texts: Sequence[str],
    model: ModelOptions,
    wanted: CalibrationRequest,
    as_json: bool,
    quiet: bool,
) -> None:
    from esa_cli.apps.cli.commands.calibrate_output import show
    from esa_cli.apps.cli.terminal import Reporter, print_json

    reporter = Reporter(quiet)
    try:
        done = _steps(texts, model, wanted, reporter)
    except KeyboardInterrupt:
        reporter.settle()
        if wanted.work.exists():
            reporter.note(f"esa: {wanted.work} keeps what was done; the same command goes on")
        raise
    finally:
        reporter.settle()
    if as_json:
        print_json(done.result)
    else:
        show(done.study)
        reporter.note(f"{done.study.best} is in {wanted.out}; use it with", dim=False)
        reporter.note(f"  {done.options}", dim=False)
        reporter.note(f"{wanted.work} serves further runs on this text, and may be deleted")


def _steps(
    texts: Sequence[str], model: ModelOptions, wanted: CalibrationRequest, reporter: Reporter
) -> CalibrationOutcome:
    """Reads, fits, measures and writes."""
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.commands.calibrate_output import (
        CalibrationOutcome,
        options_for,
        outcome,
        tell_limits,
    )
    from esa_cli.apps.cli.preflight import prepare
    from esa_cli.documents.document import join
    from esa_cli.evaluation.calibration.calibration_pipeline import aimed, open_job
    from esa_cli.evaluation.calibration.fit_maps import FitSettings
    from esa_cli.models.quiet_transformers import quiet_transformers

    given = model.load_preset()
    text = join(inputs.read(texts, reporter).documents)
    ready = prepare(given, model, reporter)
    chosen = aimed(wanted.aim, given)
    loaded = ready.model.load(reporter)
    job = open_job(loaded, chosen, text, wanted.tokens, wanted.work, wanted.resume)
    tell_limits(wanted, job, reporter)
    with quiet_transformers():
        _collect(job, ready.model, reporter)

    def progress(layers: int, of: int) -> None:
        reporter.stage("fitting and measuring", layers, of)

    fitting = FitSettings.of(wanted.method, wanted.training)
    done = job.study(wanted.rank, fitting, wanted.ks, progress)
    job.save(wanted.out, done, fitting)
    use = options_for(given, chosen, wanted.out)
    return CalibrationOutcome(done, outcome(wanted, chosen, done), use)


def _collect(job: CalibrationJob, model: KnownModel, reporter: Reporter) -> None:
    from esa_cli.apps.cli.progress_display import prefill_bar
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.resolved import Resolved

    total, read = len(job.ids), job.shards.tokens
    if read:
        reporter.note(f"esa: {read:,} of {total:,} tokens were read before")
    if read >= total:
        return job.collect()
    planner = Planner(
        Resolved(job.preset, job.method),
        model.config,
        dtype=job.loaded.dtype,
        device=model.place.device,
    )
    planner.check(total)
    with prefill_bar(reporter, total, planner.plan(total).seconds) as progress:
        return job.collect(progress)
