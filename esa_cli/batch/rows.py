"""A reply as a row of plain data, for files, pipes and other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..errors import EsaError
from ..reply import Reply


def answered(reply: Reply) -> dict[str, Any]:
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
    }


def failed(error: EsaError) -> dict[str, Any]:
    return {"error": error.message, **({"hint": error.hint} if error.hint else {})}
