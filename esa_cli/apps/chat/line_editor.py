"""The line editor of `esa chat`: history, completion and multi-line pastes."""

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

from esa_cli.apps.chat.chat_commands import COMMANDS, ChatLines
from esa_cli.apps.cli.output.terminal import Reporter

HINT = "  Ctrl-D ends; /help lists the commands"


class CommandCompleter(Completer):
    """Completes commands, and file names after /save."""

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


def key_bindings() -> KeyBindings:
    """Enter sends, also a paste of several lines; Alt-Enter begins a new line."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def drop(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings


def history(reporter: Reporter) -> History:
    """The lines of earlier conversations, in a file that only its owner may read."""
    path = Path(platformdirs.user_state_path("esa", appauthor=False)) / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError as error:
        reporter.warn(f"  history is not saved: {path}: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(str(path))


def edit_lines(lines: ChatLines, reporter: Reporter, **devices: Any) -> None:
    """Reads lines until Ctrl-D or /quit.

    Args:
        devices: `input` and `output` of prompt_toolkit in place of the terminal's.
    """
    session: PromptSession[str] = PromptSession(
        "> ",
        history=history(reporter),
        completer=CommandCompleter(),
        complete_while_typing=False,
        key_bindings=key_bindings(),
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
