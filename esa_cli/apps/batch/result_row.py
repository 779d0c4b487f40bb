"""A reply or an error as a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from esa_cli.errors import EsaError
from esa_cli.qa.answering.reply import Reply, lacking

if TYPE_CHECKING:
    from esa_cli.documents.document import LeftOut


def answer_row(
    reply: Reply, books: Sequence[Any], left_out: Sequence[LeftOut] = ()
) -> dict[str, Any]:
    """The reply, with what documents lack (`missing`), and which files are left out, if any."""
    missing = lacking(books)
    return {
        "answer": reply.text,
        "found": reply.found,
        "cut": reply.cut,
        "answered_from": reply.answered_from,
        "read": reply.read,
        "quotation": None if reply.quotation is None else asdict(reply.quotation),
        "evidence": [passage.as_evidence() for passage in reply.evidence],
        "tokens": {"question": reply.question_tokens, "answer": reply.answer_tokens},
        "timing": {
            "first_token_s": round(reply.first_token_s, 3),
            "total_s": round(reply.total_s, 3),
        },
        **({"missing": missing} if missing else {}),
        **({"left_out": [file.as_dict() for file in left_out]} if left_out else {}),
    }


def error_row(error: EsaError) -> dict[str, Any]:
    return {"error": error.message, **({"hint": error.hint} if error.hint else {})}
