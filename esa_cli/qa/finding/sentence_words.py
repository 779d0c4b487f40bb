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
        vocabulary: the stem of each id. language: of the text; see `language_of`.
    """

    spans: Any
    counts: Any
    ids: Any
    ends: Any
    vocabulary: Sequence[str]
    language: str

    def as_bytes(self) -> bytes:
        """The table as `of_bytes` reads it."""
        texts = {
            VERSION: _version(),
            "vocabulary": "\n".join(self.vocabulary),
            "language": self.language,
        }
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
            language = found["language"].tobytes().decode()
            spans, counts, ids, ends = (found[one] for one in ("spans", "counts", "ids", "ends"))
            return cls(spans, counts, ids, ends, vocabulary, language)
        except (SafetensorError, KeyError, ValueError):
            return None


@lru_cache(maxsize=2)  # a document is asked before it is read, and then again
def sentence_words(text: str) -> SentenceWords:
    """The sentences of a text and their words."""
    spans = sentence_windows.sentence_spans(text)
    language = content_words.language_of(text)
    known, ids, ends = dict[str, int](), list[int](), [0]
    for start, end in spans:
        stems = content_words.content_words(text[start:end], language)
        ids += [known.setdefault(stem, len(known)) for stem in stems]
        ends.append(len(ids))
    return SentenceWords(
        numpy.array(spans, dtype=numpy.int32).reshape(-1, 2),
        numpy.array([content_words.word_count(text[a:b]) for a, b in spans], dtype=numpy.int32),
        numpy.array(ids, dtype=numpy.int32),
        numpy.array(ends, dtype=numpy.int64),
        list(known),
        language,
    )


@cache
def _version() -> str:
    """A digest of everything that shapes a table beside the text."""
    found = hashlib.sha256(
        f"{unicodedata.unidata_version} {content_words.words_version()}".encode()
    )
    for file in (sentences.__file__, sentence_windows.__file__, __file__):
        found.update(Path(file).read_bytes())
    return found.hexdigest()
