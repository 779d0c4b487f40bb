"""The parts of a question that asks several things, each of which has an answer of its own: "Who
gets a permit, and what does it cost?", "When and where is the fair?", "Who came? Why did he?"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from esa_cli.qa.answering.reply import NOT_TOLD, Certainty, Reply
from esa_cli.qa.finding.passage import Passage

_LANGUAGES = (
    (
        "and",
        "with|by|at|in|on|from|to|for|of|after|until|since",
        "who|whom|whose|what|which|when|where|why|how",
    ),
    (
        "und",
        "mit|bei|an|auf|von|bis|seit|für|in|zu|nach|um",
        "wer|wen|wem|wessen|was|welche[mnrs]?|wann|wo|woher|wohin|warum|wieso|weshalb|wie|womit",
    ),
    (
        "et",
        "avec|à|de|par|pour|dans|depuis",
        "qui|quoi|quelles?|quels?|quand|où|pourquoi|comment|combien",
    ),
    (  # accents tell "qué" from "que", which means "that"
        "y",
        "con|en|por|para|hasta|desde|a|de",
        "quién(?:es)?|qué|cuál(?:es)?|cuándo|dónde|cómo|cuánt[oa]s?",
    ),
)
"""Of each language "and", prepositions and question words, as regular expressions."""
_SENTENCE = re.compile(r"(?<=\w\?)\s+(?=\w)")
MAX_PARTS, MIN_WORDS = 3, 3
"""The most parts of a question; the fewest words of its first part."""


def split_question(question: str) -> list[str]:
    """Returns the parts of a question in their order, or the question alone. A relative clause is
    no part: "Who is the man who came and who left?"."""
    sentences = _SENTENCE.split(question.strip())
    if len(sentences) > 1 and not all(sentence.endswith("?") for sentence in sentences):
        return [question]
    parts = [part for sentence in sentences for part in _split_sentence(sentence)]
    return parts if 1 < len(parts) <= MAX_PARTS else [question]


def _split_sentence(sentence: str) -> list[str]:
    for conjunction, prepositions, question_words in _LANGUAGES:
        asks = rf"(?:{question_words})\b"
        both = re.fullmatch(rf"({asks}) {conjunction} ({asks}) (.+)", sentence, re.I | re.S)
        if both:
            return [f"{both[1]} {both[3]}", f"{both[2]} {both[3]}"]
        preposition = f"(?:(?:{prepositions}) )?"
        pieces = re.split(f",? {conjunction} (?={preposition}{asks})", sentence, flags=re.I)
        # "the man who", "la femme que", "do you know where"
        clause = rf"\b{asks}.*\b{asks}|(?<!ce) que |\b{asks}$"
        is_clause = any(re.search(clause, piece, re.I | re.S) for piece in pieces[:-1])
        if len(pieces) > 1 and len(pieces[0].split()) >= MIN_WORDS and not is_clause:
            return [f"{piece.strip().rstrip('?')}?" for piece in pieces]
    return [sentence]


def join_replies(parts: Sequence[str], replies: Sequence[Reply], count: int) -> Reply:
    """Returns one reply to all parts of a question from the replies to each, with `count` passages,
    by turns. It is as certain as the least certain of them; parts without an answer come last."""
    answered = [reply.certainty != "nothing" for reply in replies]
    if not any(answered):
        return replace(replies[0], total_s=sum(one.total_s for one in replies))
    told = zip(answered, parts, replies, strict=True)
    texts = [
        reply.text if is_answered else f'{NOT_TOLD.rstrip(".").lower()} "{part}"'
        for is_answered, part, reply in sorted(told, key=lambda one: not one[0])
    ]
    all_certain = all(reply.certainty == "answer" for reply in replies)
    certainty: Certainty = "answer" if all_certain else "perhaps"
    evidence = dict[tuple[str, int], Passage]()
    for passage in filter(None, chain.from_iterable(zip_longest(*(r.evidence for r in replies)))):
        share = passage.weight / len(replies)
        known = evidence.get((passage.document, passage.start), passage)
        weight = share if known is passage else known.weight + share
        evidence[passage.document, passage.start] = replace(known, weight=weight)
    return replace(
        replies[0], text="; ".join(dict.fromkeys(texts)), certainty=certainty, found=True, names=(),
        evidence=tuple(evidence.values())[:count],
        quotations=tuple(chain(*(one.quotations for one in replies))),
        probability=min(one.probability or 0.0 for one in replies),
        question_tokens=sum(one.question_tokens for one in replies),
        answer_tokens=sum(one.answer_tokens for one in replies),
        total_s=sum(one.total_s for one in replies),
        foreign_languages=tuple(dict.fromkeys(chain(*(r.foreign_languages for r in replies)))),
        missing_words=tuple(dict.fromkeys(chain(*(r.missing_words for r in replies)))),
    )  # fmt: skip
