"""Runs the command line of `esa` and `python -m esa_cli`, and turns errors into exit codes.

Slow imports happen inside functions, so that Ctrl-C ends the command without a traceback from the
first moment on.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
from types import FrameType

from esa_cli.errors import BUG, INTERRUPTED, PIPE_CLOSED, USAGE
from esa_cli.system.files import as_esa_error


def main(arguments: list[str] | None = None) -> int:
    """Runs one `esa` command and returns its exit code; docs/cli.md lists the exit codes.

    Args:
        arguments: the words after `esa`; None means the arguments of the command line."""
    # torch and transformers make a million objects on import, and searching these for garbage takes
    # half a second. `qa.opening` turns the collector on again when the model is loaded.
    gc.disable()
    is_program = arguments is None
    if is_program:
        atexit.register(_silence_stderr)
    # A stream that the caller has closed is None; what is written to it is dropped. In this order
    # each stream takes its own number, and no file opened later is written to by mistake.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    was_interrupted = False

    def note_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        was_interrupted = True
        raise KeyboardInterrupt

    has_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if has_handler:
            with contextlib.suppress(ValueError):  # this is not the main thread
                signal.signal(signal.SIGINT, note_interrupt)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        code = _run_command(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _flush_output_streams()
        return PIPE_CLOSED
    except (KeyboardInterrupt, Exception) as error:
        # A library may answer the interruption of an import with an error of its own.
        if isinstance(error, Exception) and not (was_interrupted and as_esa_error(error) is None):
            return _report_error(error)
        if is_program:  # the process ends without what libraries do at its end
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _print_error("interrupted")
            os._exit(INTERRUPTED)
        _print_error("interrupted")
        return INTERRUPTED
    finally:
        if signal.getsignal(signal.SIGINT) is note_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.enable()


def _silence_stderr() -> None:
    """Discards everything that libraries print while the process ends. Garbage is never collected,
    so nanobind (in triton) would report all of its functions as leaked."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _run_command(arguments: list[str]) -> int:
    from esa_cli.apps.cli.cli_app import expand_arguments, make_click_command

    if "_ESA_COMPLETE" in os.environ:  # a shell asks for completions
        make_click_command().main(arguments, prog_name="esa")
    import typer

    arguments = expand_arguments(arguments)
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


def _report_error(error: Exception) -> int:
    """Prints an error message and returns the exit code of the error."""
    if os.environ.get("ESA_DEBUG"):
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
    known = as_esa_error(error)
    if known is not None:
        _print_error(known.message, known.hint)
        return known.exit_code
    if hasattr(error, "format_message"):  # an option or argument that the parser refused
        text, context = str(error.format_message()).rstrip("."), getattr(error, "ctx", None)
        name = context.command_path if context else "esa"
        _print_error(text[:1].lower() + text[1:], f"see `{name} --help`")
        return USAGE
    reason = (str(error).splitlines() or [""])[0]
    hint = "set ESA_DEBUG=1 to see the traceback, and please report the bug"
    _print_error(f"a bug: {type(error).__name__}: {reason}", hint)
    return BUG


def _print_error(message: str, hint: str = "") -> None:
    """Prints the message and the hint as one line each, without control characters, which names of
    files may contain."""
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
