"""Runs a command of the program `esa`, or `python -m esa_cli`, and turns errors into exit codes.

Slow modules are imported inside functions, where Ctrl-C ends the program without a traceback."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import gc
import json
import os
import signal
import sys
from importlib import import_module
from itertools import takewhile
from types import FrameType
from typing import Any

from esa_cli.errors import BUG, INTERRUPTED, PIPE_CLOSED, USAGE, UsageError
from esa_cli.system.files import convert_to_esa_error

GROUPS = {
    "Ask": ("ask", "find", "collect", "outline", "chat", "batch", "log"),
    "Library": ("ingest", "library"),
    "Serve": ("serve", "mcp"),
    "Set up": ("demo", "models", "presets", "plan", "doctor"),
    "Research": ("selftest", "compare", "bench", "methods", "calibrate", "heads", "plugins"),
}
"""The headings of `esa --help` with their commands; NAME is defined in `NAME_command.py`."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
FILES = {"collect": "find", "doctor": "plan", "heads": "calibrate"}
FILES |= dict.fromkeys(("presets", "methods", "plugins"), "models")
FILES |= dict.fromkeys(("compare", "bench"), "selftest")
"""Commands that are defined in the file of another command, with the name of that command."""

SHORT = {"--dtype": "dtype=", "--cache": "cache=", "--plugin": "plugin="}
"""Options that abbreviate a `--set` of a run setting, on every command with `--set`."""
REPLACED = {
    "--answer": "--set answer.form=span",
    "--evidence": "--top N",
    "--length": "--len TOKENS",
    "--passages": "--top N",
    "--stdin": "esa batch QUESTIONS.jsonl",
    "count": "esa collect --count",
    "sync": "esa ingest --words",
    "library push": "esa library copy library PLACE",
    "library export": "esa library copy library FILE.tar",
    "library pull": "esa library copy PLACE library",
    "library import": "esa library copy FILE.tar library",
}
"""Options and commands of version 0.2, with what replaces them since version 0.3."""
SYNONYMS = dict.fromkeys(("search", "grep", "query"), "find")
SYNONYMS |= dict.fromkeys(("summarize", "summarise", "summary", "answer", "question"), "ask")
SYNONYMS |= dict.fromkeys(("index", "add"), "ingest")
SYNONYMS |= {"talk": "chat", "server": "serve", "list": "library", "history": "log"}
"""Words that other programs use, with the commands that do this here."""
ALIKE = (
    ("--top", "--limit", "--samples", "--questions", "--count", "--k", "-k", "-n"),
    ("--report", "--html"),
)
"""Options of one meaning; a command has one of them, which its error message names."""


def main(arguments: list[str] | None = None) -> int:
    """Runs `esa` with arguments, by default those of the command line; returns the exit code."""
    # torch and transformers make a million objects on import, and searching these for garbage takes
    # half a second. `qa.opening` turns the collector on again when the model is loaded.
    gc.disable()
    is_program = arguments is None
    words = sys.argv[1:] if arguments is None else arguments
    if is_program:
        atexit.register(_silence_stderr)
    # A stream that the caller has closed is None; what is written to it is dropped. In this order
    # each stream takes its own number, and no file opened later is written to by mistake.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    was_interrupted = False

    def raise_keyboard_interrupt(signal_number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        was_interrupted = True
        raise KeyboardInterrupt

    has_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if has_handler:
            with contextlib.suppress(ValueError):  # this is not the main thread
                signal.signal(signal.SIGINT, raise_keyboard_interrupt)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        code = _run_esa_command(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _flush_output_streams()
        return PIPE_CLOSED
    except (KeyboardInterrupt, Exception) as error:
        # A library may answer the interruption of an import with an error of its own.
        if isinstance(error, Exception) and not (
            was_interrupted and convert_to_esa_error(error) is None
        ):
            return _print_error_and_get_exit_code(
                error, as_json="--json" in takewhile("--".__ne__, words)
            )
        if is_program:  # the process ends without what libraries do at its end
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _print_error("interrupted")
            os._exit(INTERRUPTED)
        _print_error("interrupted")
        return INTERRUPTED
    finally:
        if signal.getsignal(signal.SIGINT) is raise_keyboard_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.enable()


def _silence_stderr() -> None:
    """Discards what libraries print while the process ends, such as nanobind's reports of leaks."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _run_esa_command(arguments: list[str]) -> int:
    if "_ESA_COMPLETE" in os.environ:  # a shell asks for completions
        make_click_command().main(arguments, prog_name="esa")
    import typer

    arguments = expand_abbreviated_arguments(arguments)
    group = make_click_command(arguments[0] if arguments else None)
    try:
        # Not by the group's `main`, which has its own way with Ctrl-C and closed pipes.
        with group.make_context("esa", arguments) as context:
            group.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return 0


def expand_abbreviated_arguments(arguments: list[str]) -> list[str]:
    """Adds the command `ask` before a document or a question, and replaces short options like
    `--dtype X`. Raises UsageError: a command or option was replaced, or is a synonym of ours."""
    if not arguments or arguments[0].startswith("-"):
        return arguments
    for length in (1, 2):
        _raise_if_command_or_option_was_replaced(" ".join(arguments[:length]))
    name, *rest = arguments
    is_document = os.path.lexists(name) or (len(rest) == 1 and "." in name)
    if name not in COMMANDS and (is_document or (rest and " " in name)):
        name, rest = "ask", arguments
    elif name in SYNONYMS:
        hint = f"use `esa {SYNONYMS[name]}`, see `esa {SYNONYMS[name]} --help`"
        raise UsageError(f"no such command '{name}'", hint)
    end = rest.index("--") if "--" in rest else len(rest)
    words = list[str]()
    for word in rest[:end]:
        option, _, value = word.partition("=")
        if len(words) > 1 and words[-2] == "--set" and words[-1].endswith("="):
            words[-1] += word
        elif option in SHORT and (option, name) != ("--plugin", "methods"):
            words += ["--set", SHORT[option] + value]
        else:
            if option.startswith("-"):  # any other word may be the question
                _raise_if_command_or_option_was_replaced(option)
            words.append(word)
    return [name, *words, *rest[end:]]


def _raise_if_command_or_option_was_replaced(name: str) -> None:
    if name in REPLACED:
        raise UsageError(f"{name} was replaced in version 0.3 of esa", f"use {REPLACED[name]}")


def make_click_command(only_subcommand: str | None = None) -> Any:
    """Makes the click command `esa` with all subcommands or, which is faster, with only one."""
    import typer
    import typer.main

    from esa_cli.apps.cli.options import command_help

    app = typer.Typer(
        name="esa",
        cls=command_help.GroupedHelpCommand,
        help="Ask questions about documents many times longer than a language model's context.",
        epilog='`esa FILE "QUESTION"` is short for `esa ask FILE "QUESTION"`.',
        invoke_without_command=True,
        rich_markup_mode=None,  # plain help reads the same in a pipe, and comes twice as fast
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(command_help.show_version_or_help)
    for panel, names in GROUPS.items():
        for name in names:
            if only_subcommand in COMMANDS and name != only_subcommand:
                continue
            file = FILES.get(name, name)
            verb = vars(import_module(f"esa_cli.apps.cli.commands.{file}_command"))[name]
            if isinstance(verb, typer.Typer):
                for information in verb.registered_commands:
                    information.cls = command_help.UntypedHelpCommand
                app.add_typer(verb, name=name, rich_help_panel=panel)
            else:
                app.command(name, cls=command_help.UntypedHelpCommand, rich_help_panel=panel)(verb)
    group: Any = typer.main.get_command(app)
    group.commands = {n: group.commands[n] for n in COMMANDS if n in group.commands}
    return group


def _print_error_and_get_exit_code(error: Exception, as_json: bool) -> int:
    """Prints an error's message and hint, `as_json` also as JSON, and returns its exit code."""
    if os.environ.get("ESA_DEBUG"):
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
    known = convert_to_esa_error(error)
    if known is not None:
        message, hint, code = known.message, known.hint, known.exit_code
    elif hasattr(error, "format_message"):  # an option or argument that the parser refused
        text, context = str(error.format_message()).rstrip("."), getattr(error, "ctx", None)
        name = context.command_path if context else "esa"
        message, hint, code = text[:1].lower() + text[1:], f"see `{name} --help`", USAGE
        if hasattr(error, "possibilities") and hasattr(error, "option_name"):
            message = f"no such option: {error.option_name}"
            hint = suggest_option(error.option_name, context) + hint
    else:
        reason = (str(error).splitlines() or [""])[0]
        message, code = f"a bug: {type(error).__name__}: {reason}", BUG
        hint = "set ESA_DEBUG=1 to see the traceback, and please report the bug"
    _print_error(message, hint)
    if as_json:
        with contextlib.suppress(OSError, ValueError):
            facts = {"error": message, "hint": hint, "exit_code": code}
            print(json.dumps(facts), file=sys.stderr, flush=True)
    return code


def suggest_option(unknown_option: str, context: Any) -> str:
    """Returns the beginning of a hint, which names the options of a command that have the meaning
    or a similar spelling of an unknown option; or an empty text."""
    known = [name for parameter in context.command.get_params(context) for name in parameter.opts]
    alike = [name for names in ALIKE if unknown_option in names for name in names]
    bare = {name.lstrip("-"): name for name in known if name.startswith("--")}
    close = difflib.get_close_matches(unknown_option.lstrip("-"), bare)
    names = [name for name in alike if name in known] or [bare[name] for name in close]
    return f"did you mean {' or '.join(names)}? " if names else ""


def _print_error(message: str, hint: str = "") -> None:
    """Prints an error's message and its hint, each as one line without control characters."""
    _flush_output_streams()
    with contextlib.suppress(OSError, ValueError):
        for begin, text in (("esa: ", message), ("     ", hint)):
            plain = "".join(letter if letter.isprintable() else " " for letter in text).strip()
            if plain:
                print(begin + plain, file=sys.stderr)
    _flush_output_streams()


def _flush_output_streams() -> None:
    """Flushes standard output and standard error. A stream that cannot be flushed is redirected to
    the null device, because Python would report the failure again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(ValueError):  # the stream is closed
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
