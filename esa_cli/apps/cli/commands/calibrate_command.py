"""`esa calibrate`: fits compressors on a text and compares what they find again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.uncached_options import UncachedOptions
from esa_cli.errors import UsageError
from esa_cli.system.registry import nearest

if TYPE_CHECKING:
    from esa_cli.apps.cli.model_choice.known_model import KnownModel
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.calibration.calibration_pipeline import CalibrationJob, CalibrationStudy
    from esa_cli.qa.presets.preset import Preset


CHOICES = {"method": ("all", "closed-form", "pca", "learned"), "loss": ("mse", "rank")}


def _file(help_: str, *names: str) -> Any:
    return typer.Option(*names, metavar="FILE", help=help_)


@dataclass(frozen=True)
class TrainingOptions:
    """Fields of `train_maps.TrainingSettings`."""

    epochs: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of learned: passes over the text.")
    ] = 10
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of learned: queries and keys a step.")
    ] = 128
    lr: Annotated[
        float, typer.Option(metavar="RATE", min=0.0, help="Of learned: Adam's learning rate.")
    ] = 5e-4
    loss: Annotated[
        str,
        typer.Option(
            metavar="mse|rank", help="Of learned: mse, the paper's, or rank, the keys' order."
        ),
    ] = "mse"
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31, help="Of learned.")] = 0


@dataclass(frozen=True)
class CalibrationRequest:
    """Options of `esa calibrate` besides those of the model and the training."""

    aim: Annotated[
        str,
        option(
            "--for METHOD",
            "Whose queries to fit: a name from `esa methods`, or preset for the preset as it is.",
        ),
    ] = "esa"
    tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Read at most so many tokens.")
    ] = 50_000
    method: Annotated[
        str,
        typer.Option(metavar="METHOD", help="all, closed-form, pca or learned: what is fitted."),
    ] = "all"
    rank: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Numbers per token and layer, in every layer."),
    ] = None
    k: Annotated[
        list[int] | None, typer.Option(metavar="N", min=1, help="Recall at k. Repeatable.")
    ] = None
    out: Annotated[Path, _file("Where the maps go: safetensors.", "--out", "-o")] = Path(
        "compressor.safetensors"
    )
    recall_out: Annotated[Path | None, _file("Write the JSON object there.")] = None
    plot: Annotated[Path | None, _file("Draw recall per layer as PNG.")] = None
    report: Annotated[Path | None, _file("Draw it as a page of HTML.")] = None
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep what was read there, not beside --out."),
    ] = None
    resume: Annotated[bool, typer.Option(help="Go on where an earlier run stopped.")] = True

    @property
    def ks(self) -> list[int]:
        return self.k or [1024]

    @property
    def folder(self) -> Path:
        """The work folder."""
        return self.work or self.out.with_suffix(".work")

    def check(self, texts: Sequence[str], training: TrainingOptions) -> None:
        """Refuses, before an hour of reading, what would fail after it.

        Raises:
            UsageError: an unknown choice; two options name one place; a file of somebody else's at
                `out`; or no matplotlib for `plot` and `report`.
            UsageError, DocumentError: as `output_paths.check`, `output_paths.spare`,
                `document.source_files`.
        """
        for name, word in {"method": self.method, **asdict(training)}.items():
            if word not in CHOICES.get(name, (word,)):
                raise UsageError(
                    f"--{name} must be one of {', '.join(CHOICES[name])}, got {word!r}",
                    nearest(word, [*CHOICES[name]]),
                )
        from esa_cli.evaluation.report.figures import require_matplotlib

        self._check_files(texts)
        for name, drawn in {"--plot": self.plot, "--report": self.report}.items():
            if drawn is not None:
                require_matplotlib(name)
        if self.out.exists():
            from esa_cli.evaluation.calibration.calibration_pipeline import refuse_foreign

            refuse_foreign(self.out)

    def _check_files(self, texts: Sequence[str]) -> None:
        from esa_cli.documents.document import source_files

        options = {
            "--out": self.out,
            "--recall-out": self.recall_out,
            "--plot": self.plot,
            "--report": self.report,
            "--work": self.folder,
        }
        sources = [*texts, *(path for path, _ in source_files(texts).sources)]
        files.apart(options)
        for name, path in options.items():
            files.spare(name, path, sources)
            if name != "--work":
                files.check(name, path)
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"--work must be a folder, got the file {self.folder}", "name another")
        files.check("--work", self.folder / "parts", makes_folders=True)


PARTS = ("selector", "score", "position")
"""Settings that the use of maps depends on; as `selector.name`."""


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
            for key, value in wanted.items():
                text = value if key == "name" else json.dumps(value)
                words += ["--set", f"{part}.{key}={text}"]
    words += ["--set", "answer.from=rows"] * bool(words)
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


Texts = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Texts to read, or - for standard input.")
]


@options.command
def calibrate(
    texts: Texts,
    given: UncachedOptions,
    wanted: CalibrationRequest,
    training: TrainingOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit compressors on a text and compare what they find again.

    esa calibrate book.txt --out book.safetensors
    """
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
