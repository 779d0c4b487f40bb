"""Recognises questions that ask for more than a quotation, or that refer to an earlier question or
its answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import Turn, says_nothing_found
from esa_cli.system.text import has_lone_surrogate

FREE = re.compile(
    r"\s*(?:"
    r"(?:please\s+|(?:can|could) you\s+(?:please\s+)?)(?:contrast|outline|write|list)|"
    r"(?:please\s+|(?:can|could) you\s+(?:please\s+)?)?(?:"
    r"summari[sz]e|explain|describe|compare|discuss|enumerate|tell me (?:more )?about|"
    r"give (?:me )?an? (?:summary|overview|account|description)|"
    r"what are (?:all|the main|the differences?)|what is the difference|"
    # nouns as well: `List price of`, `Contrast ratio of`; with an object they are requests
    r"(?:contrast|outline|write|list)\s+(?:(?:down|out|up|about|me|us)\s+)?(?:"
    r"(?:the|an?|all|both|each|every|some|any|what|which|who|how|why|where|it|them|everything|"
    r"everyone|this|that|these|those|his|her|its|their|my|your|our|two|three|four|five|\d+)\b|"
    r"(?-i:[A-Z])\w*(?:['’]s?\b|\s+(?:and|with|to|from|against)\b))))"
    r"(?![-\w'’])",
    re.IGNORECASE,
)
"""Matches requests: a verb in the imperative, with its object if the word can also be a noun."""
REFERS = re.compile(
    r"\b(?:he|she|it|they|him|her|his|hers|its|them|their|theirs|this|that|these|those|there)\b",
    re.IGNORECASE,
)
CONTINUES = re.compile(r"^(?:and|but|so|also|why|how so|what about)\b[^?]{0,30}\?*$", re.IGNORECASE)
"""Matches short questions that continue the previous turn."""
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
"""Matches elliptic questions, which are incomplete without the previous question."""
LONGEST = 500
"""The maximum number of characters of a question that completes the next question."""
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
"""Matches pronouns that have only a grammatical function, and refer to no earlier turn."""


def validate_question(question: str) -> None:
    """Raises UsageError if a question is empty, or not UTF-8."""
    if not question.strip():
        hint = 'ask for example: esa ask book.txt "Who is Ahab?"'
        raise UsageError("the question must not be empty", hint)
    if has_lone_surrogate(question):
        raise UsageError("the question must be UTF-8", "ask in a terminal whose encoding is UTF-8")


def wants_free_text(question: str) -> bool:
    """Whether a question asks for more than a quotation, such as a summary or a list."""
    return bool(FREE.match(question))


def _find_last_answered_turn(history: Sequence[Turn]) -> Turn | None:
    whole = (turn for turn in reversed(history) if turn.question.strip() and turn.answer.strip())
    return next(whole, None)


def expand_ellipsis(question: str, history: Sequence[Turn]) -> str:
    """Puts the previous question before an elliptic question, such as `By whom?`."""
    before = _find_last_answered_turn(history)
    if before is None or not ELLIPTIC.fullmatch(question.strip()):
        return question
    last = before.question.strip()
    return f"{last} {question}" if len(last) <= LONGEST else question


def find_referenced_turn(question: str, history: Sequence[Turn]) -> str:
    """Returns the previous question and answer as text if a question refers to them, else ""."""
    refers = REFERS.search(DUMMIES.sub(" ", question)) or CONTINUES.search(question)
    last = _find_last_answered_turn(history)
    if last is None or not refers:
        return ""
    return last.question if says_nothing_found(last.answer) else f"{last.question} {last.answer}"
