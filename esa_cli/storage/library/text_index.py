"""Lexical search over the texts of a library: full-text search of sqlite (FTS5) over passages.

A text is cut into passages of 150 content words. With BM25 over the passages of all texts,
the score of a text for a question's words w is

    max over its passages p of sum over w of bm25(w, p)
    + 0.6 * sum over w of max over its passages p of bm25(w, p)

The second part counts words that stand elsewhere in the text, as a name in its title. A word has
the stems of each language of the library's texts; of a text in another language than the question's
only names and foreign words fit.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from esa_cli.system.content_words import language_of, located_words, question_words

PASSAGE_WORDS = 150
"""About 300 words of English, stop words included."""
WHOLE = 0.6
"""Weight of the words that stand anywhere in a text."""
_SHIFT = 24
"""A passage's row is its text's id times 2^24, plus its number in the text."""
_FIND = "INSERT INTO hits SELECT rowid, ?, -bm25(passages) FROM passages WHERE passages MATCH ?"
_RANK = f"""
WITH best (id, score) AS (
    SELECT passage >> {_SHIFT}, max(score) FROM (
        SELECT passage, sum(score) AS score FROM hits GROUP BY passage) GROUP BY 1),
whole (id, score) AS (
    SELECT id, sum(score) FROM (
        SELECT passage >> {_SHIFT} AS id, max(score) AS score FROM hits GROUP BY 1, word)
    GROUP BY 1)
SELECT digest, best.score + {WHOLE} * whole.score AS score
FROM best JOIN whole USING (id) JOIN texts USING (id)
ORDER BY score DESC, characters DESC, id
"""


class RankedText(NamedTuple):
    """A text by its digest, and its score for a question."""

    digest: str
    score: float


class TextIndex:
    """Words of texts in a catalogue. The caller opens transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.searchable = is_searchable(db)
        """False where this Python's sqlite3 has no FTS5: `ranked` cannot be called."""

    def __len__(self) -> int:
        [(count,)] = self._db.execute("SELECT count(*) FROM texts")
        return int(count)

    def digests(self) -> set[str]:
        """Digests of the texts that it has."""
        return {digest for (digest,) in self._db.execute("SELECT digest FROM texts")}

    def has(self, digest: str) -> bool:
        """Whether it has a text, or cannot have any."""
        rows = self._db.execute("SELECT 1 FROM texts WHERE digest = ?", (digest,))
        return rows.fetchone() is not None or not self.searchable

    def add(self, text: str, digest: str) -> None:
        """Adds a text unless it is there."""
        if self.has(digest):
            return
        row = self._db.execute(
            "INSERT INTO texts (digest, characters) VALUES (?, ?)", (digest, len(text))
        ).lastrowid
        assert row is not None
        language = language_of(text)
        self._db.execute("INSERT OR IGNORE INTO languages (name) VALUES (?)", (language,))
        packer, packed, count = zlib.compressobj(1), list[bytes](), 0
        for passage in _passages(text, language):
            data = passage.encode("utf-8", "replace")  # it may have lone surrogates
            self._db.execute(
                "INSERT INTO passages (rowid, words) VALUES (?, ?)",
                ((row << _SHIFT) + count, data.decode()),
            )
            packed.append(packer.compress(data + b"\n"))
            count += 1
        words = b"".join([*packed, packer.flush()])
        self._db.execute(
            "UPDATE texts SET passages = ?, words = ? WHERE id = ?", (count, words, row)
        )

    def remove(self, digest: str) -> None:
        """Removes a text, if it is there."""
        rows = self._db.execute("SELECT id, words FROM texts WHERE digest = ?", (digest,))
        for row, words in rows.fetchall() if self.searchable else []:
            try:
                passages = zlib.decompress(words).decode().split("\n")[:-1]
            except (zlib.error, TypeError, UnicodeDecodeError) as error:
                raise sqlite3.DatabaseError(f"Could not decode the words of {digest}") from error
            self._db.executemany(
                "INSERT INTO passages (passages, rowid, words) VALUES ('delete', ?, ?)",
                [((row << _SHIFT) + at, passage) for at, passage in enumerate(passages)],
            )
            self._db.execute("DELETE FROM texts WHERE id = ?", (row,))

    def ranked(self, question: str) -> list[RankedText]:
        """The texts with a word of the question, best first; of equal ones the longer first."""
        languages = [name for (name,) in self._db.execute("SELECT name FROM languages")]
        words = dict.fromkeys(question_words(question, languages))
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS hits (passage, word, score)")
        self._db.execute("DELETE FROM hits")
        for number, stems in enumerate(words):
            self._db.execute(_FIND, (number, " OR ".join(f'"{_stored(stem)}"' for stem in stems)))
        return [RankedText(*row) for row in self._db.execute(_RANK)]

    def compact(self) -> None:
        """Rewrites the index without what was removed; nobody may write meanwhile."""
        if self.searchable:
            self._db.execute("INSERT INTO passages (passages) VALUES ('optimize')")
        self._db.execute("VACUUM")


def is_searchable(db: sqlite3.Connection) -> bool:
    try:
        db.execute("SELECT rowid FROM passages LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def _passages(text: str, language: str) -> Iterator[str]:
    """The text's content words, 150 at a time."""
    words = (_stored(word) for _, _, word in located_words(text, language))
    while passage := " ".join(islice(words, PASSAGE_WORDS)):
        yield passage


def _stored(word: str) -> str:
    """A word as one token of the index, in which an ASCII apostrophe would end it."""
    return word.replace("'", "’")
