"""A document with its tokens: the plan counts them, ingest feeds them to the model, and evidence
finds their characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.documents.document import Document
from esa_cli.models.tokenization.windowed_tokenizer import tokenise


@dataclass(frozen=True, eq=False)
class TokenisedDocument:
    """A document's tokens, without those of the prompt before it; 12 bytes for each.

    Args:
        ids: of its text; special tokens that it spells out are text.
        offsets: (n, 2) first and last character of each token.
    """

    document: Document
    ids: Sequence[int]
    offsets: Tensor

    @classmethod
    def of(cls, document: Document, tokenizer: Any) -> TokenisedDocument:
        """Tokenises the text.

        Args:
            tokenizer: of transformers.

        Raises:
            DocumentError: a part of it cannot be divided; see `windowed_tokenizer`.
        """
        ids, offsets = tokenise(tokenizer, document.text)
        return cls(document, ids, torch.from_numpy(offsets))
