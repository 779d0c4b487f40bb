"""What makes a preset's token indexes: the encoder of its finder, or of its voting heads."""

from __future__ import annotations

from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.finding.head_encoder import HeadEncoder
from esa_cli.qa.finding.index_votes import HeadVotes
from esa_cli.qa.finding.load_encoder import load_encoder, voting_heads
from esa_cli.qa.finding.token_encoder import TokenEncoder
from esa_cli.qa.passage_search import PassageSearch

IndexEncoder = TokenEncoder | HeadEncoder


def index_encoder(lazy: LazySession) -> IndexEncoder | None:
    """The encoder of the indexes that answers from text use; None where there is none.

    Raises:
        PresetError: there is no folder of the finder, or no heads are named that could vote.
        ModelError: the finder cannot be read, or is of another model.
    """
    if (heads := voting_heads(lazy.preset)) is not None:
        return HeadEncoder(lazy, heads)
    return load_encoder(lazy.preset.answer, lazy.text_model, lazy.tokenizer)


def passage_search(lazy: LazySession, encoder: IndexEncoder | None) -> PassageSearch:
    """What finds passages with indexes of this encoder."""
    answer = lazy.preset.answer
    if isinstance(encoder, HeadEncoder):
        votes = HeadVotes(encoder, lazy.method)
        return PassageSearch(heads=votes, weight=answer.votes)
    return PassageSearch(encoder, answer.words)
