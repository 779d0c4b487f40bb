"""Reads documents, those that a library parses in a child process with limits of time and memory.

A stranger's small file must not take hours or gigabytes, and some libraries end their process on a
damaged one. Each limit can be raised by an environment variable, which the refusal names. The child
process is started for the first document that needs it and reads all later ones, so that its start,
a tenth of a second, is paid once. A request is a line of JSON and the bytes; a reply is a line of
JSON.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from esa_cli import errors
from esa_cli.documents.readers.reader_registry import READERS, choose, read_by
from esa_cli.documents.readers.text_builder import ExtractedText, Mark, label
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.system.machine import parse_size, size_text

UNPACKED, SECONDS, MEMORY = "ESA_READ_BYTES", "ESA_READ_SECONDS", "ESA_READ_MEMORY"
LIMITS = {UNPACKED: 1 << 30, SECONDS: 120, MEMORY: 1 << 32}
"""Environment variable -> its default: the bytes that a packed document may unpack to; the CPU time
and memory of the child process."""
MOST = 1 << 53
"""The highest that a limit can be."""
APART = frozenset(
    ("pdf", "docx", "sheets", "presentation", "odt", "epub", "html", "mail", "ipynb", "csv")
)
"""Built-in readers that run in the child process."""
CLOCK = 5
"""Seconds by the clock for each second of CPU time: the machine may be busy with other things."""
_LATE = getattr(signal, "SIGXCPU", None)
"""The signal that ends the child after its CPU time; Windows has none."""
_LARGE = 256 << 20
"""Bytes of memory above which the child ends after a document: not all is given back."""
_NO_MEMORY = ("Memory allocation failed", "out of memory", "unknown error (<string>, line 0)")
"""What lxml says where memory is not enough."""
_START = (
    "import sys; sys.path[:] = {path!r}; import esa_cli.documents.readers; "
    "from esa_cli.documents.readers.reading_process import serve; serve()"
)


def reading_limit(name: str) -> int:
    """A limit now. Raises UsageError: the environment variable is no size or number."""
    text = os.environ.get(name, "").strip()
    number = parse_size(text, name) if text else LIMITS[name]
    if not 1 <= number <= MOST:
        raise UsageError(
            f"{name} must be from 1 to {MOST:,}, got {text}", "leave it out for the default"
        )
    return number


def check_unpacked(size: int, document: str) -> None:
    """Raises DocumentError when a document unpacks to more bytes than it may."""
    most = reading_limit(UNPACKED)
    if size > most:
        raise _limit_error(document, f"unpack to at most {size_text(most)}", UNPACKED)


def _limit_error(document: str, limit: str, variable: str) -> DocumentError:
    return DocumentError(
        f"{label(document)} is too large: it must {limit}",
        f"split it and ask about the parts, or, if you trust it, raise the limit: set {variable}",
    )


def read(data: bytes, name: str) -> ExtractedText:
    """The text of a document, by whichever reader serves it.

    Args:
        data: at least one byte. name: its path, or "standard input".

    Raises:
        DocumentError: it cannot be read, or exceeds a limit. PluginError: a reader breaks the
            rules. UsageError: a limit is no number.
    """
    reader = choose(data, name)
    for key in APART:
        if type(reader) is READERS[key]:
            return _read_apart(key, data, name)
    try:
        return read_by(reader, data, name)
    except MemoryError as error:
        raise DocumentError(
            f"{label(name)} is too large for this machine's memory", "split the document"
        ) from error


def _read_apart(reader: str, data: bytes, name: str) -> ExtractedText:
    limits = {variable: os.environ.get(variable, "") for variable in LIMITS}
    seconds, memory = reading_limit(SECONDS), size_text(reading_limit(MEMORY))
    request = {"reader": reader, "name": name, "limits": limits, "size": len(data)}
    try:
        with _LOCK:
            reply = _current().ask(request, data, (CLOCK if _LATE else 1) * seconds)
    except OSError as error:
        raise DocumentError(
            f"{label(name)} cannot be read: no process can be started for it ({error.strerror})",
            "close other programs; a document as plain text (.txt) needs none",
        ) from error
    why = reply.get("ended")
    if why == "time":
        raise _limit_error(name, f"be read in {seconds:,} s of CPU time", SECONDS)
    if why == "memory":
        raise _limit_error(name, f"be read with at most {memory} of memory", MEMORY)
    if why:
        raise DocumentError(
            f"{label(name)} cannot be read: it is damaged, or needs more than {memory} of memory; "
            f"the library that reads it ended ({why})",
            f"save a new copy with another program, or, if you trust it, set {MEMORY}",
        )
    if "error" in reply:
        kind, message, hint = reply["error"]
        raise getattr(errors, kind)(message, hint)
    marks = tuple(Mark(*mark) for mark in reply["marks"])
    return ExtractedText(reply["text"], marks, tuple(reply["missing"]), reply["encoding"])


class ReadingProcess:
    """A running child process."""

    def __init__(self) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START.format(path=path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def usable(self) -> bool:
        """False once it has ended, and in a copy of this process that was made by fork."""
        return self.owner == os.getpid() and self._process.poll() is None

    def ask(self, request: dict[str, Any], data: bytes, seconds: float) -> dict[str, Any]:
        """Its reply; `ended` in it says why there is no text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop)
        timer.daemon = True
        timer.start()
        line, code = b"", 0
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n" + data)
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            code = 0 if line.endswith(b"\n") else self._process.wait()
        finally:
            timer.cancel()
            timer.join()  # which may be ending the process just now
            if late.is_set() or not line.endswith(b"\n"):
                self.end()
        if line.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(line)
            if reply["last"]:
                self.end()
            return reply
        if late.is_set() or (_LATE and code == -_LATE):
            return {"ended": "time"}
        return {"ended": f"signal {-code}" if code < 0 else f"exit code {code}"}

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]


_LOCK = threading.Lock()
_CHILD: list[ReadingProcess] = []


def _current() -> ReadingProcess:
    """The child process, started if there is none."""
    if not (_CHILD and _CHILD[0].usable):
        _CHILD[:] = [ReadingProcess()]
    return _CHILD[0]


def stop_reading() -> None:
    """Ends the child process, if there is one."""
    if _CHILD and _CHILD[0].owner == os.getpid():
        _CHILD[0].end()
    _CHILD.clear()


atexit.register(stop_reading)


def _forked() -> None:
    """In a copy of this process: its parent's lock is not its own."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def serve() -> None:
    """The child process: reads the documents on standard input, and writes replies where standard
    output was."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setrecursionlimit(20_000)  # for elements that are nested thousands deep
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # Linux ends this process, not the one with the model
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        replies.write(_reply(request, sys.stdin.buffer.read(request["size"])) + b"\n")
        replies.flush()


def _reply(request: dict[str, Any], data: bytes) -> bytes:
    import psutil

    reply: dict[str, Any]
    os.environ.update(request["limits"])
    try:
        _set_limits()
        reply = vars(read_by(READERS[request["reader"]](), data, request["name"]))
        return json.dumps({**reply, "last": psutil.Process().memory_info().rss > _LARGE}).encode()
    except EsaError as error:
        if not any(words in error.message for words in _NO_MEMORY):
            reply = {"error": [type(error).__name__, error.message, error.hint], "last": False}
            return json.dumps(reply).encode()
    except MemoryError:
        pass
    return b'{"ended": "memory", "last": true}'


def _set_limits() -> None:
    """Limits this process where the system can: not on Windows; macOS ignores that of memory."""
    try:
        import resource
    except ImportError:
        return
    seconds = math.ceil(time.process_time()) + reading_limit(SECONDS)
    for which, most in (
        (resource.RLIMIT_AS, reading_limit(MEMORY)),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
    ):
        hard = resource.getrlimit(which)[1]
        with suppress(ValueError, OSError):
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(which, (most, hard))
