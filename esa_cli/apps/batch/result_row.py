"""A reply as a row of plain data, for files, pipes and other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from esa_cli.errors import EsaError
from esa_cli.qa.reply import Reply, lacking

if TYPE_CHECKING:
    from esa_cli.documents.document import LeftOut


def answered(
    reply: Reply, books: Sequence[Any], left_out: Sequence[LeftOut] = ()
) -> dict[str, Any]:
    """The row of an answer about these books; `missing` is there only where they lack something,
    `left_out` where something of their folders was."""
    missing = lacking(books)
    return {
        "answer": reply.text,
        "found": reply.found,
        "cut": reply.cut,
        "evidence": [asdict(passage) for passage in reply.evidence],
        "tokens": {"question": reply.question_tokens, "answer": reply.answer_tokens},
        "timing": {
            "first_token_s": round(reply.first_token_s, 3),
            "total_s": round(reply.total_s, 3),
        },
        **({"missing": missing} if missing else {}),
        **({"left_out": [one.as_dict() for one in left_out]} if left_out else {}),
    }


def failed(error: EsaError) -> dict[str, Any]:
    return {"error": error.message, **({"hint": error.hint} if error.hint else {})}
