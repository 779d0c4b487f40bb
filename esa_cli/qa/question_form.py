"""Questions that ask for more than a quotation, and questions that refer to the one before."""

from __future__ import annotations

import re
from collections.abc import Sequence

from esa_cli.qa.reply import Turn

FREE = re.compile(
    r"\s*(?:please\s+|can you\s+|could you\s+)?(?:summari[sz]e|explain|describe|compare|contrast|"
    r"discuss|outline|write|list|enumerate|tell me (?:more )?about|give (?:me )?an? "
    r"(?:summary|overview|account|description)|what (?:is|are) (?:all|the main|the differences?))"
    r"\b",
    re.IGNORECASE,
)
REFERS = re.compile(
    r"\b(?:he|she|it|they|him|her|his|hers|its|them|their|theirs|this|that|these|those|there)\b"
    r"|^(?:and|but|so|also|why|how so|what about)\b[^?]{0,30}\?*$",
    re.IGNORECASE,
)


def wants_free_text(question: str) -> bool:
    """Whether a question asks for more than one span of the text, as far as its words tell."""
    return bool(FREE.match(question))


def referred_to(question: str, history: Sequence[Turn]) -> str:
    """Words of the turn before that a question refers to (`And where did he live?`), or none."""
    if not history or not REFERS.search(question):
        return ""
    last = history[-1]
    return f"{last.question} {last.answer}"
