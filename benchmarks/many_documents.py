"""Several documents, ingested separately and asked together, against one document of all the text.

The chronicle is cut at paragraphs into parts of about equal length. Its questions are asked about
all parts and about the whole, with the same model, preset and prompt.

    python benchmarks/many_documents.py --parts 4 --out benchmarks/results/many-documents.jsonl
    python benchmarks/many_documents.py --parts 1 --library FOLDER --rows int8
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from common import answered, append_line, chronicle, chronicle_questions


def cut(text: str, parts: int) -> list[str]:
    """The text in so many pieces, at paragraphs."""
    paragraphs = text.split("\n\n")
    out: list[list[str]] = [[] for _ in range(parts)]
    done = 0
    for paragraph in paragraphs:
        out[min(parts - 1, done * parts // len(text))].append(paragraph)
        done += len(paragraph) + 2
    return ["\n\n".join(one) for one in out]


def ask_all(esa: Any, texts: list[str], questions: list[dict[str, Any]]) -> dict[str, Any]:
    """Reads the texts, and asks everything about all of them at once."""
    from esa_cli.documents.document import Document

    started = time.perf_counter()
    books = [
        esa.ingest(Document(f"part {i}", text, f"part-{i}.md", "utf-8", len(text.encode())))
        for i, text in enumerate(texts, 1)
    ]
    read = time.perf_counter() - started
    rows = []
    for question in questions:
        reply = esa.ask(question["question"], books, max_new_tokens=24)
        good = answered(reply.text, question["answers"])
        place = next(i for i, text in enumerate(texts) if question["fact"] in text)
        quoted = any(
            question["fact"] in passage.text and passage.document == f"part {place + 1}"
            for passage in reply.evidence
        )
        rows.append({"id": question["id"], "answer": reply.text, "ok": good, "quoted": quoted})
    spent = time.perf_counter() - started - read
    return {
        "answered": sum(row["ok"] for row in rows),
        "quoted_when_answered": sum(row["ok"] and row["quoted"] for row in rows),
        "of": len(rows),
        "tokens": esa.cached_document_tokens,
        "read_s": round(read, 1),
        "s_per_question": round(spent / len(rows), 2),
        "results": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--library", default="", help="ask from a library in this folder")
    parser.add_argument("--rows", default="int8", help="of the library: int8 or native")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    from esa_cli.qa.api import Esa
    from esa_cli.storage.library import Library

    text, questions = chronicle(), chronicle_questions()
    library = Library(Path(arguments.library)) if arguments.library else None
    kept = arguments.rows if library else "in memory"
    several = [cut(text, arguments.parts)] if arguments.parts > 1 else []
    with Esa.load(arguments.preset, library=library, rows=arguments.rows) as esa:
        for texts in (*several, [text]):
            row = {"documents": len(texts), "rows": kept, **ask_all(esa, texts, questions)}
            print(
                f"{row['documents']} documents: {row['answered']} of {row['of']}, the fact quoted "
                f"for {row['quoted_when_answered']} of these, {row['s_per_question']} s each",
                flush=True,
            )
            append_line(arguments.out, row)


if __name__ == "__main__":
    main()
