"""A reply from rows that the method selects: the answer, and what its attention rested on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.books import PlacedBook
from esa_cli.qa.evidence.attention_weights import AttentionWeights
from esa_cli.qa.evidence.evidence import rests_on

if TYPE_CHECKING:  # it imports transformers' models
    from esa_cli.qa.answering.session import Session


def reply_from_rows(
    session: Session, question: str, books: Sequence[PlacedBook], evidence: int, **asking: Any
) -> tuple[Reply, Tensor]:
    """The reply to one question about open books, and the weights (N,) of the cached tokens.

    Args:
        evidence: passages. asking: keyword arguments of `Session.ask`.

    Raises:
        As `Session.ask`.
    """
    weights = AttentionWeights(session.layers, session.document_tokens)
    answer = session.ask(question, trace=weights, **asking)
    passages, found = rests_on(weights, books, evidence)
    reply = Reply(
        answer.text, tuple(passages), found, answer.question_tokens, answer.answer_tokens,
        answer.first_token_s, answer.total_s, answer.cut,
    )  # fmt: skip
    return reply, weights.weights
