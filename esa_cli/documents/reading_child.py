"""The child process of `reading_process`: reads one document after another, until its input ends.

It keeps the limits of memory and of CPU time where the system has them (not on Windows; macOS
ignores that of memory).
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from esa_cli.documents.reading_process import NAMES, reading_limits, receive, send
from esa_cli.errors import EsaError

_KEPT = 256 << 20
"""Bytes above which it ends after a document: memory is not all given back."""
_NO_MEMORY = ("Memory allocation failed", "out of memory")


def main() -> None:
    """Serves requests on standard input, and replies where standard output was."""
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # Linux ends this process, not the one with the model
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with suppress(EOFError, OSError):
        while True:
            request, data = json.loads(receive(sys.stdin.buffer)), receive(sys.stdin.buffer)
            reply, text = _answer(request, data)
            del data
            reply["last"] = _resident() > _KEPT
            send(replies, json.dumps(reply).encode())
            send(replies, text)


def _resident() -> int:
    """Bytes of memory now; the peak of a process may be that of its parent."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _answer(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    from esa_cli.documents import readers
    from esa_cli.documents.readers.reader_registry import READERS, read_by

    assert readers.__all__, "importing it registers them"
    os.environ.update({name: request["limits"][name] for name in NAMES})
    try:
        _keep_limits()
        found = read_by(READERS[request["reader"]](), data, request["name"])
        text = found.text.encode("utf-8", "surrogatepass")
    except MemoryError:
        return {"ended": "memory"}, b""
    except EsaError as error:
        if any(words in error.message for words in _NO_MEMORY):
            return {"ended": "memory"}, b""
        return {"error": [type(error).__name__, error.message, error.hint]}, b""
    return {"marks": found.marks, "missing": found.missing, "encoding": found.encoding}, text


def _keep_limits() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = reading_limits()
    spent = math.ceil(time.process_time())
    for which, most in (
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, spent + limits.seconds),
    ):
        hard = resource.getrlimit(which)[1]
        with suppress(ValueError, OSError):
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(which, (most, hard))
