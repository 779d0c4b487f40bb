"""Limits that all readers keep, and a child process for documents whose library has none.

A stranger's small file must not take hours or gigabytes. Each limit can be raised by an environment
variable, which the message of a refusal names. Bytes, elements and attributes are counted before a
library sees them; seconds and memory bound the child process.

PDFium ends the process on a stream that is too large; trees of elements, mail fields and tags can
take minutes. What is small, and text, is read where it is asked for. The child is started for the
first document that needs it and reads all later ones, so that its start, a tenth of a second, is
paid once. Requests and replies are JSON and bytes, each with its length before it.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import zipfile
from contextlib import suppress
from io import BytesIO
from typing import IO, Any, NamedTuple

from esa_cli import errors
from esa_cli.documents.text_builder import ExtractedText, Mark, label
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.system.machine import parse_size

UNPACKED, PART, MEMORY = "ESA_READ_BYTES", "ESA_READ_PART", "ESA_READ_MEMORY"
ELEMENTS, ATTRIBUTES, SECONDS = "ESA_READ_ELEMENTS", "ESA_READ_ATTRIBUTES", "ESA_READ_SECONDS"
NAMES = (UNPACKED, PART, ELEMENTS, ATTRIBUTES, SECONDS, MEMORY)
MOST = 1 << 53
"""The highest that a limit can be."""
_TAG = re.compile(r"<[A-Za-z][^<>]*+")


class ReadingLimits(NamedTuple):
    """Limits of reading one document.

    Args:
        unpacked: bytes that a packed document may unpack to.
        part: bytes of one XML or HTML part of it, or of a PDF's content stream; the tree of a part
            takes 8 to 40 times its size.
        elements: XML or HTML elements of a part. attributes: those of one HTML tag, for which the
            parser takes time quadratic in them.
        seconds, memory: of the process that reads it; seconds of CPU time.
    """

    unpacked: int = 1 << 30
    part: int = 1 << 26
    elements: int = 5_000_000
    attributes: int = 10_000
    seconds: int = 120
    memory: int = 1 << 32


def reading_limits() -> ReadingLimits:
    """The limits now. Raises UsageError: an environment variable is no size or number."""
    return ReadingLimits(*map(_number, NAMES, ReadingLimits()))


def _number(name: str, usual: int) -> int:
    text = os.environ.get(name, "").strip()
    number = parse_size(text, name) if text else usual
    if not 1 <= number <= MOST:
        raise UsageError(
            f"{name} must be from 1 to {MOST:,}, got {text}", "leave it out for the default"
        )
    return number


def limit_error(document: str, what: str, limit: str, variable: str) -> DocumentError:
    """The error for a document that exceeds a limit.

    Args:
        what: what is limited, as "its part a.xml". limit: as "unpack to at most 64 MiB".
        variable: the environment variable that raises it.
    """
    subject = f"{label(document)}: {what}" if what else label(document)
    return DocumentError(
        f"{subject} must {limit}, got more",
        f"split it and ask about the parts, or, if you trust it, raise the limit: set {variable}",
    )


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.4g} MiB"


def check_elements(found: int, document: str, part: str = "") -> None:
    """Raises DocumentError when a part has more elements than it may."""
    most = reading_limits().elements
    if found > most:
        what = f"its part {part}" if part else ""
        raise limit_error(document, what, f"have at most {most:,} elements", ELEMENTS)


def check_html(text: str, document: str) -> None:
    """Raises DocumentError when a page has more elements than it may, or a tag more attributes;
    where `<` and `>` in their values hide these, the child process bounds the time."""
    check_elements(text.count("<") - text.count("</"), document)
    most = reading_limits().attributes
    for found in _TAG.finditer(text):
        if found.end() - found.start() > 2 * most and len(found[0].split(None, most + 1)) > most:
            limit = f"have at most {most:,} attributes"
            raise limit_error(document, "a tag", limit, ATTRIBUTES)


SMALL = {
    "pdf": 0, "docx": 1 << 16, "sheets": 1 << 16, "presentation": 1 << 16, "odt": 1 << 16,
    "epub": 1 << 16, "html": 1 << 16, "mail": 1 << 16, "ipynb": 1 << 16,
}  # fmt: skip
"""Built-in reader -> bytes, unpacked, up to which a document is read in this process."""
CLOCK = 5
"""Seconds by the clock for each of CPU time: the machine may be busy with other things."""
_LATE = getattr(signal, "SIGXCPU", None)
"""The signal that ends it after its CPU time; Windows has none."""
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
    limits = reading_limits()
    values = {variable: os.environ.get(variable, "") for variable in NAMES}
    request = {"reader": reader, "name": name, "limits": values}
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
    """Seconds by the clock, at most; CPU seconds are counted where the system can."""
    return min((CLOCK if _LATE else 1) * seconds, threading.TIMEOUT_MAX)


def _error_class(name: str) -> type[EsaError]:
    found = getattr(errors, name, DocumentError)
    return found if isinstance(found, type) and issubclass(found, EsaError) else DocumentError


def _ended(why: str, name: str, limits: ReadingLimits) -> DocumentError:
    if why in ("time", "CPU time"):
        limit = f"be read in {_clock_seconds(limits.seconds):,} s"
        if why == "CPU time":
            limit = f"be read in {limits.seconds:,} s of {why}"
        return limit_error(name, "", limit, SECONDS)
    size = mebibytes(limits.memory)
    if why == "memory":
        limit = f"be read with at most {size} of memory"
        return limit_error(name, "", limit, MEMORY)
    return DocumentError(
        f"{label(name)} cannot be read: it is damaged, or needs more than {size} of memory; the "
        f"library that reads it ended ({why})",
        f"save a new copy with another program, or, if you trust it, raise the limit: set {MEMORY}",
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
            return "CPU time"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
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
