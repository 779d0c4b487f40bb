"""Questions that ask for more than a quotation, and questions that refer to the one before."""

from __future__ import annotations

import re
from collections.abc import Sequence

from esa_cli.qa.answering.reply import Turn

FREE = re.compile(
    r"\s*(?:please\s+|can you\s+|could you\s+)?(?:summari[sz]e|explain|describe|compare|contrast|"
    r"discuss|outline|write|list|enumerate|tell me (?:more )?about|give (?:me )?an? "
    r"(?:summary|overview|account|description)|what (?:is|are) (?:all|the main|the differences?))"
    r"\b",
    re.IGNORECASE,
)
REFERS = re.compile(
    r"\b(?:he|she|it|they|him|her|his|hers|its|them|their|theirs|this|that|these|those|there)\b",
    re.IGNORECASE,
)
CONTINUES = re.compile(r"^(?:and|but|so|also|why|how so|what about)\b[^?]{0,30}\?*$", re.IGNORECASE)
"""Short questions that continue the turn before."""
ELLIPTIC = re.compile(
    r"(?:(?:and|but|so),?\s+)?"
    r"(?:"
    # `When?`, `By whom?`, `How many feet?`, `Where exactly?`; not `Where Ahab`
    r"(?:(?:at|by|from|for|in|of|on|since|until|to|with|about)\s+)?"
    r"(?:who|whom|whose|what|which|when|where|why|how(?:\s+(?:many|much|long|often|far|old))?)"
    r"(?:\s+(?-i:[a-z]+))?"
    # `And the miners of Deepfold?`, `What about Pip?`
    r"|(?:(?<=and )|(?<=but )|(?:what|how)\s+about\s+)"
    r"(?!.*\b(?:who|what|which|when|where|why|how|is|are|was|were|did|does|do|has|have|had)\b)"
    r"[^?]{1,60}"
    r")\s*\?*",
    re.IGNORECASE,
)
"""Questions that lack what the one before has: nothing can be found or read by them alone."""
LONGEST = 500
"""Characters of a question that completes the next."""
DUMMIES = re.compile(
    r"\b(?:"
    # relative: `the man that sold`; but not `Who told the man that?`
    r"(?:the|an?|any|every|some|no)\s+\w+\s+that(?=\s+\w)"
    r"(?!\s+(?:night|morning|day|evening|week|year|time)\b)"
    r"|(?:one|ones|those|all|anyone|anything|someone|something|everything|nothing)\s+that(?=\s+\w)"
    # conjunction: `say that the`, `think that Ahab`
    r"|(?:says?|said|thinks?|thought|knows?|knew|believes?|believed|claims?|claimed|true)\s+that"
    r"(?=\s+(?:the|an?|(?-i:[A-Z]\w*))\b)"
    # `Who was it that`, `what time is it`, `was it true`, `how long did it take to`
    r"|(?:is|was)\s+it\s+that"
    r"|(?:time|date|day|month|year|season)\s+(?:is|was)\s+it"
    r"|(?:is|was)\s+it\s+(?:raining|snowing|(?:true|possible)(?:\s+that)?)"
    r"|it\s+takes?(?=\s+(?:\w+\s+){0,3}to\b)"
    # `is there a`
    r"|(?:is|are|was|were)\s+there(?=\s+(?:an?|any|some|no)\b)"
    r")",
    re.IGNORECASE,
)
"""Words of `REFERS` where grammar needs them, and they refer to nothing before the question."""


def wants_free_text(question: str) -> bool:
    """Whether a question asks for more than one span of the text, as far as its words tell."""
    return bool(FREE.match(question))


def completed(question: str, history: Sequence[Turn]) -> str:
    """The question, behind the one before it where it is elliptic: `Did the wolf die? When?`"""
    if not history or not ELLIPTIC.fullmatch(question.strip()):
        return question
    last = history[-1].question.strip()
    return f"{last} {question}" if len(last) <= LONGEST else question


def referred_to(question: str, history: Sequence[Turn]) -> str:
    """Words of the turn before that a question refers to (`And where did he live?`), or none."""
    refers = REFERS.search(DUMMIES.sub(" ", question)) or CONTINUES.search(question)
    if not history or not refers:
        return ""
    last = history[-1]
    return f"{last.question} {last.answer}"
