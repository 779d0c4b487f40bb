"""Measures finders on a user's own questions: how often the passage is among the first ones.

A line of the file of questions names the documents, relative to the file, and quotes a passage:

    {"question": "Who is Ahab?", "documents": ["book.txt"], "passage": "Ahab, the captain"}"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esa_cli.errors import UsageError
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage_finder import Book, add_token_ranges
from esa_cli.system.jsonl import read_json_lines

DEPTHS = (1, 3, 8)
_EXAMPLE = '{"question": "...", "documents": ["book.txt"], "passage": "a quotation that answers"}'
FinderQuestion = tuple[str, tuple[str, ...], str]
"""A question, the paths of its documents, and a quotation of the passage that answers."""


def read_finder_questions(path: Path) -> list[FinderQuestion]:
    """Reads a file of questions. Raises UsageError: there is none, or a line is malformed."""
    questions = list[FinderQuestion]()
    for number, row in enumerate(read_json_lines(path), 1):
        texts, names = [row.get("question"), row.get("passage")], row.get("documents")
        strings = [*texts, *(names if isinstance(names, list) else [None])]
        if not names or not all(isinstance(text, str) and text for text in strings):
            raise UsageError(f"line {number} of {path} is no question", f"write {_EXAMPLE}")
        places = tuple(str(path.parent / name) for name in names)
        questions.append((row["question"], places, row["passage"]))
    if not questions:
        raise UsageError(f"{path} has no questions", f"write lines like {_EXAMPLE}")
    return questions


def measure_finder(esa: Esa, questions: Sequence[FinderQuestion]) -> dict[str, Any]:
    """Returns how many passages are among the first ones that are read for a question, the seconds
    of indexing and of a question, and the bytes of the index, with the preset's reranker, if any.
    Raises UsageError: a quotation is in no document. DocumentError, ModelError, ResourceError."""
    started, books = time.perf_counter(), dict[str, Book]()
    for name in dict.fromkeys(name for _, names, _ in questions for name in names):
        indexes = esa.preset.answer.makes_token_index
        books[name] = esa.ingest(name) if indexes else esa.open(name)
    reranker = esa.load_reranker()
    rerank = None if reranker is None else reranker.score_passages
    indexing, ranks, asking = time.perf_counter() - started, list[int](), 0.0
    for question, names, quoted in questions:
        placed = add_token_ranges([books[name] for name in names])
        if not any(quoted in book.document.text for book in placed):
            raise UsageError(f"no document has the passage {quoted[:80]!r}", "quote it exactly")
        started = time.perf_counter()
        with esa.run_without_method():
            found = esa.search.find_passages_to_read(question, placed, DEPTHS[-1], rerank)
        asking += time.perf_counter() - started
        rank = next((n for n, one in enumerate(found) if quoted in one.text), DEPTHS[-1])
        ranks.append(rank)
    sizes = [book.index.nbytes for book in books.values() if book.index is not None]
    return {
        "questions": len(questions),
        **{f"found_{depth}": sum(rank < depth for rank in ranks) for depth in DEPTHS},
        "index_seconds": round(indexing, 2),
        "question_seconds": round(asking / len(questions), 3),
        "bytes": sum(sizes),
    }
