"""`esa bench`: public long-context benchmarks, from their official files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.engine_options import ShardOptions
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.output_paths import goes_on, run_facts, writing
from esa_cli.apps.cli.output.terminal import one_line, print_json, print_table, room
from esa_cli.errors import EsaError, LengthError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.bench import Benchmark, BenchRecord
    from esa_cli.evaluation.bench.bench_runner import TaskSelection
    from esa_cli.evaluation.report.bench_table import MeanScores
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.opening import KnownModel, ModelPlace
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.system.jsonl import Journal
    from esa_cli.system.progress import Progress


@dataclass(frozen=True)
class BenchRequest:
    """Options of `esa bench`, beside the records."""

    name: str
    preset: Preset
    methods: tuple[str, ...]
    model: ModelOptions
    minutes: float | None
    out: Path | None
    markdown: Path | None
    as_json: bool
    joined: tuple[Path, ...] = ()


def header(request: BenchRequest, length: int, place: ModelPlace) -> dict[str, Any]:
    """The first line of its file: what rows must have in common, and what made them.

    Args:
        length: tokens that position encodings are stretched to.
    """
    method = request.preset.model_dump(exclude={"name", "description", "prompt", "generation"})
    return {
        **run_facts(),
        "benchmark": request.name,
        "model": request.preset.model,
        "preset": request.preset.name,
        "settings": {
            "preset": method,
            "dtype": place.packing or str(place.dtype),
            "length": length,
        },
    }


def check_files(out: Path | None, markdown: Path | None, data: Path) -> None:
    """Raises UsageError, DocumentError: a file cannot be written, or would take another's place."""
    from esa_cli.apps.cli.options import output_paths as files

    files.check("--markdown", markdown)
    files.check("--out", out)
    files.apart({"--out": out, "--markdown": markdown})
    # The journal continues results only; a table of an earlier run may lie among the data, too.
    if markdown is not None and markdown.is_file() and not is_table(markdown):
        below = (str(path) for path in data.rglob("*"))
        files.spare("--markdown", markdown, below, "one of the files in --data")


Table = tuple[list[str], list[list[str]]]
"""Headers and rows."""
BESIDE = 2
"""The columns before the first method's."""
GAP = 2


class NoRoom(NamedTuple):
    """A record that a method's window has no room for, and why."""

    method: str
    task: str
    id: str
    why: str


def show(
    order: TaskSelection,
    journal: Journal,
    base: Preset,
    left_out: Sequence[NoRoom],
    *,
    complete: bool,
    as_json: bool,
    markdown: Path | None,
) -> None:
    """Prints first, so that a file that cannot be written costs nothing that was measured.

    Args:
        base: the preset that methods are laid over. left_out: is told below the table.

    Raises:
        DocumentError, ResourceError: the file cannot be written.
    """
    from esa_cli.evaluation.bench.bench_runner import titles
    from esa_cli.evaluation.report import bench_table as table

    found = table.scores(journal.rows)
    stretched = titles(base, found, journal.header["settings"]["length"])
    counts = Counter((one.method, one.task) for one in left_out).items()
    notes = [
        *order.notes(),
        *(f"{method}: {task}: {n:,} left out, for want of room" for (method, task), n in counts),
    ]
    if as_json:
        scores = table.as_dict(order.benchmark, found)
        result = {
            "complete": complete, "scores": scores, "notes": order.notes(),
            "left_out": [one._asdict() for one in left_out],
        }  # fmt: skip
        print_json({**journal.header, **result, "rows": journal.rows})
    else:
        for number, piece in enumerate(_pieces(order.benchmark, found, stretched, room())):
            if number:
                print()
            print_table(*piece)
        for note in notes:
            print(one_line(f"note: {note}"))
    if markdown is not None:
        below = "".join(f"\n{note}\n" for note in notes)
        text = table.markdown(*table.table(order.benchmark, found, stretched))
        with writing(markdown):
            markdown.write_text(text + below, encoding="utf-8")


def is_table(path: Path) -> bool:
    """True if the file is a table that `show` wrote."""
    with path.open("rb") as file:
        return file.readline().startswith(b"| task | records |")


def _pieces(
    benchmark: Benchmark, found: MeanScores, titles: Mapping[str, str], width: int
) -> list[Table]:
    """The table, divided by methods where it would be wider than `width`; at least one a piece."""
    from esa_cli.evaluation.report.bench_table import table

    pieces: list[Table] = []
    left = list(found)
    while left or not pieces:
        some = (
            table(benchmark, {name: found[name] for name in left[:taken]}, titles)
            for taken in range(max(len(left), 1), 0, -1)
        )
        piece = next(one for one in some if _width(one) <= width or len(one[0]) <= BESIDE + 1)
        pieces.append(piece)
        left = left[len(piece[0]) - BESIDE :]
    return pieces


def _width(piece: Table) -> int:
    """Columns that a table takes, with two between its columns."""
    from rich.cells import cell_len

    headers, lines = piece
    widths = (max(map(cell_len, column)) for column in zip(headers, *lines, strict=True))
    return sum(width + GAP for width in widths) - GAP


def tell_plain(journal: Journal, made: dict[str, Preset], reporter: Reporter) -> None:
    """Says which scores are not those of a selection: short prompts are attended to plainly."""
    from esa_cli.qa.presets.resolved_preset import FROM_TEXT, resolve

    plain = {
        name: resolve(preset).method.window.dense_below
        for name, preset in made.items()
        if name != FROM_TEXT
    }
    asked = [row for row in journal.rows if row["method"] in plain]
    short = sum(row["tokens"] <= plain[row["method"]] for row in asked)
    if short:
        most = f"{max(plain.values()):,} tokens (window.dense)"
        reporter.note(f"esa: {short} of {len(asked)} prompts have at most {most}: plain attention")


@dataclass(frozen=True)
class BenchRun:
    """Asks what has no row in the journal, method by method.

    Args:
        made: presets by method. places: of each record, by task and id. until: by
            `time.monotonic`. left_out: gets what has no room.
    """

    request: BenchRequest
    order: TaskSelection
    made: dict[str, Preset]
    known: KnownModel
    journal: Journal
    reporter: Reporter
    places: Mapping[tuple[str, str], int]
    until: float | None
    left_out: list[NoRoom]

    def run(self) -> bool:
        """False when the time was up before the end."""
        from esa_cli.evaluation.bench.bench_runner import lacks_answers

        settings = {name: self.order.settings(name, one) for name, one in self.made.items()}
        records = chain.from_iterable(self.order.shard_documents())
        if not lacks_answers(records, settings, self.journal):
            return True
        return self._here(settings)

    def _here(self, settings: Mapping[str, Any]) -> bool:
        from esa_cli.models.loading.quiet_transformers import quiet_transformers
        from esa_cli.qa.answering.session import Session

        with quiet_transformers():
            loaded = self.known.load(self.reporter)
        self.reporter.settle()
        host = loaded.model, loaded.tokenizer, self.request.preset, loaded.cache
        with quiet_transformers(), Session(*host) as session:
            return all(self._ask(session, method, settings[method]) for method in self.made)

    def _ask(self, session: Session, method: str, settings: Any) -> bool:
        """Asks all records by one method."""
        from esa_cli.apps.cli.output import progress_display as progress
        from esa_cli.evaluation.bench.bench_runner import run as ask_all
        from esa_cli.evaluation.bench.session_asker import record_asker

        def reading(record: BenchRecord) -> Progress:
            place = f"{self.places[record.task, record.id]} of {len(self.places)}"
            title = f"{method}: {record.task}, record {place}"
            return progress.token_progress(self.reporter, title)

        def no_room(record: BenchRecord, error: LengthError) -> None:
            self._leave_out(method, record, error.message)

        return ask_all(
            chain.from_iterable(self.order.shard_documents()),
            record_asker(session, method, self.made[method], reading),
            self.order.benchmark.score,
            self.journal,
            method=method,
            settings=settings,
            until=self.until,
            on_left_out=no_room,
        )

    def _leave_out(self, method: str, record: BenchRecord, why: str) -> None:

        self.left_out.append(NoRoom(method, record.task, record.id, why))
        self.reporter.settle()
        self.reporter.warn(f"esa: {method}: {record.task}, {record.id} left out: {why}")


Name = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK", help="longbench, infinitebench, ruler, counting-stars or needlebench."
    ),
]
Data = Annotated[Path | None, option("--data DIR", "The folder with the official files.")]
Download = Annotated[bool, option("--download", "Fetch the files into --data first, from the hub.")]
Tasks = Annotated[
    str | None, option("--tasks NAME,...", "Tasks with commas; else those whose files are there.")
]
Limit = Annotated[int | None, option("--limit N", "Records of each task.", min=1)]
Markdown = Annotated[Path | None, option("--markdown FILE", "Write the table, as table.md.")]


@options.command
def bench(
    name: Name,
    data: Data = None,
    download: Download = False,
    tasks: Tasks = None,
    methods: options.MethodsOrDefault = None,
    limit: Limit = None,
    time_limit: options.TimeLimit = None,
    out: options.Out = None,
    markdown: Markdown = None,
    *,
    shards: ShardOptions,
    model: ModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a public benchmark, and print a table like the paper's.

    esa bench longbench --data LongBench/data --methods preset,infllm --out longbench.jsonl
    """
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.errors import UsageError
    from esa_cli.evaluation.bench import find

    benchmark, reporter = find(name), Reporter(quiet)
    if data is None:
        hint = f"official files: {benchmark.SOURCE}"
        raise UsageError(f"{name} needs its files: --data DIR", hint)
    check_files(out, markdown, data)
    shard = shards.check(out)
    chosen = model.method_preset()
    names = options.compared_methods(methods, chosen)
    request = BenchRequest(
        name, chosen, names, model, time_limit, out, markdown, as_json,
        tuple(shards.join or ()),
    )  # fmt: skip
    try:
        if download:
            _download(name, benchmark, data, reporter)
        from esa_cli.evaluation.bench import bench_runner as order

        asked = None if tasks is None else options.names(tasks)
        found = order.tasks(benchmark, data, asked)
        work = order.TaskSelection(benchmark, data, found, limit, shard)
        _go(request, work, reporter, told=asked is None)
    finally:
        reporter.settle()


def _download(name: str, benchmark: Benchmark, folder: Path, reporter: Reporter) -> None:
    from esa_cli.evaluation.bench.data_files import dataset, download

    found = dataset(name, benchmark.SOURCE)
    reporter.note(f"esa: fetching the dataset {found.repo} (licence: {found.licence})", dim=False)
    download(found, folder, bars=not reporter.quiet)


def _go(request: BenchRequest, order: TaskSelection, reporter: Reporter, told: bool) -> None:
    """Asks the records and shows the scores; what was asked before Ctrl-C is shown as well."""
    from esa_cli.evaluation.bench.bench_runner import presets
    from esa_cli.qa.opening import inspect_model

    until = None if request.minutes is None else time.monotonic() + 60 * request.minutes
    if told and (left := ", ".join(order.left_out())):
        reporter.note(f"esa: left out, their files are not in {order.folder}: {left}")
    survey = order.survey()
    reporter.stage("import", 0, None)
    made = presets(request.preset, request.methods, survey.length)
    place = request.model.place
    journal = _journal(request, order, made, header(request, survey.length, place), reporter)
    known = inspect_model(request.preset, place, reporter)
    texts = (record.before + record.document for record in order.records())
    known.check(made, known.count_tokens(max(texts, key=len, default="")))
    left_out: list[NoRoom] = []
    print_scores = partial(
        show, order, journal, request.preset, left_out,
        as_json=request.as_json, markdown=request.markdown,
    )  # fmt: skip
    try:
        with journal:
            complete = BenchRun(
                request, order, made, known, journal, reporter, survey.places, until, left_out
            ).run()
    except (KeyboardInterrupt, EsaError):
        reporter.settle()
        if journal.rows:
            print_scores(complete=False)
            reporter.note(f"esa: stopped after {len(journal.rows)} records{goes_on(request.out)}")
        raise
    reporter.settle()
    if not complete:
        reporter.note(f"esa: the time limit was reached{goes_on(request.out)}")
    tell_plain(journal, made, reporter)
    print_scores(complete=complete)


def _journal(
    request: BenchRequest,
    order: TaskSelection,
    made: Mapping[str, Preset],
    header: dict[str, Any],
    reporter: Reporter,
) -> Journal:
    """Rows of an earlier run, checked to be of these data.

    Raises:
        UsageError, DocumentError: it is not, or cannot be read.
    """
    from esa_cli.evaluation.bench import bench_runner as runner
    from esa_cli.system.jsonl import Journal

    journal = Journal(
        request.out, header, same=("benchmark", "settings"), key=runner.KEY, wrong=runner.wrong
    )
    journal.join(request.joined)
    if journal.rows:
        for record in order.records():
            for method, preset in made.items():
                runner.has_answer(record, method, order.settings(method, preset), journal)
        reporter.note(f"esa: {len(journal.rows)} records of an earlier run are kept")
    return journal
