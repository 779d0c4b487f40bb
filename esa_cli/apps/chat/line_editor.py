"""The terminal of `esa chat`: a line editor with history, completion and multi-line pastes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from esa_cli.apps.chat.chat_commands import COMMANDS, Lines
from esa_cli.apps.cli.terminal import Reporter

HINT = "  Ctrl-D ends; /help lists the commands"


class Commands(Completer):
    """Commands, and the names of files behind /save."""

    def __init__(self) -> None:
        self.paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/save "):
            name = text.removeprefix("/save ").lstrip()
            yield from self.paths.get_completions(Document(name, len(name)), complete_event)
        elif text.startswith("/") and " " not in text:
            for command, about in COMMANDS.items():
                if command.startswith(text):
                    yield Completion(command, -len(text), display_meta=about)


def keys() -> KeyBindings:
    """Enter sends, also a paste of several lines; Alt-Enter begins a new line."""
    found = KeyBindings()

    @found.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @found.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @found.add("c-c")
    def drop(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return found


def history(reporter: Reporter) -> History:
    """The lines of earlier conversations; readable by nobody else."""
    path = Path(platformdirs.user_state_path("esa", appauthor=False)) / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError as error:
        reporter.warn(f"  questions are not remembered: {path}: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(str(path))


def talk(lines: Lines, reporter: Reporter, **devices: Any) -> None:
    """Takes lines until Ctrl-D or /quit.

    Args:
        devices: `input` and `output` of prompt_toolkit, where they are not the terminal's.
    """
    session: PromptSession[str] = PromptSession(
        "> ",
        history=history(reporter),
        completer=Commands(),
        complete_while_typing=False,
        key_bindings=keys(),
        multiline=True,
        prompt_continuation="  ",
        **devices,
    )
    while True:
        try:
            line = session.prompt()
        except KeyboardInterrupt:
            reporter.note(HINT)
        except EOFError:
            return
        else:
            if not lines.take(line):
                return
