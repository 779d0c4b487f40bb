"""`esa demo`: the tool's main job, on screen, with a document that the package generates."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions

MOST = 9
Count = Annotated[
    int,
    typer.Option(
        "--questions", "-n", metavar="N", min=1, max=MOST, help="Ask so many of the questions."
    ),
]
Kept = Annotated[
    bool, typer.Option("--keep", help="Keep the chronicle in the library, to ask it more.")
]


@options.command
def demo(
    count: Count = MOST,
    keep: Kept = False,
    model: ModelOptions = options.DEFAULTS,
    quiet: options.Quiet = False,
) -> None:
    """Ask a generated document questions, and check the answers.

    Nothing is left behind. Works in any folder. The first use fetches the model.
    """
    from esa_cli.apps.cli.demo_run import DemoRun
    from esa_cli.apps.cli.model_choice.known_model import answerable
    from esa_cli.apps.cli.model_choice.open_esa import opened
    from esa_cli.apps.cli.output.terminal import Reporter

    started, reporter = time.perf_counter(), Reporter(quiet)
    run = DemoRun(count, keep, reporter, started)
    try:
        chosen = model.load_preset()
        run.introduce(chosen)
        chosen = answerable(chosen, reporter)
        with opened(chosen, model, reporter, keep=keep) as esa:
            run.ask_all(esa, run.read(esa))
    except KeyboardInterrupt:
        reporter.settle()
        run.stopped()
        raise
    finally:
        reporter.settle()
