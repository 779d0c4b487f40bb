"""Mutated documents through their readers: a text or a DocumentError, and nothing else."""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from typing import NamedTuple

from limited_child import LimitedChild
from mutations import mutate
from reader_samples import SAMPLES

from esa_cli.documents import readers
from esa_cli.errors import DocumentError

MEMORY = 3 << 30
SECONDS = 20.0
MISTAKES = (AssertionError, AttributeError, LookupError, NameError, TypeError)
OWN = str(Path(readers.__file__).parent)


class Mutant(NamedTuple):
    """A damaged document. The same seed, name and number give the same bytes."""

    seed: int
    name: str
    number: int

    def data(self) -> bytes:
        others = [data for name, data in SAMPLES.items() if name != self.name]
        return mutate(SAMPLES[self.name], others, random.Random(repr(tuple(self))))


def verdict(data: bytes, name: str) -> str:
    """`text`, `refused` or `unforeseen` (refused, after an exception in our own reader that it did
    not expect); for what must not be `wrong: ...`."""
    try:
        found = readers.read(data, name)
        found.text.encode("utf-8")
        lines = [*found.missing, *(mark.chapter or "" for mark in found.marks)]
        broken = [line for line in lines if "\n" in line or "\r" in line]
        if broken:
            return f"wrong: chapters, or what is missing, of several lines: {broken}"
    except DocumentError as error:
        if "\n" in error.message or not error.message.strip() or "\n" in error.hint:
            return f"wrong: a message of several lines, or of none: {error.message!r}"
        return _refusal(error.__cause__)
    except BaseException as error:
        where = "".join(traceback.format_exception(error)).strip()
        return f"wrong: {where}"
    return "text"


def _refusal(cause: BaseException | None) -> str:
    frames = traceback.extract_tb(cause.__traceback__) if cause else []
    if frames and isinstance(cause, MISTAKES) and frames[-1].filename.startswith(OWN):
        return f"unforeseen: {type(cause).__name__} in {frames[-1].name}, line {frames[-1].lineno}"
    return "refused"


def request(data: bytes, name: str) -> bytes:
    return name.encode() + b"\0" + data


def reading(sent: bytes) -> str:
    name, _, data = sent.partition(b"\0")
    return verdict(data, name.decode())


def limited_reader(memory: int = MEMORY, seconds: float = SECONDS) -> LimitedChild:
    return LimitedChild(reading, memory, seconds)
