"""The root command, and the commands below it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.main

from esa_cli.apps.cli.commands import (
    ask_command as ask,
)
from esa_cli.apps.cli.commands import (
    batch_command as batch,
)
from esa_cli.apps.cli.commands import (
    bench_command as bench,
)
from esa_cli.apps.cli.commands import (
    calibrate_command as calibrate,
)
from esa_cli.apps.cli.commands import (
    chat_command as chat,
)
from esa_cli.apps.cli.commands import (
    compare_command as compare,
)
from esa_cli.apps.cli.commands import (
    doctor_command as doctor,
)
from esa_cli.apps.cli.commands import (
    heads_command as heads,
)
from esa_cli.apps.cli.commands import (
    ingest_command as ingest,
)
from esa_cli.apps.cli.commands import (
    library_command as library,
)
from esa_cli.apps.cli.commands import (
    methods_command as methods,
)
from esa_cli.apps.cli.commands import (
    models_command as models,
)
from esa_cli.apps.cli.commands import (
    plan_command as plan,
)
from esa_cli.apps.cli.commands import (
    plugins_command as plugins,
)
from esa_cli.apps.cli.commands import (
    presets_command as presets,
)
from esa_cli.apps.cli.commands import (
    selftest_command as selftest,
)
from esa_cli.apps.cli.commands import (
    serve_command as serve,
)
from esa_cli.version import __version__

app = typer.Typer(
    name="esa",
    help="Ask questions about documents many times longer than a language model's context.",
    invoke_without_command=True,
    rich_markup_mode=None,  # plain help reads the same in a pipe, and comes twice as fast
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ask")(ask.ask)
app.command("ingest")(ingest.ingest)
app.add_typer(library.app, name="library")
app.command("chat")(chat.chat)
app.command("batch")(batch.batch)
app.command("serve")(serve.serve)
app.command("plan")(plan.plan)
app.command("compare")(compare.compare)
app.command("selftest")(selftest.selftest)
app.command("bench")(bench.bench)
app.command("methods")(methods.methods)
app.command("calibrate")(calibrate.calibrate)
app.command("heads")(heads.heads)
app.add_typer(presets.app, name="presets")
app.add_typer(plugins.app, name="plugins")
app.add_typer(models.app, name="models")
app.command("doctor")(doctor.doctor)


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
