"""The command `esa log`, which shows what a user has asked and what was answered."""

from __future__ import annotations

import shutil
import textwrap
from typing import Annotated, Literal

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output import terminal
from esa_cli.apps.question_log import find_log_path, list_logged_questions
from esa_cli.errors import UsageError


@options.make_typer_command
def log(
    action: Annotated[Literal["clear"] | None, argument("[clear]", "Remove the whole log.")] = None,
    top: Annotated[int, option("--top N", "The last N questions.", min=1)] = 20,
    as_json: options.Json = False,
) -> None:
    """Show what you asked with `esa ask` and `esa chat`, and what was answered.

    The log is a file that only you can read; ESA_LOG=off keeps none. `esa ask --continue` goes on
    from its last question."""
    path = find_log_path()
    if path is None:
        raise UsageError("ESA_LOG=off keeps no log", "unset ESA_LOG")
    if action == "clear":
        count = len(list_logged_questions(path))
        for end in ("", "-journal", "-wal", "-shm"):  # the log, and files of an interrupted change
            path.with_name(path.name + end).unlink(missing_ok=True)
        print(f"removed {terminal.pluralize(count, 'question')}")
        return
    rows = list_logged_questions(path, top)
    if as_json:
        terminal.print_json({"questions": [row._asdict() for row in rows]})
        return
    width = shutil.get_terminal_size().columns
    for row in rows:
        names = [*row.documents, *["the library"] * row.library]
        heading = f"{row.time[:16].replace('T', ' ')}  {', '.join(names)}"
        print(terminal.make_printable_line(heading))
        answer = f"perhaps: {row.answer}" if row.certainty == "perhaps" else row.answer
        for text in (row.question, answer):
            line = terminal.make_printable_line(" ".join(text.split()))
            print(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="  "))
        print()
