"""Reads documents in a child process, with limits of time and memory, where a library has none.

PDFium ends the process on a stream that is too large; trees of elements, mail fields and tags can
take minutes. What is small, and text, is read where it is asked for. The child is started for the
first document that needs it and reads all later ones, so that its start, a tenth of a second, is
paid once. Requests and replies are JSON and bytes, each with its length before it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import zipfile
from io import BytesIO
from typing import IO, Any

from esa_cli import errors
from esa_cli.documents import reading_limits
from esa_cli.documents.text_builder import ExtractedText, Mark, label
from esa_cli.errors import DocumentError, EsaError

SMALL = {
    "pdf": 0, "docx": 1 << 16, "sheets": 1 << 16, "presentation": 1 << 16, "odt": 1 << 16,
    "epub": 1 << 16, "html": 1 << 16, "mail": 1 << 16, "ipynb": 1 << 16,
}  # fmt: skip
"""Built-in reader -> bytes, unpacked, up to which a document is read in this process."""
CLOCK = 5
"""Seconds by the clock for each of processor time: the machine may be busy with other things."""
_LATE = getattr(signal, "SIGXCPU", None)
"""The signal that ends it after its processor time; Windows has none."""
_ARCHIVES = frozenset(("docx", "sheets", "presentation", "odt", "epub"))
_LENGTH = struct.Struct("<Q")
_START = (
    "import sys; sys.path[:] = {path!r}; from esa_cli.documents.reading_child import main; main()"
)


def at_risk(reader: str, data: bytes) -> bool:
    """Whether a document is read in a child process."""
    most = SMALL.get(reader)
    if most is None or len(data) > most:
        return most is not None
    if reader not in _ARCHIVES:
        return False
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            return sum(info.file_size for info in archive.infolist()) > most
    except Exception:  # zipfile raises whatever its arithmetic meets; the reader says what is wrong
        return False


def read_apart(reader: str, data: bytes, name: str) -> ExtractedText:
    """The text of a document, read by a built-in reader in the child process.

    Raises:
        DocumentError: as the reader, or it takes too long or too much memory. UsageError: a limit
            is no number.
    """
    limits = reading_limits.reading_limits()
    request: dict[str, Any] = {"reader": reader, "name": name}
    request["limits"] = {one: os.environ.get(one, "") for one in reading_limits.NAMES}
    try:
        with _LOCK:
            reply, text = _current().ask(request, data, _clock_seconds(limits.seconds))
    except OSError as error:
        raise DocumentError(
            f"{label(name)} cannot be read: no process can be started for it ({error.strerror})",
            "close other programs; a document as plain text (.txt) needs none",
        ) from error
    if "ended" in reply:
        raise _ended(reply["ended"], name, limits)
    if "error" in reply:
        kind, message, hint = reply["error"]
        raise _error_class(kind)(message, hint)
    marks = tuple(Mark(*mark) for mark in reply["marks"])
    return ExtractedText(text, marks, tuple(reply["missing"]), reply["encoding"])


def _clock_seconds(seconds: int) -> float:
    """Seconds by the clock, at most; those of the processor are counted where the system can."""
    return min((CLOCK if _LATE else 1) * seconds, threading.TIMEOUT_MAX)


def _error_class(name: str) -> type[EsaError]:
    found = getattr(errors, name, DocumentError)
    return found if isinstance(found, type) and issubclass(found, EsaError) else DocumentError


def _ended(why: str, name: str, limits: reading_limits.ReadingLimits) -> DocumentError:
    if why in ("time", "processor time"):
        limit = f"be read in {_clock_seconds(limits.seconds):,} s"
        if why == "processor time":
            limit = f"be read in {limits.seconds:,} s of {why}"
        return reading_limits.limit_error(name, "", limit, reading_limits.SECONDS)
    size = reading_limits.mebibytes(limits.memory)
    if why == "memory":
        limit = f"be read with at most {size} of memory"
        return reading_limits.limit_error(name, "", limit, reading_limits.MEMORY)
    return DocumentError(
        f"{label(name)} cannot be read: it is damaged, or needs more than {size} of memory; the "
        f"library that reads it ended ({why})",
        "save a new copy with another program, or, if you trust it, raise the limit: set "
        f"{reading_limits.MEMORY}",
    )


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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    @property
    def usable(self) -> bool:
        """False once it has ended, and in a copy of this process that was made by fork."""
        return self.owner == os.getpid() and self._process.poll() is None

    def ask(self, request: dict[str, Any], data: bytes, seconds: float) -> tuple[Any, str]:
        """Its reply and the text; `ended` in the reply says why there is none."""
        late, lock, complete = threading.Event(), threading.Lock(), False

        def stop() -> None:
            with lock:
                if not complete:
                    late.set()
                    self._process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            send(self._in, json.dumps(request).encode())
            send(self._in, data)
            reply, text = json.loads(receive(self._out)), receive(self._out)
            with lock:
                complete = True  # from here on the timer ends it no more
        except (EOFError, BrokenPipeError):
            why = self._why()
            return {"ended": "time" if late.is_set() else why}, ""
        except BaseException:
            self.end()
            raise
        finally:
            timer.cancel()
        if reply.get("last") or late.is_set():
            self.end()
        return reply, text.decode("utf-8", "surrogatepass")

    def _why(self) -> str:
        code = self._process.wait()
        self.end()
        if _LATE and code == -_LATE:
            return "processor time"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._in.close()
        self._out.close()


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
    """In a copy of this process: its parent's child and lock are not its own."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def send(stream: IO[bytes], data: bytes) -> None:
    """Writes bytes with their length before them."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """Bytes that `send` wrote. Raises EOFError: the stream ended before."""
    head = stream.read(_LENGTH.size)
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    data = stream.read(length)
    if len(head) < _LENGTH.size or len(data) < length:
        raise EOFError
    return data
