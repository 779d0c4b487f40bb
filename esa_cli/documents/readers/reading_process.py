"""Runs a child process that reads documents with limits on time and memory.

A small malicious file must not take hours or gigabytes, and some libraries crash their process on
a damaged file. A request is a line of JSON and a document's bytes; a reply is a line of JSON."""

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
from esa_cli.documents.readers.reader_registry import BUILT_IN, BuiltInReader, read_with_reader
from esa_cli.documents.readers.text_builder import ExtractedText, Mark, label_document
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.system.machine import format_size, parse_size

UNPACKED, SECONDS, MEMORY = "ESA_READ_BYTES", "ESA_READ_SECONDS", "ESA_READ_MEMORY"
LIMITS = {UNPACKED: 1 << 30, SECONDS: 120, MEMORY: 1 << 32}
"""Variable -> default: bytes of an unpacked document; the child process's CPU time and memory."""
MAX_LIMIT = 1 << 53
CLOCK = 5
"""Seconds by the clock for each second of CPU time: the machine may be busy with other things."""
_LATE = getattr(signal, "SIGXCPU", None)
"""The signal that ends the child after its CPU time; Windows has none."""
_LARGE = 256 << 20
"""Bytes of memory above which the child process ends after a document to give memory back."""
_NO_MEMORY = ("Memory allocation failed", "out of memory", "unknown error (<string>, line 0)")
"""Messages of lxml where memory is not enough."""
_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from esa_cli.documents.readers import reading_process as r; r.serve_reading_requests()"
)


def look_up_reading_limit(limit_variable: str) -> int:
    """Returns a limit from a variable or by default. Raises UsageError: it is not a size."""
    text = os.environ.get(limit_variable, "").strip()
    number = parse_size(text, limit_variable) if text else LIMITS[limit_variable]
    if not 1 <= number <= MAX_LIMIT:
        wrong = f"{limit_variable} must be from 1 to {MAX_LIMIT:,}, got {text}"
        raise UsageError(wrong, f"unset {limit_variable}")
    return number


def refuse_large_unpacked_size(unpacked_size: int, document_name: str) -> None:
    """Raises DocumentError when the size that a document unpacks to is above the limit."""
    if unpacked_size > (limit := look_up_reading_limit(UNPACKED)):
        raise _make_limit_error(document_name, f"{format_size(limit)} of unpacked data", UNPACKED)


def _make_limit_error(document_name: str, limit: str, limit_variable: str) -> DocumentError:
    message = f"{label_document(document_name)} is too large or damaged: it needs more than {limit}"
    hint = f"split the document or save it again; if you trust it, raise the limit {limit_variable}"
    return DocumentError(message, hint)


def read_in_child_process(reader: BuiltInReader, data: bytes, name: str) -> ExtractedText:
    """Returns the text of the document `name`, extracted by the child process. Raises
    DocumentError: the document cannot be read or exceeds a limit. UsageError: a limit is wrong."""
    limits = {variable: os.environ.get(variable, "") for variable in LIMITS}
    seconds, memory = look_up_reading_limit(SECONDS), format_size(look_up_reading_limit(MEMORY))
    request = {"format": reader.format, "name": name, "limits": limits, "size": len(data)}
    try:
        with _LOCK:
            if not (_CHILD and _CHILD[0].is_usable):
                _CHILD[:] = [DocumentReaderProcess()]
            reply = _CHILD[0].request_text(request, data, (CLOCK if _LATE else 1) * seconds)
    except OSError as error:
        raise DocumentError(
            f"{label_document(name)} cannot be read: no process can be started for it "
            f"({error.strerror})",
            "close other programs, or save the document as plain text (.txt)",
        ) from error
    why = reply.get("ended")
    if why == "time":
        raise _make_limit_error(name, f"{seconds:,} s of CPU time", SECONDS)
    if why:
        raise _make_limit_error(name, f"{memory} of memory ({why})", MEMORY)
    if "error" in reply:
        kind, message, hint = reply["error"]
        raise getattr(errors, kind)(message, hint)
    marks = tuple(Mark(*mark) for mark in reply["marks"])
    return ExtractedText(reply["text"], marks, tuple(reply["missing"]), reply["encoding"])


class DocumentReaderProcess:
    """A running child process that reads documents on request."""

    def __init__(self) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START.format(path=path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def is_usable(self) -> bool:
        """Whether the child process still runs, and belongs to this process, not to its parent."""
        return self.owner == os.getpid() and self._process.poll() is None

    def request_text(self, request: dict[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        """Sends a request to the child process; returns its reply, or why the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def kill_process_on_timeout() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(min(timeout, threading.TIMEOUT_MAX), kill_process_on_timeout)
        timer.daemon = True
        timer.start()
        line, code, reply = b"", 0, dict[str, Any]()
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n" + data)
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            if line.endswith(b"\n"):
                reply = json.loads(line)
            else:
                code = self._process.wait()
        finally:
            timer.cancel()
            timer.join()  # the timer may be killing the process just now
            if late.is_set() or reply.get("last", True):
                self.kill_child_process()
        if reply:
            return reply
        if late.is_set() or (_LATE and code == -_LATE):
            return {"ended": "time"}
        return {"ended": f"its library ended with code {code}"}

    def kill_child_process(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]


_LOCK = threading.Lock()
_CHILD: list[DocumentReaderProcess] = []


@atexit.register
def stop_document_reader_process() -> None:
    if _CHILD and _CHILD[0].owner == os.getpid():
        _CHILD[0].kill_child_process()
    _CHILD.clear()


def _replace_lock_after_fork() -> None:
    """Replaces the lock in a forked copy of this process, where no thread would release it."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_lock_after_fork)


def serve_reading_requests() -> None:
    """Runs the child process: receives documents on stdin, and replies on the original stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setrecursionlimit(20_000)  # for elements that are nested thousands deep
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # Linux ends this process, not the one with the model
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        reply = _answer_reading_request(request, sys.stdin.buffer.read(request["size"]))
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _answer_reading_request(request: dict[str, Any], data: bytes) -> dict[str, Any]:
    import psutil

    os.environ.update(request["limits"])
    try:
        _set_process_limits()
        text = vars(read_with_reader(BUILT_IN[request["format"]], data, request["name"]))
        return {**text, "last": psutil.Process().memory_info().rss > _LARGE}
    except EsaError as error:
        if not any(words in error.message for words in _NO_MEMORY):
            return {"error": [type(error).__name__, error.message, error.hint], "last": False}
    except MemoryError:
        pass
    return {"ended": "memory ran out", "last": True}


def _set_process_limits() -> None:
    """Limits this process's memory and CPU time where possible: not on Windows, partly on macOS."""
    try:
        import resource
    except ImportError:
        return
    seconds = math.ceil(time.process_time()) + look_up_reading_limit(SECONDS)
    for resource_name, limit in (
        (resource.RLIMIT_AS, look_up_reading_limit(MEMORY)),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
    ):
        hard = resource.getrlimit(resource_name)[1]
        with suppress(ValueError, OSError):
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(resource_name, (limit, hard))
