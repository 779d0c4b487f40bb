"""The sentences of a document and their content words: what its lexical index is made from.

Cutting a text and stemming its words takes nine tenths of the time of indexing it, so the library
keeps this table for a document that has been read for a finder.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
from safetensors import SafetensorError
from safetensors.numpy import load, save

from esa_cli.documents import sentences
from esa_cli.qa.finding import sentence_windows
from esa_cli.system import content_words

VERSION = "version"
"""The tensor that holds `_version`."""


@dataclass(frozen=True, eq=False)
class SentenceWords:
    """The content words of a text's S sentences.

    Args:
        spans: (S, 2) int32, characters [start, end) of the sentences. counts: (S,) int32, the words
            of each, stop words included. ids: (n,) int32, content words in their order.
        ends: (S + 1,) int64; sentence s has the content words [ends[s], ends[s + 1]).
        vocabulary: the stem of each id.
    """

    spans: Any
    counts: Any
    ids: Any
    ends: Any
    vocabulary: Sequence[str]

    def as_bytes(self) -> bytes:
        """The table as `of_bytes` reads it."""
        texts = {VERSION: _version(), "vocabulary": "\n".join(self.vocabulary)}
        arrays = {
            name: numpy.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=numpy.uint8)
            for name, text in texts.items()
        }
        numbers = {"spans": self.spans, "counts": self.counts, "ids": self.ids, "ends": self.ends}
        return save(arrays | numbers)

    @classmethod
    def of_bytes(cls, data: bytes) -> SentenceWords | None:
        """A table as it was stored; None where this esa would cut or stem the text otherwise."""
        try:
            found = load(data)
            if found[VERSION].tobytes().decode() != _version():
                return None
            text = found["vocabulary"].tobytes().decode("utf-8", "surrogatepass")
            vocabulary = text.split("\n") if text else []
            return cls(found["spans"], found["counts"], found["ids"], found["ends"], vocabulary)
        except (SafetensorError, KeyError, ValueError):
            return None


@lru_cache(maxsize=2)  # a document is asked before it is read, and then again
def sentence_words(text: str) -> SentenceWords:
    """The sentences of a text and their words."""
    spans = sentence_windows.sentence_spans(text)
    known, ids, ends = _Numbers(), list[int](), [0]
    for start, end in spans:
        for word in content_words.WORD.findall(text[start:end]):
            ids += known[word]
        ends.append(len(ids))
    return SentenceWords(
        numpy.array(spans, dtype=numpy.int32).reshape(-1, 2),
        numpy.array([content_words.word_count(text[a:b]) for a, b in spans], dtype=numpy.int32),
        numpy.array(ids, dtype=numpy.int32),
        numpy.array(ends, dtype=numpy.int64),
        list(known.vocabulary),
    )


class _Numbers(dict[str, list[int]]):
    """A word as it is written -> the ids of its stems, none for a stop word."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary: dict[str, int] = {}

    def __missing__(self, word: str) -> list[int]:
        stems, known = content_words.content_words(word), self.vocabulary
        self[word] = found = [known.setdefault(stem, len(known)) for stem in stems]
        return found


@cache
def _version() -> str:
    """A digest of everything that shapes a table beside the text."""
    # snowballstemmer hands over to PyStemmer where that is installed.
    stemmer = type(content_words.stemmer()).__module__
    parts = (unicodedata.unidata_version, version("snowballstemmer"), stemmer)
    found = hashlib.sha256(" ".join(parts).encode())
    for module in (sentences, sentence_windows, content_words):
        found.update(Path(str(module.__file__)).read_bytes())
    found.update(Path(__file__).read_bytes())
    return found.hexdigest()
