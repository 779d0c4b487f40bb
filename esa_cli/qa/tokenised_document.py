"""A document with its tokens, made by one call of the tokenizer: the plan counts them, ingest feeds
them to the model, and evidence finds their characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.documents.document import Document


@dataclass(frozen=True, eq=False)
class TokenisedDocument:
    """A document's tokens, without those of the prompt before it.

    Args:
        ids: of its text; special tokens that it spells out are text.
        offsets: (n, 2) first and last character of each token.
    """

    document: Document
    ids: list[int]
    offsets: Tensor

    @classmethod
    def of(cls, document: Document, tokenizer: Any) -> TokenisedDocument:
        """Tokenises the text.

        Args:
            tokenizer: of transformers.
        """
        out = tokenizer(
            document.text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
        offsets = torch.tensor(out["offset_mapping"], dtype=torch.int64).reshape(-1, 2)
        return cls(document, list(out["input_ids"]), offsets)
