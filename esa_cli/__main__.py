"""`esa` and `python -m esa_cli`: runs the command line and turns errors into exit codes.

Nothing is imported up here that takes time, so that Ctrl-C ends the command quietly from the
first moment on.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from types import FrameType
from typing import TextIO

from esa_cli.errors import BUG, INTERRUPTED, PIPE_CLOSED, USAGE
from esa_cli.system.files import as_esa_error


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; see docs/cli.md.

    Args:
        arguments: the words after `esa`; None takes the command line's.
    """
    # torch and transformers make a million objects on import, none of them garbage: looking for any
    # takes half a second. `qa.opening` turns it on again when the model is there.
    gc.disable()
    if arguments is None:
        atexit.register(_end_quietly)  # first, so that it is called last
    # A stream that was closed by the caller is None; what is written to it goes nowhere. In this
    # order each takes its own number, and no file opened later is written to by mistake.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    interrupts = _Interrupts(leave=arguments is None)
    try:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        with interrupts:
            code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _interrupted(leave=arguments is None)
        return INTERRUPTED
    except BrokenPipeError:
        _settle(sys.stdout)
        _settle(sys.stderr)
        return PIPE_CLOSED
    except Exception as error:
        if interrupts.seen and as_esa_error(error) is None:
            _interrupted(leave=arguments is None)
            return INTERRUPTED
        return _report(error)
    finally:
        gc.enable()


def _end_quietly() -> None:
    """Sends what libraries print while the process ends nowhere: with the garbage above
    never collected, nanobind (in triton) lists all of its functions as leaked."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)


class _Interrupts:
    """A context manager that notes a Ctrl-C; with `leave` one during an import ends the process."""

    def __init__(self, leave: bool) -> None:
        self.leave, self.seen = leave, False

    def __enter__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *error: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if self.leave and frame is not None:
            _interrupted(leave=True)
        raise KeyboardInterrupt


def _interrupted(leave: bool) -> None:
    """Says so; with `leave` ends the process at once, its files being closed and its locks
    let go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _say("interrupted")
    if leave:
        os._exit(INTERRUPTED)


def _run(arguments: list[str]) -> int:
    from esa_cli.apps.cli.cli_app import command, present_arguments

    if "_ESA_COMPLETE" in os.environ:  # a shell asks for completions
        command().main(arguments, prog_name="esa")
    import typer

    arguments = present_arguments(arguments)
    group = command(arguments[0] if arguments else None)
    try:
        # Not through `main` of the group, which has its own way with Ctrl-C and closed pipes.
        with group.make_context("esa", arguments) as context:
            group.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return 0


def _report(error: Exception) -> int:
    """Says what was wrong; the exit code."""
    if os.environ.get("ESA_DEBUG"):
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
    known = as_esa_error(error)
    if known is not None:
        _say(known.message, known.hint)
        return known.exit_code
    if hasattr(error, "format_message"):  # an option or argument that the parser refused
        text, context = str(error.format_message()).rstrip("."), getattr(error, "ctx", None)
        where = context.command_path if context else "esa"
        _say(text[:1].lower() + text[1:], f"see `{where} --help`")
        return USAGE
    reason = (str(error).splitlines() or [""])[0]
    hint = "set ESA_DEBUG=1 to see where, and please report it"
    _say(f"a bug: {type(error).__name__}: {reason}", hint)
    return BUG


def _say(message: str, hint: str = "") -> None:
    """Writes an error, each part as one line: a file's name may have control characters."""
    _settle(sys.stdout)
    with contextlib.suppress(OSError, ValueError):
        for begin, text in (("esa: ", message), ("     ", hint)):
            plain = "".join(letter if letter.isprintable() else " " for letter in text).strip()
            if plain:
                print(begin + plain, file=sys.stderr)
    _settle(sys.stderr)


def _settle(stream: TextIO) -> None:
    """Writes what is left, to nowhere if need be, or Python complains about it while it ends."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(ValueError):  # somebody has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
