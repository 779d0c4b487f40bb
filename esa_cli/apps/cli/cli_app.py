"""The root command, and the commands below it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.main

from esa_cli.apps.cli.commands import (
    ask_command,
    batch_command,
    bench_command,
    calibrate_command,
    chat_command,
    compare_command,
    doctor_command,
    heads_command,
    ingest_command,
    library_command,
    methods_command,
    models_command,
    plan_command,
    plugins_command,
    presets_command,
    selftest_command,
    serve_command,
    sync_command,
    train_finder_command,
    train_reader_command,
)
from esa_cli.version import __version__

app = typer.Typer(
    name="esa",
    help="Ask questions about documents many times longer than a language model's context.",
    invoke_without_command=True,
    rich_markup_mode=None,  # plain help reads the same in a pipe, and comes twice as fast
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ask")(ask_command.ask)
app.command("ingest")(ingest_command.ingest)
app.command("sync")(sync_command.sync)
app.add_typer(library_command.app, name="library")
app.command("chat")(chat_command.chat)
app.command("batch")(batch_command.batch)
app.command("serve")(serve_command.serve)
app.command("plan")(plan_command.plan)
app.command("compare")(compare_command.compare)
app.command("selftest")(selftest_command.selftest)
app.command("bench")(bench_command.bench)
app.command("methods")(methods_command.methods)
app.command("calibrate")(calibrate_command.calibrate)
app.command("train-reader")(train_reader_command.train_reader)
app.command("train-finder")(train_finder_command.train_finder)
app.command("heads")(heads_command.heads)
app.add_typer(presets_command.app, name="presets")
app.add_typer(plugins_command.app, name="plugins")
app.add_typer(models_command.app, name="models")
app.command("doctor")(doctor_command.doctor)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        print(f"esa {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def command() -> Any:
    """The click command of the whole program."""
    return typer.main.get_command(app)
