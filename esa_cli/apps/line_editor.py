"""The line editor of `esa chat`: history, completion and multi-line pastes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.conversation import COMMANDS, ChatLines

HINT = "  Ctrl-D ends; /help lists the commands"


def key_bindings() -> KeyBindings:
    """Alt-Enter begins a new line; Enter sends, also a paste of several lines."""
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

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
    """Reads lines until Ctrl-D or /quit; Ctrl-C drops a line.

    Args:
        devices: `input` and `output` of prompt_toolkit in place of the terminal's.
    """
    session: PromptSession[str] = PromptSession(
        "> ",
        history=history(reporter),
        completer=WordCompleter(list(COMMANDS), meta_dict=COMMANDS, sentence=True),
        complete_while_typing=False,
        key_bindings=key_bindings(),
        **devices,
    )
    while True:
        try:
            if not lines.take(session.prompt()):
                return
        except KeyboardInterrupt:
            reporter.note(HINT)
        except EOFError:
            return
