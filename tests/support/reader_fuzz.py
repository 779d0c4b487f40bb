"""Mutated documents through their readers: a text or a DocumentError, and nothing else."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import NamedTuple

from mutations import mutate
from reader_samples import SAMPLES

from esa_cli.documents.readers import ExtractedText
from esa_cli.documents.readers.reader_registry import choose_reader, read_with_reader
from esa_cli.errors import DocumentError


class Mutant(NamedTuple):
    """A damaged document. The same seed, name and number give the same bytes."""

    seed: int
    name: str
    number: int

    def data(self) -> bytes:
        others = [data for name, data in SAMPLES.items() if name != self.name]
        return mutate(SAMPLES[self.name], others, random.Random(repr(tuple(self))))


def read_here(data: bytes, name: str) -> ExtractedText:
    """Without the child process, so that the cause of an error is known."""
    return read_with_reader(choose_reader(data, name), data, name)


def verdict(data: bytes, name: str, read: Callable[[bytes, str], ExtractedText]) -> str:
    """`text` or `refused`; else `wrong: ...`."""
    try:
        extracted = read(data, name)
        extracted.text.encode("utf-8")
        lines = [*extracted.missing, *(mark.chapter or "" for mark in extracted.marks)]
        if broken := [line for line in lines if "\n" in line or "\r" in line]:
            return f"wrong: chapters, or what is missing, of several lines: {broken}"
    except DocumentError as error:
        if "\n" in error.message or not error.message.strip() or "of CPU time" in error.message:
            return f"wrong: {error.message!r}"
        return "refused"
    except BaseException as error:
        return f"wrong: {''.join(traceback.format_exception(error))}"
    return "text"
